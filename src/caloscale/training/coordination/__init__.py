"""How the workers of a training act together."""
