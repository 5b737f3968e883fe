"""Runs on a cluster, from the outside: submit, follow, logs, stop, fetch; and what a worker says of its progress."""
