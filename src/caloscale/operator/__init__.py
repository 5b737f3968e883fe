"""The operator: pure decisions, and a small process that carries them out."""
