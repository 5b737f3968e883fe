"""The operator on a real control plane, with fake nodes and pods."""
