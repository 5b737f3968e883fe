"""What a run used, its bill, and what later plans learn from it."""
