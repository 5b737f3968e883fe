"""Kubeflow pipelines."""
