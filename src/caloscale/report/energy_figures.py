"""Figures of separations, response, resolution, shower maximum, angle, classifier and energy regression."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from caloscale.physics.result import Compared, Evaluation, Linearity, Resolution
from caloscale.report.drawing import (
    BASELINE,
    GENERATED,
    MONTE_CARLO,
    MONTE_CARLO_EDGE,
    UNTRAINED,
    Drawing,
    draw_histogram,
    draw_points,
    new_page,
    note,
    sample_names,
    set_top,
)
from caloscale.report.figure_data import Curve, FigureData, Panel
from caloscale.report.numbers import ABSENT, measured, percent, plain, with_uncertainty
from caloscale.report.shower_figures import count_showers

ENERGY = "primary energy [GeV]"
PAIR = (("reference", "Monte Carlo"), ("generated", "generator"))


def separations(evaluation: Evaluation, data: FigureData) -> Drawing | None:
    """Separation of each observable with its expected null, baseline and untrained network."""
    results = [r for r in evaluation.observables.values() if r.separation is not None]
    if not results:
        return None
    names = sample_names(evaluation.reference_source)
    page = new_page(10, 0.42 * len(results) + 1.9)
    ax = page.subplots()
    y = np.arange(len(results))[::-1]

    def column(name: str) -> np.ndarray:
        return np.array([getattr(r, name) for r in results], dtype=float)

    half, scatter, null = column("self_separation"), column("self_separation_uncertainty"), column("expected_null")
    smallest = np.nanmin(np.concatenate([null, column("separation"), [1e-2]])) / 2
    ax.barh(
        y, half + scatter, height=0.78, color=MONTE_CARLO, label=f"self-separation of {names['reference']}, +1 s.d."
    )
    ax.plot(null, y, "|", color=MONTE_CARLO_EDGE, markersize=15, label="expected null")
    ax.plot(column("untrained"), y, "D", color=UNTRAINED, fillstyle="none", label=names["untrained"])
    ax.plot(column("baseline"), y, "s", color=BASELINE, fillstyle="none", label=names["baseline"])
    value, error = column("separation"), column("uncertainty")
    low = np.minimum(error, value * 0.9)
    ax.errorbar(value, y, xerr=[low, error], fmt="o", color=GENERATED, markersize=7, label=names["generated"], zorder=5)
    ax.set_xscale("log")
    ax.set_xlim(smallest, 1.5)
    ax.set_ylim(-0.7, len(results) - 0.3)
    ax.set_yticks(y, [r.title for r in results])
    ax.tick_params(axis="y", which="minor", left=False, right=False)
    ax.set_xlabel(f"separation power from {names['reference']} (0 equal, 1 disjoint)")
    page.legend(loc="outside upper center", ncols=3)
    seen = [f"{r.title} {plain(r.separation)} (expected null {plain(r.expected_null)})" for r in results]
    return Drawing(
        "separations",
        "All observables at a glance",
        "Separation power from Monte Carlo of the generator, the untrained network and the mean training shower "
        "scaled by energy. Grey: self-separation of the Monte Carlo, from random halves. Tick: expected null, the "
        f"self-separation at the numbers of showers compared. {count_showers(evaluation)}",
        f"Separation of the generator from Monte Carlo on a logarithmic axis: {', '.join(seen)}.",
        page,
    )


def response(evaluation: Evaluation, data: FigureData) -> Drawing:
    """ECAL sum and sampling fraction against the energy, with straight lines and ratio."""
    names = sample_names(evaluation.reference_source)
    page = new_page(11.5, 5.8)
    axes = page.subplots(2, 2, height_ratios=(2.4, 1), sharex="col")
    _sums(axes[:, 0], data.sums, evaluation.linearity, names)
    top, bottom = axes[:, 1]
    for sample in ("reference", "generated", "baseline"):
        draw_points(top, data.response.curves.get(sample), sample, names[sample], line=True)
    top.set_ylabel("sum / E [MeV/GeV]")
    low, high = top.get_ylim()
    top.set_ylim(low - 0.5 * (high - low), high + 0.6 * (high - low))
    top.legend(loc="upper right")
    _ratio(bottom, data.response)
    for ax in axes[1]:
        ax.set_xlabel(ENERGY)
    ratios = _per_range(evaluation, [measured(r.ratio) for r in evaluation.response])
    return Drawing(
        "response",
        "Response and linearity",
        "Left: mean ECAL sum with a straight line through each sample (least squares with variance proportional "
        "to E) and the deviation from its own line. Right: sum/E and its ratio to Monte Carlo. "
        f"{count_showers(evaluation)}",
        "Left: the mean sum rises with the energy along a straight line; the largest deviation from it is "
        f"{percent(evaluation.linearity.deviation.generated)} in the generator, "
        f"{percent(evaluation.linearity.deviation.reference)} in Monte Carlo. Right: ratio of the response to Monte "
        f"Carlo, {ratios}.",
        page,
    )


def _sums(axes: Sequence[Axes], panel: Panel, linearity: Linearity, names: dict[str, str]) -> None:
    top, bottom = axes
    for sample in ("reference", "generated"):
        curve = panel.curves[sample]
        offset, slope = getattr(linearity.line_mev, sample).value, getattr(linearity.slope_mev_per_gev, sample).value
        draw_points(top, curve, sample, names[sample])
        if offset is None or slope is None:
            continue
        colour = GENERATED if sample == "generated" else MONTE_CARLO_EDGE
        ends = np.array([0.0, float(np.nanmax(curve.x)) * 1.05]) if np.isfinite(curve.x).any() else np.zeros(2)
        top.plot(ends, offset + slope * ends, color=colour, linewidth=1)
        line = offset + slope * curve.x
        line = np.where(line > 0, line, np.nan)  # that of a poor generator may cross zero; no ratio is drawn there
        bottom.errorbar(
            curve.x,
            100 * (curve.values / line - 1),
            yerr=100 * curve.errors / line,
            fmt="s" if sample == "reference" else "o",
            markerfacecolor="white" if sample == "reference" else colour,
            color=colour,
        )
    top.set_xlim(left=0)
    top.set_ylim(bottom=0)
    top.set_ylabel("mean ECAL sum [MeV]")
    top.legend(loc="upper left")
    text = f"non-linearity {percent(linearity.deviation.generated)}"
    top.text(0.97, 0.06, text, transform=top.transAxes, ha="right", va="bottom", fontsize=11)
    bottom.axhline(0, color=MONTE_CARLO_EDGE, linewidth=0.9)
    bottom.set_ylabel("from line [%]")


def _ratio(ax: Axes, panel: Panel) -> None:
    """Generated over Monte Carlo bin by bin; the positions are the generator's."""
    reference, generated = panel.curves["reference"], panel.curves["generated"]
    band = reference.errors / reference.values
    ax.fill_between(reference.x, 1 - band, 1 + band, color=MONTE_CARLO, linewidth=0)
    ax.axhline(1, color=MONTE_CARLO_EDGE, linewidth=0.9)
    values, errors = generated.values / reference.values, generated.errors / reference.values
    ax.errorbar(generated.x, values, yerr=errors, fmt="o", color=GENERATED)
    ax.set_ylabel("ratio")
    ax.yaxis.set_major_locator(MaxNLocator(4))


def resolution(evaluation: Evaluation, data: FigureData) -> Drawing:
    """sigma/E of the plain sum and of the sum weighted by absorber, with a/sqrt(E) (+) c."""
    names = sample_names(evaluation.reference_source)
    page = new_page(11.5, 4.8)
    axes = page.subplots(1, 2, sharey=True)
    seen = []
    for ax, panel, result, title in (
        (axes[0], data.resolution, evaluation.resolution, "plain sum of the layers"),
        (axes[1], data.weighted_resolution, evaluation.weighted_resolution, "layers weighted by absorber"),
    ):
        for sample in ("reference", "generated"):
            curve = panel.curves[sample]
            fit = _fit_curve(ax, curve, result, sample)
            in_percent = curve.model_copy(update={"values": 100 * curve.values, "errors": 100 * curve.errors})
            draw_points(ax, in_percent, sample, f"{names[sample]}{fit}")
        ax.set_title(title)
        ax.set_xlabel(ENERGY)
        ax.set_ylim(bottom=0)
        against = [f"{percent(r.sigma.generated)} against {percent(r.sigma.reference)}" for r in result.ranges]
        seen.append(f"{title}: {_per_range(evaluation, against)}.")
    axes[0].set_ylabel(r"$\sigma(\mathrm{sum}/E)$ / mean [%]")
    axes[0].set_ylim(top=axes[0].get_ylim()[1] * 1.35)
    for ax in axes:
        ax.legend(loc="upper right")
    return Drawing(
        "resolution",
        "Energy resolution",
        "Standard deviation of sum/E over its mean, with bootstrap errors and a fit. The plain sum has a large "
        "constant term, because the thick layers at the back sample half; weights undo this. "
        f"{count_showers(evaluation)}",
        f"Resolution falling with the energy, generator against Monte Carlo. {' '.join(seen)}",
        page,
    )


def _fit_curve(ax: Axes, curve: Curve, result: Resolution, sample: str) -> str:
    a, c = getattr(result.stochastic, sample).value, getattr(result.constant, sample).value
    if a is None or c is None or not np.isfinite(curve.x).any():
        return ""
    energy = np.linspace(np.nanmin(curve.x) * 0.8, np.nanmax(curve.x) * 1.08, 100)
    colour = GENERATED if sample == "generated" else MONTE_CARLO_EDGE
    ax.plot(energy, 100 * np.sqrt(a**2 / energy + c**2), color=colour, linewidth=1.2)
    return rf": ${100 * a:.1f}\%/\sqrt{{E}} \oplus {100 * c:.1f}\%$"


def shower_maximum(evaluation: Evaluation, data: FigureData) -> Drawing:
    """Depth of the maximum against energy, and the layer of the maximum shower by shower."""
    names = sample_names(evaluation.reference_source)
    layers = data.distributions["showerMaximum"]
    page = new_page(11.5, 4.6)
    left, right = page.subplots(1, 2)
    for sample in ("reference", "generated"):
        draw_points(left, data.maximum.curves.get(sample), sample, names[sample], line=True)
    left.set_xlabel(ENERGY)
    left.set_ylabel(r"maximum of the gamma fit [$X_0$]")
    left.legend(loc="upper left")
    draw_histogram(right, layers, names, ("generated", "baseline"))
    set_top(right, layers, ("reference", "generated"), 1.45)
    right.set_xlabel("layer of the maximum")
    right.set_ylabel("share of showers")
    right.legend(loc="upper right")
    depths = [
        f"{measured(m.depth_x0.generated)} against {measured(m.depth_x0.reference)} X0"
        for m in evaluation.shower_maximum
    ]
    return Drawing(
        "shower_maximum",
        "Shower maximum",
        "Left: maximum of a gamma distribution fitted to the mean profile, along the normal of the face. Right: "
        f"layer with the most energy, shower by shower. {count_showers(evaluation)}",
        f"Left: depth of the maximum, generator against Monte Carlo: {_per_range(evaluation, depths)}. Right: "
        "histogram of the layer with the most energy, separation "
        f"{plain(evaluation.observables['showerMaximum'].separation)}.",
        page,
    )


def measured_angle(evaluation: Evaluation, data: FigureData) -> Drawing:
    """Measured against true angle, and the distribution of the difference."""
    names = sample_names(evaluation.reference_source)
    errors = data.distributions["measuredAngle"]
    page = new_page(11.5, 5.2)
    grid = page.add_gridspec(2, 2, height_ratios=(2.2, 1))
    top = page.add_subplot(grid[0, 0])
    bottom = page.add_subplot(grid[1, 0], sharex=top)
    right = page.add_subplot(grid[:, 1])
    for sample in ("reference", "generated", "baseline"):
        curve = data.angle.curves[sample]
        draw_points(top, curve, sample, names[sample])
        if sample != "baseline":
            difference = curve.model_copy(update={"values": curve.values - curve.x})
            draw_points(bottom, difference, sample, names[sample])
    ends = [data.angle.edges[0], data.angle.edges[-1]]
    top.plot(ends, ends, color="black", linewidth=0.8, linestyle=":")
    bottom.axhline(0, color="black", linewidth=0.8, linestyle=":")
    top.set_ylabel("mean measured angle [deg]")
    bottom.set_ylabel("difference [deg]")
    bottom.set_xlabel("true angle [deg]")
    top.tick_params(labelbottom=False)
    top.legend(loc="upper left")
    draw_histogram(right, errors, names, ("generated", "baseline"))
    set_top(right, errors, ("reference", "generated"), 1.4)
    right.set_xlabel("measured minus true angle [deg]")
    right.set_ylabel("share of showers")
    right.legend(loc="upper right")
    seen = [f"{_largest(data.angle.curves[sample])} in {name}" for sample, name in PAIR]
    return Drawing(
        "measured_angle",
        "Measured angle",
        "The angle measured from the shower (mean over the layers of the angle between the barycentres) against "
        f"the angle of the primary, and the distribution of the difference. {count_showers(evaluation)}",
        "Left: the mean measured angle against the true angle, near the diagonal; largest difference "
        f"{', '.join(seen)}. Right: histogram of the difference, separation "
        f"{plain(evaluation.observables['measuredAngle'].separation)}.",
        page,
    )


def _largest(curve: Curve) -> str:
    difference = np.abs(curve.values - curve.x)
    return f"{np.nanmax(difference):.2g} degrees" if np.isfinite(difference).any() else ABSENT


def classifier_and_regression(evaluation: Evaluation, data: FigureData) -> Drawing | None:
    """ROC curve of the classifier and error of the energy regression."""
    result, width = evaluation.classifier, evaluation.regression.width
    if result.value is None and data.regression is None:
        return None
    names = sample_names(evaluation.reference_source)
    page = new_page(11.5, 4.8)
    left, right = page.subplots(1, 2)
    left.plot([0, 1], [0, 1], color=MONTE_CARLO_EDGE, linestyle=":", linewidth=1)
    if result.value is not None:
        left.plot(result.false_positives, result.true_positives, color=GENERATED, linewidth=1.8)
        text = f"AUC {with_uncertainty(result.value, result.uncertainty)}\nnull: {names['reference']} against itself "
        text += with_uncertainty(result.null, result.null_uncertainty)
        if result.baseline is not None:
            text += f"\n{names['baseline']} {result.baseline:.3f}"
        left.text(0.97, 0.05, text, transform=left.transAxes, ha="right", va="bottom", fontsize=11, linespacing=1.4)
        seen = f"Left: ROC curve with an AUC of {with_uncertainty(result.value, result.uncertainty)}."
    else:
        seen = f"Left: no ROC curve: {result.reason}."
        note(left, result.reason or ABSENT)
    left.set_xlim(0, 1)
    left.set_ylim(0, 1.02)
    left.set_xlabel(f"generated classified as {names['reference']}")
    left.set_ylabel(f"{names['reference']} classified as such")
    right.set_xlabel("regressed energy / E - 1")
    right.set_ylabel("share of showers")
    if data.regression is not None and width is not None:
        draw_histogram(right, data.regression, names, ("generated",))
        set_top(right, data.regression, ("reference", "generated"), 1.45)
        right.legend(loc="upper left")
        note(right, f"width\n{_widths(width, names)}")
        seen += f" Right: error of the energy, width {percent(width.generated)} in the generator, "
        seen += f"{percent(width.reference)} in Monte Carlo."
    return Drawing(
        "classifier_and_regression",
        "Classifier and energy regression",
        "Left: boosted trees on per-shower observables separate generated from Monte Carlo showers (the diagonal: "
        "they cannot). Right: error of the energy by a linear regression that was trained on Monte Carlo. "
        f"{count_showers(evaluation)}",
        seen,
        page,
    )


def learning_curve(evaluation: Evaluation, data: FigureData) -> Drawing | None:
    """The AUC of the classifier against its number of training showers, with the curve that is extrapolated."""
    result, limit = evaluation.classifier, evaluation.classifier.limit
    points = result.learning_curve
    if not points:
        return None
    page = new_page(9, 4.4)
    ax = page.subplots()
    showers = np.array([point.showers for point in points], dtype=float)
    value, error = ([getattr(point, name) for point in points] for name in ("value", "uncertainty"))
    ax.errorbar(showers, value, yerr=error, fmt="o", color=GENERATED, label="trained and tested")
    if limit.value is not None and limit.uncertainty is not None:
        last, end = value[-1], limit.value
        x = np.geomspace(showers[0], 30 * showers[-1], 100)
        ax.plot(x, end - (end - last) * np.sqrt(showers[-1] / x), color=GENERATED, linewidth=1)
        band = (end - limit.uncertainty, end + limit.uncertainty)
        ax.axhspan(*band, color=MONTE_CARLO, zorder=0, label=f"extrapolated: {measured(limit)}")
    ax.set_xscale("log")
    ax.set_ylim(0.48, 1.02)
    ax.set_xlabel("training showers of each kind")
    ax.set_ylabel("classifier AUC")
    ax.legend(loc="lower right")
    seen = ", ".join(f"{point.value:.3f} with {point.showers}" for point in points)
    return Drawing(
        "learning_curve",
        "Learning curve of the classifier",
        "The AUC against the number of showers of each kind that the classifier is trained on, and its extrapolation "
        "to infinitely many (band: one standard deviation). The AUC rises with the number: compare runs at equal "
        f"numbers only. Tested on {result.test_generated:,} generated and {result.test_reference:,} held-out Monte "
        "Carlo showers.",
        f"The AUC is {seen} training showers of each kind; extrapolated it is {measured(limit)}.",
        page,
    )


def _widths(width: Compared, names: dict[str, str]) -> str:
    return "\n".join(f"{names[s]} {100 * (getattr(width, s).value or 0):.1f} %" for s in ("reference", "generated"))


def _per_range(evaluation: Evaluation, texts: Sequence[str]) -> str:
    return ", ".join(f"{text} at {energy.label}" for text, energy in zip(texts, evaluation.energy_ranges))
