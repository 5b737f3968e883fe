"""Kubeflow Pipelines on this machine, from its sources: `python -m tools.cluster kubeflow`."""
