"""The stages of a run, which a command or a pipeline step calls: configuration and folder in, folder out.

    plan, simulate -> preprocess -> train -> validate -> report

Each but the plan keeps a record of itself in ``<workspace>/stages``. `generate` is no part of a run: it uses its model.
Imports are late: a stage loads only what it needs.
"""

from importlib import import_module
from typing import Any

from caloscale.tensorflow_import import load_tensorflow_quietly

_NAMES = {
    "generation": ("Generation", "generate"),
    "pipeline_run": ("begin", "begun", "own_folder", "report_pipeline_run", "run_folder", "run_id", "solver_run"),
    "planning": ("plan",),
    "reporting": ("report",),
    "sequence": ("new_run_folder", "point_latest", "print_outcome", "run_all"),
    "showers": ("preprocess", "provide_shards", "simulate"),
    "solving": ("solve", "validate_solution"),
    "training": ("train", "train_as_step"),
    "validation": ("validate", "validate_int8"),
    "workspace": ("dataset_of",),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = list(_MODULES)


def __getattr__(name: str) -> Any:
    """Load a stage when it is first asked for; __init__.pyi has the types.

    The training loads TensorFlow itself, as it must choose Keras before.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] == "validation":
        load_tensorflow_quietly()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
