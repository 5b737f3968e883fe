"""Figures of separations, response, resolution, shower maximum, angle, classifier."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from matplotlib.figure import Figure as Page
from matplotlib.ticker import MaxNLocator

from caloscale.physics.result import Compared, Evaluation, Linearity, Resolution
from caloscale.report.drawing import (
    BASELINE,
    GENERATED,
    MONTE_CARLO,
    MONTE_CARLO_EDGE,
    UNTRAINED,
    array,
    draw_histogram,
    draw_points,
    note,
    page,
    sample_names,
    set_top,
)
from caloscale.report.figure_data import Curve, FigureData, Panel
from caloscale.report.verdict import with_uncertainty

ENERGY = "primary energy [GeV]"


@contextmanager
def separations(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """Separation of each observable beside floor, baseline and untrained network."""
    results = [r for r in evaluation.observables.values() if r.separation is not None]
    names = sample_names(evaluation.reference_source)
    with page(10, 0.42 * max(len(results), 1) + 1.9) as figure:
        ax = figure.subplots()
        y = np.arange(len(results))[::-1]

        def column(name: str) -> np.ndarray:
            return np.array([np.nan if getattr(r, name) is None else getattr(r, name) for r in results], dtype=float)

        floor, scatter, perfect = column("floor"), column("floor_uncertainty"), column("perfect")
        smallest = np.nanmin(np.concatenate([perfect, column("separation"), [1e-2]])) / 2
        ax.barh(
            y, floor + scatter, height=0.78, color=MONTE_CARLO, label=f"floor: {names['reference']} halves, +1 s.d."
        )
        ax.plot(perfect, y, "|", color=MONTE_CARLO_EDGE, markersize=15, label="a perfect generator would be near")
        ax.plot(column("untrained"), y, "D", color=UNTRAINED, fillstyle="none", label=names["untrained"])
        ax.plot(column("baseline"), y, "s", color=BASELINE, fillstyle="none", label=names["baseline"])
        value, error = column("separation"), column("uncertainty")
        low = np.minimum(error, value * 0.9)
        ax.errorbar(
            value, y, xerr=[low, error], fmt="o", color=GENERATED, markersize=7, label=names["generated"], zorder=5
        )
        ax.set_xscale("log")
        ax.set_xlim(smallest, 1.5)
        ax.set_ylim(-0.7, len(results) - 0.3)
        ax.set_yticks(y, [r.title for r in results])
        ax.tick_params(axis="y", which="minor", left=False, right=False)
        ax.set_xlabel(f"separation power from {names['reference']} (0 equal, 1 disjoint)")
        figure.legend(loc="outside upper center", ncols=3)
        yield figure


@contextmanager
def response(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """ECAL sum and sampling fraction against the energy, with straight lines and ratio."""
    sums, fraction = data.sums, data.response
    assert sums is not None and fraction is not None
    names = sample_names(evaluation.reference_source)
    with page(11.5, 5.8) as figure:
        axes = figure.subplots(2, 2, height_ratios=(2.4, 1), sharex="col")
        _sums(axes[:, 0], sums, evaluation.linearity, names)
        top, bottom = axes[:, 1]
        for sample in ("reference", "generated", "baseline"):
            draw_points(top, fraction.curves.get(sample), sample, names[sample], line=True)
        top.set_ylabel("sum / E [MeV/GeV]")
        low, high = top.get_ylim()
        top.set_ylim(low - 0.5 * (high - low), high + 0.6 * (high - low))
        top.legend(loc="upper right")
        _ratio(bottom, fraction)
        for ax in axes[1]:
            ax.set_xlabel(ENERGY)
        yield figure


def _sums(axes: np.ndarray, panel: Panel, linearity: Linearity, names: dict[str, str]) -> None:
    top, bottom = axes
    for sample in ("reference", "generated"):
        curve = panel.curves[sample]
        offset, slope = getattr(linearity.line_mev, sample).value, getattr(linearity.slope_mev_per_gev, sample).value
        draw_points(top, curve, sample, names[sample])
        if offset is None or slope is None:
            continue
        x, values, errors = array(curve.x), array(curve.values), array(curve.errors)
        colour = GENERATED if sample == "generated" else MONTE_CARLO_EDGE
        ends = np.array([0.0, float(np.nanmax(x)) * 1.05]) if np.isfinite(x).any() else np.zeros(2)
        top.plot(ends, offset + slope * ends, color=colour, linewidth=1)
        line = offset + slope * x
        bottom.errorbar(
            x,
            100 * (values / line - 1),
            yerr=100 * errors / line,
            fmt="s" if sample == "reference" else "o",
            markerfacecolor="white" if sample == "reference" else colour,
            color=colour,
        )
    top.set_xlim(left=0)
    top.set_ylim(bottom=0)
    top.set_ylabel("mean ECAL sum [MeV]")
    top.legend(loc="upper left")
    deviation = linearity.deviation.generated
    if deviation.value is not None:
        text = with_uncertainty(100 * deviation.value, 100 * (deviation.uncertainty or 0))
        top.text(
            0.97, 0.06, f"largest deviation {text} %", transform=top.transAxes, ha="right", va="bottom", fontsize=11
        )
    bottom.axhline(0, color=MONTE_CARLO_EDGE, linewidth=0.9)
    bottom.set_ylabel("off the line [%]")


def _ratio(ax, panel: Panel) -> None:  # type: ignore[no-untyped-def]
    """Generated over Monte Carlo bin by bin; the positions are the generator's."""
    reference, generated = panel.curves["reference"], panel.curves["generated"]
    base, x = array(reference.values), array(generated.x)
    band = array(reference.errors) / base
    ax.fill_between(array(reference.x), 1 - band, 1 + band, color=MONTE_CARLO, linewidth=0)
    ax.axhline(1, color=MONTE_CARLO_EDGE, linewidth=0.9)
    ax.errorbar(x, array(generated.values) / base, yerr=array(generated.errors) / base, fmt="o", color=GENERATED)
    ax.set_ylabel("ratio")
    ax.yaxis.set_major_locator(MaxNLocator(4))


@contextmanager
def resolution(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """sigma/E of the plain sum and of the sum weighted by absorber, with a/sqrt(E) (+) c."""
    names = sample_names(evaluation.reference_source)
    with page(11.5, 4.8) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        for ax, panel, result, title in (
            (axes[0], data.resolution, evaluation.resolution, "plain sum of the layers"),
            (axes[1], data.weighted_resolution, evaluation.weighted_resolution, "layers weighted by absorber"),
        ):
            assert panel is not None
            percent = panel.model_copy(update={"curves": {k: _percent(c) for k, c in panel.curves.items()}})
            for sample in ("reference", "generated"):
                fit = _fit_curve(ax, percent, result, sample)
                draw_points(ax, percent.curves.get(sample), sample, f"{names[sample]}{fit}")
            ax.set_title(title)
            ax.set_xlabel(ENERGY)
            ax.set_ylim(bottom=0)
        axes[0].set_ylabel(r"$\sigma(\mathrm{sum}/E)$ / mean [%]")
        axes[0].set_ylim(top=axes[0].get_ylim()[1] * 1.35)
        for ax in axes:
            ax.legend(loc="upper right")
        yield figure


def _percent(curve: Curve) -> Curve:
    scaled = {f: tuple(None if v is None else 100 * v for v in getattr(curve, f)) for f in ("values", "errors")}
    return curve.model_copy(update=scaled)


def _fit_curve(ax, panel: Panel, result: Resolution, sample: str) -> str:  # type: ignore[no-untyped-def]
    a, c = getattr(result.stochastic, sample).value, getattr(result.constant, sample).value
    x = array(panel.curves[sample].x)
    if a is None or c is None or not np.isfinite(x).any():
        return ""
    energy = np.linspace(np.nanmin(x) * 0.8, np.nanmax(x) * 1.08, 100)
    ax.plot(
        energy,
        100 * np.sqrt(a**2 / energy + c**2),
        color=GENERATED if sample == "generated" else MONTE_CARLO_EDGE,
        linewidth=1.2,
    )
    return rf": ${100 * a:.1f}\%/\sqrt{{E}} \oplus {100 * c:.1f}\%$"


@contextmanager
def shower_maximum(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """Depth of the maximum against energy, and the layer of the maximum shower by shower."""
    names = sample_names(evaluation.reference_source)
    panel, layers = data.maximum, data.distributions["showerMaximum"]
    assert panel is not None
    with page(11.5, 4.6) as figure:
        left, right = figure.subplots(1, 2)
        for sample in ("reference", "generated"):
            draw_points(left, panel.curves.get(sample), sample, names[sample], line=True)
        left.set_xlabel(ENERGY)
        left.set_ylabel(r"maximum of the gamma fit [$X_0$]")
        left.legend(loc="upper left")
        draw_histogram(right, layers, names, ("generated", "baseline"))
        set_top(right, layers, ("reference", "generated"), 1.45)
        right.set_xlabel("layer of the maximum")
        right.set_ylabel("share of showers")
        right.legend(loc="upper right")
        yield figure


@contextmanager
def measured_angle(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """Measured against true angle, and the distribution of the difference."""
    names = sample_names(evaluation.reference_source)
    panel, errors = data.angle, data.distributions["measuredAngle"]
    assert panel is not None
    with page(11.5, 5.2) as figure:
        grid = figure.add_gridspec(2, 2, height_ratios=(2.2, 1))
        top = figure.add_subplot(grid[0, 0])
        bottom = figure.add_subplot(grid[1, 0], sharex=top)
        right = figure.add_subplot(grid[:, 1])
        for sample in ("reference", "generated", "baseline"):
            curve = panel.curves.get(sample)
            if curve is None:
                continue
            draw_points(top, curve, sample, names[sample])
            off = tuple(None if v is None or x is None else v - x for v, x in zip(curve.values, curve.x))
            if sample != "baseline":
                draw_points(bottom, curve.model_copy(update={"values": off}), sample, names[sample])
        ends = [panel.edges[0] or 0.0, panel.edges[-1] or 0.0]
        top.plot(ends, ends, color="black", linewidth=0.8, linestyle=":")
        bottom.axhline(0, color="black", linewidth=0.8, linestyle=":")
        top.set_ylabel("mean measured angle [deg]")
        bottom.set_ylabel("off [deg]")
        bottom.set_xlabel("true angle [deg]")
        top.tick_params(labelbottom=False)
        top.legend(loc="upper left")
        draw_histogram(right, errors, names, ("generated", "baseline"))
        set_top(right, errors, ("reference", "generated"), 1.4)
        right.set_xlabel("measured minus true angle [deg]")
        right.set_ylabel("share of showers")
        right.legend(loc="upper right")
        yield figure


@contextmanager
def classifier_and_regression(evaluation: Evaluation, data: FigureData) -> Iterator[Page]:
    """ROC curve of the classifier and error of the energy regression."""
    names = sample_names(evaluation.reference_source)
    with page(11.5, 4.8) as figure:
        left, right = figure.subplots(1, 2)
        result = evaluation.classifier
        left.plot([0, 1], [0, 1], color=MONTE_CARLO_EDGE, linestyle=":", linewidth=1)
        if result.value is not None:
            left.plot(array(result.false_positives), array(result.true_positives), color=GENERATED, linewidth=1.8)
            text = f"AUC {with_uncertainty(result.value, result.uncertainty)}\n"
            text += f"{names['reference']} against itself "
            text += with_uncertainty(result.floor, result.floor_uncertainty)
            if result.baseline is not None:
                text += f"\n{names['baseline']} {result.baseline:.3f}"
            left.text(0.97, 0.05, text, transform=left.transAxes, ha="right", va="bottom", fontsize=11, linespacing=1.4)
        else:
            note(left, result.reason or "absent")
        left.set_xlim(0, 1)
        left.set_ylim(0, 1.02)
        left.set_xlabel(f"generated taken for {names['reference']}")
        left.set_ylabel(f"{names['reference']} recognised")
        panel, regression = data.regression, evaluation.regression
        if panel is not None and regression.width is not None:
            draw_histogram(right, panel, names, ("generated",))
            set_top(right, panel, ("reference", "generated"), 1.45)
            right.legend(loc="upper left")
            note(right, f"width\n{_widths(regression.width, names)}")
        right.set_xlabel("regressed energy / E - 1")
        right.set_ylabel("share of showers")
        yield figure


def _widths(width: Compared, names: dict[str, str]) -> str:
    return "\n".join(f"{names[s]} {100 * (getattr(width, s).value or 0):.1f} %" for s in ("reference", "generated"))
