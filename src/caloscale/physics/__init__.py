"""Is the physics right? Observables, distances, verdict, figures and the report."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caloscale.physics.evaluation import evaluate
    from caloscale.physics.figures import Figure, draw_figures, draw_run_figures
    from caloscale.physics.report import render_report
    from caloscale.physics.result import Evaluation

__all__ = ["Evaluation", "Figure", "draw_figures", "draw_run_figures", "evaluate", "render_report"]

_MODULES = {
    "Evaluation": "result",
    "Figure": "figures",
    "draw_figures": "figures",
    "draw_run_figures": "figures",
    "evaluate": "evaluation",
    "render_report": "report",
}


def __getattr__(name: str) -> Any:
    """Load a module when it is first asked for: matplotlib and jinja2 are not needed everywhere."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
