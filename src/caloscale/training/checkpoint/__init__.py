"""Checkpoints of a training: what they hold, where they lie, when they are written."""
