"""The operator on a real control plane, with imitated nodes and pods."""
