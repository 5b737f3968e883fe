"""The operator: pure decisions, and the thin hands around them."""
