"""Showers from a trained generator."""

from caloscale.inference.generator import Generator, load_generator

__all__ = ["Generator", "load_generator"]
