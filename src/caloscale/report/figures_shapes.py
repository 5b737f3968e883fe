"""Figures of shapes: profiles, cell spectrum, distributions, moments."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from matplotlib.figure import Figure as Page
from matplotlib.ticker import MaxNLocator

from caloscale.physics.binning import UNITS
from caloscale.physics.result import Evaluation, Separation
from caloscale.report.drawing import (
    draw_histogram,
    draw_ratio,
    hide_labels,
    legend_above,
    note,
    page,
    sample_names,
    set_log,
    set_top,
)
from caloscale.report.figure_data import FigureData, Panel
from caloscale.report.verdict import plain, with_uncertainty


@contextmanager
def longitudinal_profile(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """Mean energy per layer in the ranges of energy, with ratios."""
    panels = data.longitudinal
    results = evaluation.observables["longitudinalProfile"].ranges
    columns = min(len(panels), 3)
    chosen = np.unique(np.linspace(0, len(panels) - 1, columns).astype(int))
    names = sample_names(evaluation.reference_source)
    with page(4.6 * columns + 0.8, 5.6) as figure:
        axes = figure.subplots(2, columns, height_ratios=(3, 1), sharex=True, squeeze=False)
        for column, k in enumerate(chosen):
            panel, top, bottom = panels[k], axes[0, column], axes[1, column]
            draw_histogram(top, panel, names, ("generated", "baseline"))
            set_top(top, panel, ("reference", "generated"), 1.45)
            top.set_title(evaluation.energy_ranges[k].label)
            note(top, _separation_note(results[k]))
            hide_labels(top)
            draw_ratio(bottom, panel)
            bottom.set_xlabel("layer")
            bottom.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            if column:
                bottom.set_ylabel("")
        axes[0, 0].set_ylabel("mean energy per layer [MeV]")
        axes[0, 0].legend(loc="upper left")
        yield figure


@contextmanager
def transverse_profiles(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """Mean energy per column and row of cells, linear and logarithmic, with ratios."""
    names = sample_names(evaluation.reference_source)
    with page(11, 8.2) as figure:
        axes = figure.subplots(3, 2, height_ratios=(2.2, 2.2, 1), sharex="col")
        for column, (panel, key) in enumerate(zip(data.transverse, ("transverseProfileX", "transverseProfileY"))):
            linear, logarithmic, ratio = axes[:, column]
            draw_histogram(linear, panel, names, ("generated", "baseline"))
            set_top(linear, panel, ("reference", "generated"))
            linear.set_title(f"across, {panel.title}" + (" (the plane of the angle)" if panel.title == "x" else ""))
            note(linear, _separation_note(evaluation.observables[key]))
            draw_histogram(logarithmic, panel, names, ("generated", "baseline", "untrained"))
            set_log(logarithmic, panel)
            draw_ratio(ratio, panel)
            ratio.set_xlabel(f"{panel.title} [mm]")
            hide_labels(linear)
            hide_labels(logarithmic)
            if not column:
                linear.set_ylabel("mean energy [MeV]")
                logarithmic.set_ylabel("mean energy [MeV]")
                linear.legend(loc="upper left")
                logarithmic.legend(*_only(logarithmic, names["untrained"]), loc="upper left")
            else:
                ratio.set_ylabel("")
        yield figure


@contextmanager
def cell_spectrum(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """Spectrum of the cells' energies, and occupancy against threshold."""
    spectrum, occupancy = data.spectrum, data.occupancy
    assert spectrum is not None and occupancy is not None
    names = sample_names(evaluation.reference_source)
    with page(11.5, 5.8) as figure:
        axes = figure.subplots(2, 2, height_ratios=(3, 1), sharex="col")
        top, bottom = axes[:, 0]
        top.set_xscale("log")
        draw_histogram(top, spectrum, names, ("generated", "baseline", "untrained"))
        set_log(top, spectrum)
        top.set_ylim(top=top.get_ylim()[1] * 3)
        top.axvline(1e3 * evaluation.hits_threshold_gev, color="black", linewidth=0.9, linestyle=":")
        top.set_ylabel("cells per shower and bin")
        legend_above(figure, top)
        note(top, _separation_note(evaluation.observables["cellSpectrum"]))
        draw_ratio(bottom, spectrum)
        bottom.set_xlabel("cell energy [MeV]")
        _occupancy(axes[:, 1], occupancy, names)
        for ax in axes[0]:
            hide_labels(ax)
        yield figure


def _occupancy(axes: np.ndarray, panel: Panel, names: dict[str, str]) -> None:
    """The thresholds as bins around them, so that the same drawing serves."""
    thresholds = np.array([e or np.nan for e in panel.edges], dtype=np.float64)
    step = np.sqrt(thresholds[1] / thresholds[0])
    edges = tuple(float(v) for v in np.append(thresholds / step, thresholds[-1] * step))
    shown = panel.model_copy(update={"edges": edges})
    top, bottom = axes
    top.set_xscale("log")
    draw_histogram(top, shown, names, ("generated", "baseline", "untrained"))
    set_top(top, shown, ("reference", "generated", "baseline"), 1.15)
    top.set_ylabel("part of the cells above threshold")
    draw_ratio(bottom, shown)
    bottom.set_ylabel("")
    bottom.set_xlabel("threshold [MeV]")


@contextmanager
def distributions(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """The scalar observables as histograms."""
    panels = data.distributions
    with _grid(evaluation, panels, 4) as figure:
        yield figure


@contextmanager
def moments(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """Moments about the barycentre along z, x, y."""
    with _grid(evaluation, data.moments, 3) as figure:
        yield figure


@contextmanager
def _grid(evaluation: Evaluation, panels: dict[str, Panel], columns: int) -> Iterator[Page]:
    names = sample_names(evaluation.reference_source)
    rows = -(-len(panels) // columns)
    with page(3.9 * columns, 3.4 * rows + 0.6) as figure:
        axes = figure.subplots(rows, columns, squeeze=False)
        for ax in axes.flat[len(panels) :]:
            ax.set_axis_off()
        for ax, (name, panel) in zip(axes.flat, panels.items()):
            draw_histogram(ax, panel, names, ("generated", "baseline", "untrained"))
            set_top(ax, panel, ("reference", "generated"), 1.45)
            unit = UNITS.get(name)
            ax.set_title(panel.title if not unit else f"{panel.title} [{unit}]", fontsize=12)
            ax.xaxis.set_major_locator(MaxNLocator(5))
            result = evaluation.observables.get(name)
            if result is not None:
                note(ax, _separation_note(result))
        for row in axes:
            row[0].set_ylabel("share of showers")
        legend_above(figure, axes.flat[0])
        yield figure


def _separation_note(result: Separation) -> str:
    if result.separation is None:
        return "separation absent"
    return f"S = {with_uncertainty(result.separation, result.uncertainty)}\nfloor {plain(result.floor)}"


def _only(ax, label: str) -> tuple[list, list[str]]:  # type: ignore[no-untyped-def, type-arg]
    handles, labels = ax.get_legend_handles_labels()
    kept = [(h, one) for h, one in zip(handles, labels) if one == label]
    return [h for h, _ in kept], [one for _, one in kept]
