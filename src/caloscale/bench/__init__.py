"""Benchmarks: ours beside a reference, in interleaved rounds, each in a process of its own."""
