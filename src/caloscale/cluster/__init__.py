"""A run as Kubernetes objects, and what nodes, pods and jobs say. Pure: values in, values out."""
