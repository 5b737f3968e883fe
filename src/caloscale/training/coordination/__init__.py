"""What the workers of a training agree on: signals, peers, failures."""
