"""What people and workers use on a cluster."""
