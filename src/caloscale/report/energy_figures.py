"""Figures of response, resolution, shower maximum, angle, classifier and energy regression."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from caloscale.physics.result import Evaluation, Linearity, Resolution
from caloscale.report.drawing import (
    COLOURS,
    GENERATED,
    MONTE_CARLO,
    MONTE_CARLO_EDGE,
    Drawing,
    draw_histogram,
    draw_points,
    new_page,
    note,
    sample_names,
    set_top,
)
from caloscale.report.figure_data import Curve, FigureData, Panel
from caloscale.report.numbers import ABSENT, measured, percent, with_uncertainty
from caloscale.report.shower_figures import PAIR, count_showers

ENERGY = "primary energy [GeV]"


def response(evaluation: Evaluation, data: FigureData) -> Drawing:
    """ECAL sum and sampling fraction against the energy, with straight lines and ratio."""
    names = sample_names(evaluation.reference_source)
    page = new_page(11.5, 5.8)
    axes = page.subplots(2, 2, height_ratios=(2.4, 1), sharex="col")
    _sums(axes[:, 0], data.sums, evaluation.linearity, names)
    top, bottom = axes[:, 1]
    for sample in ("reference", "generated", "baseline"):
        draw_points(top, data.response.curves.get(sample), sample, names[sample], line=True)
    low, high = top.get_ylim()
    top.set(ylabel="sum / E [MeV/GeV]", ylim=(low - 0.5 * (high - low), high + 0.6 * (high - low)))
    top.legend(loc="upper right")
    # generated over Monte Carlo bin by bin; the positions are the generator's
    reference, generated = data.response.curves["reference"], data.response.curves["generated"]
    band = reference.errors / reference.values
    bottom.fill_between(reference.x, 1 - band, 1 + band, color=MONTE_CARLO, linewidth=0)
    bottom.axhline(1, color=MONTE_CARLO_EDGE, linewidth=0.9)
    draw_points(bottom, _scaled(generated, 1 / reference.values), "generated", "")
    bottom.set_ylabel("ratio")
    bottom.yaxis.set_major_locator(MaxNLocator(4))
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
        ends = np.array([0.0, float(np.nanmax(curve.x)) * 1.05]) if np.isfinite(curve.x).any() else np.zeros(2)
        top.plot(ends, offset + slope * ends, color=COLOURS[sample], linewidth=1)
        line = offset + slope * curve.x
        line = np.where(line > 0, line, np.nan)  # that of a poor generator may cross zero; no ratio is drawn there
        draw_points(bottom, _scaled(curve, 100 / line, -100), sample, "")
    top.set(xlim=(0, None), ylim=(0, None), ylabel="mean ECAL sum [MeV]")
    top.legend(loc="upper left")
    text = f"at most {percent(linearity.deviation.generated)} from the line"
    top.text(0.97, 0.06, text, transform=top.transAxes, ha="right", va="bottom", fontsize=11)
    bottom.axhline(0, color=MONTE_CARLO_EDGE, linewidth=0.9)
    bottom.set_ylabel("from line [%]")


def _scaled(curve: Curve, factor: float | np.ndarray, offset: float | np.ndarray = 0.0) -> Curve:
    return curve.model_copy(update={"values": factor * curve.values + offset, "errors": factor * curve.errors})


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
            draw_points(ax, _scaled(curve, 100), sample, f"{names[sample]}{fit}")
        ax.set(title=title, xlabel=ENERGY, ylim=(0, None))
        against = [f"{percent(r.sigma.generated)} against {percent(r.sigma.reference)}" for r in result.ranges]
        seen.append(f"{title}: {_per_range(evaluation, against)}.")
    axes[0].set(ylabel=r"$\sigma(\mathrm{sum}/E)$ / mean [%]", ylim=(None, axes[0].get_ylim()[1] * 1.35))
    for ax in axes:
        ax.legend(loc="upper right")
    return Drawing(
        "resolution",
        "Energy resolution",
        "Width of sum/E (1.253 times the mean absolute deviation) over its mean, with bootstrap errors and a fit. The "
        "plain sum has a large constant term, because the thick layers at the back sample half; weights undo this. "
        f"{count_showers(evaluation)}",
        f"Resolution falling with the energy, generator against Monte Carlo. {' '.join(seen)}",
        page,
    )


def _fit_curve(ax: Axes, curve: Curve, result: Resolution, sample: str) -> str:
    a, c = getattr(result.stochastic, sample).value, getattr(result.constant, sample).value
    if a is None or c is None or not np.isfinite(curve.x).any():
        return ""
    energy = np.linspace(np.nanmin(curve.x) * 0.8, np.nanmax(curve.x) * 1.08, 100)
    ax.plot(energy, 100 * np.sqrt(a**2 / energy + c**2), color=COLOURS[sample], linewidth=1.2)
    return rf": ${100 * a:.1f}\%/\sqrt{{E}} \oplus {100 * c:.1f}\%$"


def maximum_and_angle(evaluation: Evaluation, data: FigureData) -> Drawing:
    """Depth of the maximum against energy; measured against true angle."""
    names = sample_names(evaluation.reference_source)
    page = new_page(11.5, 5.2)
    grid = page.add_gridspec(2, 2, height_ratios=(2.2, 1))
    left, top = page.add_subplot(grid[:, 0]), page.add_subplot(grid[0, 1])
    bottom = page.add_subplot(grid[1, 1], sharex=top)
    for sample in ("reference", "generated", "baseline"):
        angle = data.angle.curves[sample]
        draw_points(top, angle, sample, names[sample])
        if sample != "baseline":
            draw_points(left, data.maximum.curves.get(sample), sample, names[sample], line=True)
            draw_points(bottom, _scaled(angle, 1, -angle.x), sample, names[sample])
    left.set(xlabel=ENERGY, ylabel=r"maximum of the gamma fit [$X_0$]")
    ends = [data.angle.edges[0], data.angle.edges[-1]]
    top.plot(ends, ends, color="black", linewidth=0.8, linestyle=":")
    bottom.axhline(0, color="black", linewidth=0.8, linestyle=":")
    top.set_ylabel("mean measured angle [deg]")
    top.tick_params(labelbottom=False)
    bottom.set(ylabel="difference [deg]", xlabel="true angle [deg]")
    for ax in (left, top):
        ax.legend(loc="upper left")
    depths = [
        f"{measured(m.depth_x0.generated)} against {measured(m.depth_x0.reference)} X0"
        for m in evaluation.shower_maximum
    ]
    largest = [f"{_largest(data.angle.curves[sample])} in {name}" for sample, name in PAIR]
    return Drawing(
        "maximum_and_angle",
        "Shower maximum and measured angle",
        "Left: maximum of a gamma distribution fitted to the mean profile, along the normal of the face. Right: the "
        "angle measured from the shower (mean over the layers of the angle between the barycentres) against the angle "
        f"of the primary. {count_showers(evaluation)}",
        f"Left: depth of the maximum, generator against Monte Carlo: {_per_range(evaluation, depths)}. Right: the mean "
        f"measured angle against the true angle, near the diagonal; largest difference {', '.join(largest)}.",
        page,
    )


def _largest(curve: Curve) -> str:
    difference = np.abs(curve.values - curve.x)
    return f"{np.nanmax(difference):.2g} degrees" if np.isfinite(difference).any() else ABSENT


def classifier_and_regression(evaluation: Evaluation, data: FigureData) -> Drawing | None:
    """ROC and learning curve of the classifier, and error of the energy regression."""
    result, width = evaluation.classifier, evaluation.regression.width
    if result.value is None and data.regression is None:
        return None
    names = sample_names(evaluation.reference_source)
    page = new_page(16, 4.8)
    left, middle, right = page.subplots(1, 3)
    seen = f"Left: no ROC curve: {result.reason}."
    left.plot([0, 1], [0, 1], color=MONTE_CARLO_EDGE, linestyle=":", linewidth=1)
    if result.value is None:
        note(left, result.reason or ABSENT)
    else:
        left.plot(result.false_positives, result.true_positives, color=GENERATED, linewidth=1.8)
        auc, null = measured(result), with_uncertainty(result.null, result.null_uncertainty)
        text = f"AUC {auc}\nnull: {names['reference']} against itself {null}"
        if result.baseline is not None:
            text += f"\n{names['baseline']} {result.baseline:.3f}"
        left.text(0.97, 0.05, text, transform=left.transAxes, ha="right", va="bottom", fontsize=11, linespacing=1.4)
        points = ", ".join(f"{point.value:.3f} with {point.showers}" for point in result.learning_curve)
        seen = (
            f"Left: ROC curve with an AUC of {auc}. Middle: the AUC is {points} training showers of each kind; "
            f"extrapolated it is {measured(result.limit)}."
        )
        _learning_curve(middle, evaluation)
    left.set(xlim=(0, 1), ylim=(0, 1.02), xlabel=f"generated classified as {names['reference']}")
    left.set_ylabel(f"{names['reference']} classified as such")
    middle.set(xscale="log", ylim=(0.48, 1.02), xlabel="training showers of each kind", ylabel="classifier AUC")
    right.set(xlabel="regressed energy / E - 1", ylabel="share of showers")
    if data.regression is not None and width is not None:
        draw_histogram(right, data.regression, names, ("generated",))
        set_top(right, data.regression, ("reference", "generated"), 1.45)
        right.legend(loc="upper left")
        texts = (f"{names[s]} {100 * (getattr(width, s).value or 0):.1f} %" for s, _ in PAIR)
        note(right, "\n".join(["width", *texts]))
        widths = f"{percent(width.generated)} in the generator, {percent(width.reference)} in Monte Carlo"
        seen += f" Right: error of the energy, width {widths}."
    return Drawing(
        "classifier_and_regression",
        "Classifier and energy regression",
        "Left: boosted trees on per-shower observables separate generated from Monte Carlo showers (the diagonal: "
        "they cannot). Middle: the AUC rises with the number of showers that they are trained on, so compare runs at "
        "equal numbers; band: extrapolated to infinitely many. Right: error of the energy by a linear regression that "
        f"was trained on Monte Carlo. {count_showers(evaluation)}",
        seen,
        page,
    )


def _learning_curve(ax: Axes, evaluation: Evaluation) -> None:
    """The AUC against the number of training showers, with the curve that is extrapolated."""
    points, limit = evaluation.classifier.learning_curve, evaluation.classifier.limit
    showers = np.array([point.showers for point in points], dtype=float)
    value, error = ([getattr(point, name) for point in points] for name in ("value", "uncertainty"))
    ax.errorbar(showers, value, yerr=error, fmt="o", color=GENERATED, label="trained and tested")
    if limit.value is not None and limit.uncertainty is not None:
        x = np.geomspace(showers[0], 30 * showers[-1], 100)
        ax.plot(x, limit.value - (limit.value - value[-1]) * np.sqrt(showers[-1] / x), color=GENERATED, linewidth=1)
        band = (limit.value - limit.uncertainty, limit.value + limit.uncertainty)
        ax.axhspan(*band, color=MONTE_CARLO, zorder=0, label=f"extrapolated: {measured(limit)}")
    ax.legend(loc="lower right")


def _per_range(evaluation: Evaluation, texts: Sequence[str]) -> str:
    return ", ".join(f"{text} at {energy.label}" for text, energy in zip(texts, evaluation.energy_ranges))
