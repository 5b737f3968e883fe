"""Figures of the showers' shapes: profiles, cell spectrum, distributions, moments, correlations, maps."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure as Page
from matplotlib.ticker import MaxNLocator

from caloscale.physics.binning import UNITS
from caloscale.physics.result import Evaluation, Separation
from caloscale.report.drawing import (
    Drawing,
    draw_histogram,
    draw_ratio,
    hide_labels,
    legend_above,
    new_page,
    new_panels,
    note,
    sample_names,
    set_log,
    set_top,
)
from caloscale.report.figure_data import FigureData, Map, Panel
from caloscale.report.numbers import plain, with_uncertainty

BAND = "Filled: Monte Carlo with its statistical band (hatched). Line: generator."
SHOWN = ("generated", "baseline", "untrained")
PAIR = (("reference", "Monte Carlo"), ("generated", "generator"))


def count_showers(evaluation: Evaluation) -> str:
    """The numbers of showers in a figure."""
    counts = evaluation.showers
    return f"{counts.generated:,} generated and {counts.reference:,} held-out Monte Carlo showers."


def shower_and_profile(evaluation: Evaluation, data: FigureData) -> Drawing:
    """A Monte Carlo shower, a generated one, and the mean profile of one range of energy with its ratio."""
    names = sample_names(evaluation.reference_source)
    shower, k = data.examples[len(data.examples) // 2], len(data.longitudinal) // 2
    panel, energy = data.longitudinal[k], evaluation.energy_ranges[k]
    highest = max(shower.reference.max(), shower.generated.max()) or 1.0
    page = new_page(7.4, 4.2)
    showers, profile = page.subfigures(1, 2, squeeze=False, width_ratios=(1, 1.15))[0]
    for ax, (sample, _) in zip(showers.subplots(2, 1, sharex=True), PAIR):
        cells, norm = np.ma.masked_less_equal(getattr(shower, sample), 0), LogNorm(highest / 1e4, highest)
        ax.pcolormesh(cells, norm=norm, cmap="viridis", rasterized=True)
        ax.set(title=names[sample], ylabel="cell")
    ax.set_xlabel(f"layer ({shower.title})")
    top, bottom = profile.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    draw_histogram(top, panel, names, ("generated",))
    set_top(top, panel, ("reference", "generated"), 1.4)
    top.set(title=energy.label, ylabel="mean energy per layer [MeV]")
    top.legend(loc="upper left")
    draw_ratio(bottom, panel)
    bottom.set_xlabel("layer")
    return Drawing(
        "shower_and_profile",
        "A shower and the profile",
        f"Left: a {names['reference']} shower and the generated one of the nearest primary. Right: mean "
        f"energy per layer, with the ratio. {count_showers(evaluation)}",
        f"A {names['reference']} shower above a generated one, and their mean profiles: {_peaks(panel)}.",
        page,
    )


def longitudinal_profile(evaluation: Evaluation, data: FigureData) -> Drawing:
    """Mean energy per layer in at most three ranges of energy, with ratios."""
    results = evaluation.observables["longitudinalProfile"].ranges
    columns = min(len(data.longitudinal), 3)
    chosen = np.unique(np.linspace(0, len(data.longitudinal) - 1, columns).astype(int))
    names = sample_names(evaluation.reference_source)
    page = new_page(4.6 * columns + 0.8, 5.6)
    axes = page.subplots(2, columns, height_ratios=(3, 1), sharex=True, squeeze=False)
    seen = []
    for k, top, bottom in zip(chosen, *axes):
        panel, energy = data.longitudinal[k], evaluation.energy_ranges[k]
        draw_histogram(top, panel, names, ("generated", "baseline"))
        set_top(top, panel, ("reference", "generated"), 1.45)
        top.set_title(f"{energy.label}\n{energy.reference:,} Monte Carlo, {energy.generated:,} generated", fontsize=12)
        note(top, _separation_note(results[k]))
        hide_labels(top)
        draw_ratio(bottom, panel)
        bottom.set(xlabel="layer", ylabel="ratio" if bottom is axes[1, 0] else "")
        bottom.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        seen.append(f"{energy.label}: {_peaks(panel)}.")
    axes[0, 0].set_ylabel("mean energy per layer [MeV]")
    if axes[0, 0].get_legend_handles_labels()[0]:
        axes[0, 0].legend(loc="upper left")
    return Drawing(
        "longitudinal_profile",
        "Longitudinal profile",
        f"Mean energy per layer in ranges of primary energy; the title of a panel states its numbers of showers. "
        f"{BAND} Where the absorber gets thicker, the layers sample less. S is the separation of the profiles as "
        "histograms of unit sum.",
        f"Mean energy per layer, rising to a maximum and falling towards the back. {' '.join(seen)}",
        page,
    )


def transverse_profiles(evaluation: Evaluation, data: FigureData) -> Drawing:
    """Mean energy per column and row of cells, linear and logarithmic, with ratios."""
    names = sample_names(evaluation.reference_source)
    first, second = data.transverse_axes
    page = new_page(11, 8.2)
    axes = page.subplots(3, 2, height_ratios=(2.2, 2.2, 1), sharex="col")
    seen = []
    keys = ("transverseProfileX", "transverseProfileY")
    for panel, key, unit, linear, logarithmic, ratio in zip(data.transverse, keys, data.transverse_units, *axes):
        draw_histogram(linear, panel, names, ("generated", "baseline"))
        set_top(linear, panel, ("reference", "generated"))
        linear.set_title(f"across, {panel.title}" + (" (the plane of the angle)" if panel.title == "x" else ""))
        note(linear, _separation_note(evaluation.observables[key]))
        draw_histogram(logarithmic, panel, names, SHOWN)
        set_log(logarithmic, panel)
        draw_ratio(ratio, panel)
        ratio.set(xlabel=f"{panel.title} [{unit}]", ylabel="ratio" if ratio is axes[2, 0] else "")
        hide_labels(linear)
        hide_labels(logarithmic)
        seen.append(f"In {panel.title}, {_ratio_in_words(panel)}")
    for ax in axes[:2, 0]:
        ax.set_ylabel("mean energy [MeV]")
    legend_above(page, axes[1, 0])
    return Drawing(
        "transverse_profiles",
        "Transverse profiles",
        f"Mean energy per column ({first}) and row ({second}) of cells, all energies and angles, linear and "
        f"logarithmic. {BAND} {count_showers(evaluation)}",
        f"Mean energy across the shower, with a narrow maximum in the middle. {' '.join(seen)}",
        page,
    )


def cell_spectrum(evaluation: Evaluation, data: FigureData) -> Drawing:
    """Spectrum of the cells' energies, and occupancy against threshold."""
    names = sample_names(evaluation.reference_source)
    page = new_page(11.5, 5.8)
    axes = page.subplots(2, 2, height_ratios=(3, 1), sharex="col")
    top, bottom = axes[:, 0]
    top.set_xscale("log")
    draw_histogram(top, data.spectrum, names, SHOWN)
    set_log(top, data.spectrum)
    top.set_ylim(top=top.get_ylim()[1] * 3)
    top.axvline(1e3 * evaluation.hits_threshold_gev, color="black", linewidth=0.9, linestyle=":")
    top.set_ylabel("cells per shower and bin")
    legend_above(page, top)
    note(top, _separation_note(evaluation.observables["cellSpectrum"]))
    draw_ratio(bottom, data.spectrum)
    bottom.set_xlabel("cell energy [MeV]")
    # the thresholds as bins around them, so that the same drawing serves
    step = np.sqrt(data.occupancy.edges[1] / data.occupancy.edges[0])
    edges = np.append(data.occupancy.edges / step, data.occupancy.edges[-1] * step)
    above = data.occupancy.model_copy(update={"edges": edges})
    top, bottom = axes[:, 1]
    top.set_xscale("log")
    draw_histogram(top, above, names, SHOWN)
    set_top(top, above, ("reference", "generated", "baseline"), 1.15)
    top.set_ylabel("part of the cells above threshold")
    draw_ratio(bottom, above)
    bottom.set(xlabel="threshold [MeV]", ylabel="")
    for ax in axes[0]:
        hide_labels(ax)
    return Drawing(
        "cell_spectrum",
        "Cells",
        "Left: cells per shower by energy, ten bins per decade; dotted: threshold of a hit. Right: part of the "
        f"cells above a threshold (one minus the sparsity). {BAND} {count_showers(evaluation)}",
        f"Number of cells against cell energy on logarithmic axes. In the spectrum, {_ratio_in_words(data.spectrum)} "
        f"In the part of cells above a threshold, {_ratio_in_words(data.occupancy)}",
        page,
    )


def distributions(evaluation: Evaluation, data: FigureData) -> Drawing:
    """The scalar observables as histograms."""
    results = evaluation.observables
    seen = [f"{results[name].title} {plain(results[name].separation)}" for name in data.distributions]
    return Drawing(
        "distributions",
        "Distributions",
        "One number per shower, all energies. What lies beyond an axis is in its outermost bin. "
        f"{count_showers(evaluation)}",
        f"One histogram for each observable, Monte Carlo filled, generator as a line. Separations: {', '.join(seen)}.",
        _histograms(evaluation, data.distributions, 4),
    )


def moments(evaluation: Evaluation, data: FigureData) -> Drawing:
    """Moments about the barycentre along z, x, y."""
    seen = [f"{panel.title}: {_means(panel)}" for panel in data.moments.values()]
    return Drawing(
        "moments",
        "Moments",
        f"Moments 1 to 3 about the barycentre: along the depth, in x and in y. {count_showers(evaluation)}",
        f"Nine histograms, Monte Carlo filled, generator as a line. Means: {'; '.join(seen)}.",
        _histograms(evaluation, data.moments, 3),
    )


def _histograms(evaluation: Evaluation, panels: Mapping[str, Panel], columns: int) -> Page:
    names = sample_names(evaluation.reference_source)
    page, axes = new_panels(len(panels), columns, 3.9, 3.5)
    for ax, (name, panel) in zip(axes, panels.items()):
        draw_histogram(ax, panel, names, SHOWN)
        set_top(ax, panel, ("reference", "generated"), 1.45)
        ax.set_title(f"{panel.title} [{UNITS[name]}]" if name in UNITS else panel.title, fontsize=12)
        ax.xaxis.set_major_locator(MaxNLocator(5))
        if name in evaluation.observables:
            note(ax, _separation_note(evaluation.observables[name]))
    for ax in axes[::columns]:
        ax.set_ylabel("share of showers")
    legend_above(page, axes[0])
    return page


def correlations(evaluation: Evaluation, data: FigureData) -> Drawing | None:
    """Correlation matrices and their difference."""
    if not data.correlation_names:
        return None
    names = sample_names(evaluation.reference_source)
    difference = data.correlation_generated - data.correlation_reference
    page = new_page(15.5, 5.6)
    axes = page.subplots(1, 3, sharey=True)
    titles = (names["reference"], names["generated"], f"{names['generated']} - {names['reference']}")
    for ax, values, title in zip(axes, (data.correlation_reference, data.correlation_generated, difference), titles):
        mesh = ax.imshow(values, cmap="RdBu_r", vmin=-1, vmax=1)
        ticks = range(len(data.correlation_names))
        ax.set_xticks(ticks, data.correlation_names, rotation=90, fontsize=11)
        ax.set_yticks(ticks, data.correlation_names, fontsize=11)
        ax.tick_params(which="both", length=0)
        ax.minorticks_off()
        ax.set_title(title)
    result = evaluation.correlation
    statement = (
        f"mean |difference| {plain(result.mean_difference)}, halves of Monte Carlo {plain(result.self_difference)}"
    )
    axes[2].set_xlabel(statement)
    page.colorbar(mesh, ax=axes, label="correlation", pad=0.01, fraction=0.02)
    row, column = np.unravel_index(np.abs(difference).argmax(), difference.shape)
    return Drawing(
        "correlations",
        "Correlations",
        "Pearson correlations of moments, sum, energy, hits, longitudinal thirds and measured angle: x1 is the first "
        f"moment in x, R1 the front third. {count_showers(evaluation)}",
        f"Three matrices of correlations: Monte Carlo, generator, difference. The {statement}. The largest difference "
        f"is {difference[row, column]:+.2f}, of {data.correlation_names[row]} and {data.correlation_names[column]}.",
        page,
    )


def mean_showers(evaluation: Evaluation, data: FigureData) -> Drawing:
    """Mean showers from the side in ranges of the angle."""
    across, summed = _side(data)
    return Drawing(
        "mean_showers",
        "Mean showers",
        f"Mean showers from the side, summed over {summed}, in ranges of the angle. {count_showers(evaluation)}",
        f"Mean energy in the plane of {across} and layer, Monte Carlo above, generator below: showers at an angle "
        f"cross the layers obliquely. {_sums(data.mean_showers)}",
        _maps(evaluation, data, data.mean_showers, 4),
    )


def example_showers(evaluation: Evaluation, data: FigureData) -> Drawing:
    """Single showers, and generated ones of nearly the same energy and angle."""
    return Drawing(
        "example_showers",
        "Single showers",
        "Single Monte Carlo showers above the generated shower of the nearest primary; the first that "
        "fits, without selection.",
        f"Energy in the plane of {_side(data)[0]} and layer of single showers, Monte Carlo above, generator below. "
        f"{_sums(data.examples)}",
        _maps(evaluation, data, data.examples, 3.5),
    )


def _maps(evaluation: Evaluation, data: FigureData, maps: Sequence[Map], decades: float) -> Page:
    names = sample_names(evaluation.reference_source)
    half, across = data.half_width_mm, _side(data)[0]
    page = new_page(4.2 * len(maps) + 1, 6.6)
    axes = page.subplots(2, len(maps), sharex=True, sharey=True, squeeze=False)
    top = max(float(pair.reference.max(initial=0)) for pair in maps) or 1.0
    norm = LogNorm(vmin=top / 10**decades, vmax=top)
    for pair, above, below in zip(maps, *axes):
        for ax, cells in ((above, pair.reference), (below, pair.generated)):
            layers = np.arange(cells.shape[1] + 1) - 0.5
            x = np.linspace(0.0 if across == "radius" else -half, half, cells.shape[0] + 1)
            shown = np.ma.masked_less(cells, top / 10**decades)
            mesh = ax.pcolormesh(layers, x, shown, norm=norm, cmap="magma_r", rasterized=True)
            ax.set_facecolor("#f7f7f7")
            ax.minorticks_off()
        above.set_title(pair.title)
        below.set_xlabel("layer")
        below.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    for ax, name in zip(axes[:, 0], (names["reference"], names["generated"])):
        ax.set_ylabel(f"{name}\n{across} [mm]")
    page.colorbar(mesh, ax=axes, label="energy [MeV]", pad=0.015, fraction=0.035)
    return page


def _side(data: FigureData) -> tuple[str, str]:
    """The axis across the shower that maps have, and the one along which they are summed."""
    first, second = data.transverse_axes
    return (second, first) if second == "radius" else (first, second)


def _separation_note(result: Separation) -> str:
    if result.separation is None:
        return "separation absent"
    text = f"S = {with_uncertainty(result.separation, result.uncertainty)}"
    return text if result.expected_null is None else f"{text}\nexpected null {plain(result.expected_null)}"


def _peaks(panel: Panel) -> str:
    """Where Monte Carlo and generator have their maximum."""
    texts = []
    for sample, name in PAIR:
        values = panel.curves[sample].values
        if not np.isfinite(values).any():
            texts.append(f"{name} has no showers")
            continue
        peak = int(np.nanargmax(values))
        texts.append(f"{name} has its maximum of {values[peak]:.3g} MeV in layer {peak}")
    return ", ".join(texts)


def _ratio_in_words(panel: Panel) -> str:
    """How far generated over Monte Carlo is from 1 in bins with at least a hundredth of the largest value."""
    reference, generated = panel.curves["reference"].values, panel.curves["generated"].values
    filled = reference > 0.01 * np.nanmax(reference, initial=0)
    if not filled.any() or not np.isfinite(generated).any():
        return "there is nothing to compare."
    ratio = generated[filled] / reference[filled]
    return (
        f"the ratio of generator to Monte Carlo lies between {ratio.min():.2f} and {ratio.max():.2f} "
        "in the bins with at least 1% of the largest value."
    )


def _means(panel: Panel) -> str:
    """Means of the histograms of Monte Carlo and generator."""
    middle = (panel.edges[1:] + panel.edges[:-1]) / 2
    texts = []
    for sample, name in PAIR:
        share = panel.curves[sample].values
        texts.append(f"{name} {share @ middle / share.sum():.3g}" if share.sum() > 0 else f"{name} none")
    return ", ".join(texts)


def _sums(maps: Sequence[Map]) -> str:
    sums = [
        f"{pair.title}: {pair.reference.sum():.4g} MeV in Monte Carlo, {pair.generated.sum():.4g} MeV in the generator."
        for pair in maps
    ]
    return f"Sums: {' '.join(sums)}"
