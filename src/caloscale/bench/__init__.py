"""Benchmarks: ours beside a reference, in interleaved rounds, each in a process of its own.

A bench is a function that returns a record (`results`): medians with their spread, and the machine. `tables` writes
them for people.
"""
