"""The stages of a run, which a command or a pipeline step calls: configuration and folder in, folder out.

    plan, simulate -> preprocess -> train -> validate -> report

Each but the plan keeps a record of itself in ``<workspace>/stages``. `generate` is no part of a run: it uses its model.
Imports are late: a stage loads only what it needs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from caloscale.tensorflow_import import load_tensorflow_quietly

if TYPE_CHECKING:
    from caloscale.stages.generation import Generation, GenerationRecord, generate
    from caloscale.stages.planning import plan
    from caloscale.stages.reporting import report, report_of_refusal
    from caloscale.stages.sequence import new_run_folder, point_latest, print_outcome, run_all
    from caloscale.stages.showers import preprocess, provide_shards, simulate
    from caloscale.stages.solving import report_any, solve, validate_solution
    from caloscale.stages.training import train
    from caloscale.stages.validation import validate, validate_int8

__all__ = [
    "Generation",
    "GenerationRecord",
    "generate",
    "new_run_folder",
    "plan",
    "point_latest",
    "preprocess",
    "print_outcome",
    "provide_shards",
    "report",
    "report_any",
    "report_of_refusal",
    "run_all",
    "simulate",
    "solve",
    "train",
    "validate",
    "validate_int8",
    "validate_solution",
]

_MODULES = {
    "Generation": "generation",
    "GenerationRecord": "generation",
    "generate": "generation",
    "new_run_folder": "sequence",
    "plan": "planning",
    "point_latest": "sequence",
    "preprocess": "showers",
    "print_outcome": "sequence",
    "provide_shards": "showers",
    "report": "reporting",
    "report_of_refusal": "reporting",
    "report_any": "solving",
    "run_all": "sequence",
    "simulate": "showers",
    "solve": "solving",
    "train": "training",
    "validate": "validation",
    "validate_int8": "validation",
    "validate_solution": "solving",
}


def __getattr__(name: str) -> Any:
    """Load a stage when it is first asked for.

    The training loads TensorFlow itself, as it must choose Keras before.
    """
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("validate", "validate_int8"):
        load_tensorflow_quietly()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
