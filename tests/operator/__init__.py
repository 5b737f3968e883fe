"""The operator: decisions without a cluster; those with one are in tests/control_plane."""
