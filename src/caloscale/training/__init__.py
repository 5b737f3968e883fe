"""Training of the networks on prepared showers.

TensorFlow is loaded when a training begins, not before: its Keras is chosen first, see `models.legacy_keras`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caloscale.training.loop import train
    from caloscale.training.record import TrainingRecord

__all__ = ["TrainingRecord", "train"]

_MODULES = {"TrainingRecord": "record", "train": "loop"}


def __getattr__(name: str) -> Any:
    """Load a module when what it holds is first asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
