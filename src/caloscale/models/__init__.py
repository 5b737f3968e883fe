"""The networks: families of generators, their layers, and the files of trained ones.

The arithmetic is imported late: who only reads a model card needs no TensorFlow.
"""

from typing import Any

from caloscale.models.families.family import Family, Networks, build, count_parameters, family_of, latent, noise_size

__all__ = ["Family", "Networks", "build", "count_parameters", "family_of", "latent", "noise_size"]


def __getattr__(name: str) -> Any:
    """``flops`` and ``flops_per_layer``."""
    if name not in ("flops", "flops_per_layer"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from caloscale.models import arithmetic

    return getattr(arithmetic, name)
