"""Showers from a trained generator."""

from caloscale.inference.generator import Generator, load_generator
from caloscale.inference.primaries import Primaries, parse_primaries
from caloscale.inference.runtime import Runtime, open_runtime
from caloscale.inference.stream import stream, suitable_batch

__all__ = [
    "Generator",
    "Primaries",
    "Runtime",
    "load_generator",
    "open_runtime",
    "parse_primaries",
    "stream",
    "suitable_batch",
]
