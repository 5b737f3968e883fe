"""caloscale: calorimeter generators, from Monte Carlo to a trained model and its bill.

The names of ``dir(caloscale)`` are for notebooks. They are loaded when they are first used: the import of the package
takes no TensorFlow.
"""

from importlib import import_module
from typing import Any

from caloscale.lazy_names import modules_of
from caloscale.tensorflow_import import set_environment

set_environment()

__version__ = "0.1.0"

IMAGE = f"caloscale/trainer:{__version__}"
"""Image of workers and of pipeline steps where none is named."""
SOLVER_IMAGE = f"caloscale/solver:{__version__}"
"""Image of launcher and ranks of a solver run where none is named."""

_MODULES = modules_of(__file__)
__all__ = list(_MODULES)


def __dir__() -> list[str]:
    """The public names, for completion."""
    return sorted([*__all__, "__version__"])


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used; __init__.pyi has modules and types."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
