"""Benchmarks: ours and a reference, in interleaved rounds, each in a separate process."""
