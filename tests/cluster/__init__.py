"""The pure half of the cluster: no API server is needed."""
