"""Showers from a trained generator."""

from caloscale.inference.generator import Generator, load_generator
from caloscale.inference.runtime import Runtime, open_runtime

__all__ = ["Generator", "Runtime", "load_generator", "open_runtime"]
