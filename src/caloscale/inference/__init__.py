"""Showers from a trained generator.

Imports are late: ONNX Runtime and OpenVINO compute an exported generator without TensorFlow.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from caloscale.inference.primaries import Primaries, parse_primaries
from caloscale.inference.runtime import Runtime, open_fastest, open_runtime, suitable_batch, suitable_streams
from caloscale.inference.stream import stream

if TYPE_CHECKING:
    from caloscale.inference.generator import Generator, load_generator

__all__ = [
    "Generator", "Primaries", "Runtime", "load_generator", "open_fastest", "open_runtime", "parse_primaries",
    "stream", "suitable_batch", "suitable_streams",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Load TensorFlow when it is first needed."""
    if name not in ("Generator", "load_generator"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.generator"), name)
