"""Figures of showers themselves: mean and single showers, correlations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Page
from matplotlib.ticker import MaxNLocator

from caloscale.physics.result import Evaluation
from caloscale.report.drawing import array, page, sample_names
from caloscale.report.figure_data import FigureData, Map, Matrix


@contextmanager
def mean_showers(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """Mean showers from the side in ranges of the angle."""
    with _maps(evaluation, data, data.mean_showers, 4) as figure:
        yield figure


@contextmanager
def example_showers(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """Single showers beside generated ones of nearly the same energy and angle."""
    with _maps(evaluation, data, data.examples, 3.5) as figure:
        yield figure


@contextmanager
def _maps(evaluation: Evaluation, data: FigureData, maps: Sequence[Map], decades: float) -> Iterator[Page]:
    names = sample_names(evaluation.reference_source)
    columns = max(len(maps), 1)
    half = data.extent[0] or 1.0
    with page(4.2 * columns + 1, 6.6) as figure:
        axes = figure.subplots(2, columns, sharex=True, sharey=True, squeeze=False)
        top = max((float(_matrix(m.reference).max(initial=0)) for m in maps), default=1.0) or 1.0
        norm = LogNorm(vmin=top / 10**decades, vmax=top)
        mesh = None
        for column, one in enumerate(maps):
            for ax, values in ((axes[0, column], one.reference), (axes[1, column], one.generated)):
                cells = _matrix(values)
                layers = np.arange(cells.shape[1] + 1) - 0.5
                x = np.linspace(-half, half, cells.shape[0] + 1)
                shown = np.ma.masked_less(cells, top / 10**decades)
                mesh = ax.pcolormesh(layers, x, shown, norm=norm, cmap="magma_r", rasterized=True)
                ax.set_facecolor("#f7f7f7")
                ax.minorticks_off()
            axes[0, column].set_title(one.title)
            axes[1, column].set_xlabel("layer")
            axes[1, column].xaxis.set_major_locator(MaxNLocator(5, integer=True))
        for ax, name in zip(axes[:, 0], (names["reference"], names["generated"])):
            ax.set_ylabel(f"{name}\nx [mm]")
        if mesh is not None:
            figure.colorbar(mesh, ax=axes, label="energy [MeV]", pad=0.015, fraction=0.035)
        yield figure


@contextmanager
def correlations(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """Correlation matrices and their difference."""
    names = sample_names(evaluation.reference_source)
    reference, generated = _matrix(data.correlation_reference), _matrix(data.correlation_generated)
    with page(15.5, 5.6) as figure:
        axes = figure.subplots(1, 3, sharey=True)
        for ax, values, title in (
            (axes[0], reference, names["reference"]),
            (axes[1], generated, names["generated"]),
            (axes[2], generated - reference, f"{names['generated']} - {names['reference']}"),
        ):
            mesh = ax.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1)
            ticks = range(len(data.correlation_names))
            ax.set_xticks(ticks, data.correlation_names, rotation=90, fontsize=11)
            ax.set_yticks(ticks, data.correlation_names, fontsize=11)
            ax.tick_params(which="both", length=0)
            ax.minorticks_off()
            ax.set_title(title)
        result = evaluation.correlation
        if result.mean_difference is not None:
            axes[2].set_xlabel(f"mean |difference| {result.mean_difference:.3f}, floor {result.floor or 0:.3f}")
        figure.colorbar(mesh, ax=axes, label="correlation", pad=0.01, fraction=0.02)
        yield figure


def _matrix(values: Matrix) -> np.ndarray:
    return np.nan_to_num(np.stack([array(row) for row in values]))
