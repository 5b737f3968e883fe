"""Checkpoints of a training."""
