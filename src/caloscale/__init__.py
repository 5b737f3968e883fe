"""caloscale: calorimeter generators, from Monte Carlo to a trained model and its bill.

`load_run`, `plan`, `read_showers`, `Generator` and `evaluate` are for notebooks. They are loaded when they are first
used: the import of the package takes no TensorFlow.
"""

from importlib import import_module
from typing import Any

from caloscale.tensorflow_import import set_environment

set_environment()

__version__ = "0.1.0"

IMAGE = f"caloscale/trainer:{__version__}"
"""Image of workers and of pipeline steps where none is named."""
SOLVER_IMAGE = f"caloscale/solver:{__version__}"
"""Image of launcher and ranks of a solver run where none is named."""

__all__ = ["Generator", "evaluate", "load_run", "plan", "read_showers"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first used; __init__.pyi has the types."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = (
        "caloscale.inference.generator" if name == "Generator" else "caloscale.api"
    )  # TensorFlow for the first alone
    return getattr(import_module(module), name)
