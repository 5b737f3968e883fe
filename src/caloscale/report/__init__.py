"""Figures, tables and the report page of a run."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from caloscale.report.figures import Figure, draw_figures, draw_run_figures
    from caloscale.report.page import render_report

__all__ = ["Figure", "draw_figures", "draw_run_figures", "render_report"]

_MODULES = {
    "Figure": "figures",
    "draw_figures": "figures",
    "draw_run_figures": "figures",
    "render_report": "page",
}


def __getattr__(name: str) -> Any:
    """Load a module when it is first asked for: matplotlib and jinja2 are not needed everywhere."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
