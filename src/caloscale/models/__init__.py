"""The networks: families of generators, their layers, and the files of trained ones.

Imports are late: who only reads a model card needs no TensorFlow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caloscale.models.arithmetic import flops, flops_per_layer
    from caloscale.models.families.family import (
        Family,
        Networks,
        build,
        count_parameters,
        family_of,
        latent,
        noise_size,
    )

__all__ = [
    "Family",
    "Networks",
    "build",
    "count_parameters",
    "family_of",
    "flops",
    "flops_per_layer",
    "latent",
    "noise_size",
]


def __getattr__(name: str) -> Any:
    """Load a network's module when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "arithmetic" if name.startswith("flops") else "families.family"
    return getattr(import_module(f"{__name__}.{module}"), name)
