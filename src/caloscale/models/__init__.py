"""The networks: generators and discriminators, their physics constraints and their loss.

Imports are late: who only reads a model card needs no TensorFlow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caloscale.models.arithmetic import flops, flops_per_layer
    from caloscale.models.networks import Networks, build, count_parameters, for_training, judged, latent, noise_size

__all__ = [
    "Networks",
    "build",
    "count_parameters",
    "flops",
    "flops_per_layer",
    "for_training",
    "judged",
    "latent",
    "noise_size",
]


def __getattr__(name: str) -> Any:
    """Load a network's module when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "arithmetic" if name.startswith("flops") else "networks"
    return getattr(import_module(f"{__name__}.{module}"), name)
