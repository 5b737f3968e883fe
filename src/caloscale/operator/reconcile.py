"""What to do next with a run: from what is observed to a status and actions. Pure."""
