"""The stages of a run, which a command or a pipeline step calls: configuration and folder in, folder out.

    plan, simulate -> preprocess -> train -> validate -> report

Each but the plan keeps a record of itself in ``<workspace>/stages``. `generate` is no part of a run: it uses its model.
Imports are late: a stage loads only what it needs.
"""

from importlib import import_module
from typing import Any

from caloscale.lazy_names import modules_of
from caloscale.tensorflow_import import load_tensorflow_quietly

_MODULES = modules_of(__file__)
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Load a stage when it is first asked for; __init__.pyi has modules and types.

    The training loads TensorFlow itself, as it must choose Keras before.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] == "caloscale.stages.validation":
        load_tensorflow_quietly()
    return getattr(import_module(_MODULES[name]), name)
