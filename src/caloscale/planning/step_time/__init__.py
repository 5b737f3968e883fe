"""Seconds of a step, an epoch and a start, fitted to measurements."""
