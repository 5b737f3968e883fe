"""The numbers of the figures, from the arrays of a comparison; kept so that figures can be drawn again."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import PlainSerializer, PlainValidator

from caloscale.detector.axes import Axes, Floats
from caloscale.physics.binning import TITLES, scalar_columns
from caloscale.physics.classifier import energy_regression
from caloscale.physics.comparison import Comparison, Weighted
from caloscale.physics.correlation import NAMES, correlation_features, weighted_correlation
from caloscale.physics.energy_response import maximum_depths, mean_energy
from caloscale.physics.observables import Observed
from caloscale.physics.resampling import summarise
from caloscale.physics.response import FEWEST, bin_of_energy, binned_moments, relative_widths
from caloscale.physics.result import numbers
from caloscale.showers.arrays import Showers
from caloscale.showers.primaries import rows
from caloscale.spec.block import Block
from caloscale.spec.data import PDG_CODES

FIGURE_DATA_FILE = "figures.json"
"""In the folder validation/ of a run."""
EXAMPLES = 3
ANGLE_BINS = 6
ERROR_BINS = 40
MOMENTS = (
    ("moments_z", ("Barycentre in depth, X0", "Longitudinal rms, X0", "Longitudinal skewness")),
    ("moments_x", ("Barycentre in x, mm", "Rms in x, mm", "Skewness in x")),
    ("moments_y", ("Barycentre in y, mm", "Rms in y, mm", "Skewness in y")),
)


def _write(values: Floats) -> Any:
    """Five significant digits, null for NaN."""
    return [_write(row) for row in values] if values.ndim > 1 else list(numbers(values))


Array = Annotated[Floats, PlainValidator(lambda values: np.array(values, dtype=np.float64)), PlainSerializer(_write)]
"""In files lists of numbers, null for what is absent (NaN)."""


class Curve(Block):
    """Values of one sample, NaN for what is absent; with a separate x where samples have different positions."""

    values: Array
    errors: Array
    """One standard deviation."""
    x: Array = np.zeros(0)


class Panel(Block):
    """Curves over common edges (one more than values) or positions (as many as values)."""

    title: str = ""
    edges: Array = np.zeros(0)
    curves: dict[str, Curve]
    """By sample: reference, generated, untrained, baseline."""


class Map(Block):
    """Mean or single shower seen from the side, energy in x (rows) and z (columns)."""

    title: str
    reference: Array
    """MeV."""
    generated: Array
    """MeV."""


class FigureData(Block):
    """Everything that is drawn."""

    longitudinal: tuple[Panel, ...]
    """Mean energy per layer in each range of energy, MeV."""
    transverse: tuple[Panel, ...]
    """Mean energy per column and per row, MeV."""
    spectrum: Panel
    """Cells per shower and bin of cell energy; edges in MeV."""
    occupancy: Panel
    """Mean part of the cells above a threshold; edges are the thresholds, MeV."""
    distributions: dict[str, Panel]
    """Share of the showers per bin, by observable."""
    moments: dict[str, Panel]
    response: Panel
    """Mean sum/E against the energy, MeV/GeV."""
    sums: Panel
    """Mean sum against the energy, MeV."""
    resolution: Panel
    """sigma/E of the plain sum."""
    weighted_resolution: Panel
    """sigma/E of the sum with layers weighted by their absorber."""
    maximum: Panel
    """Depth of the maximum against the energy, X0."""
    angle: Panel
    """Mean measured angle against the true one, degrees."""
    regression: Panel | None
    correlation_names: tuple[str, ...]
    correlation_reference: Array
    correlation_generated: Array
    mean_showers: tuple[Map, ...]
    examples: tuple[Map, ...]
    half_width_mm: float
    """Half width of the window in x; radius of a cylinder."""
    transverse_axes: tuple[str, str] = ("x", "y")
    """The two axes of the cells across the shower."""
    transverse_units: tuple[str, str] = ("mm", "mm")


def figure_data(comparison: Comparison) -> FigureData:
    """Everything that is drawn."""
    weighted, observed, bin_edges = comparison.weighted, comparison.observed, comparison.bin_edges
    axes, cuts = comparison.axes, comparison.cuts
    cylinder = axes.geometry.cell_shape == "cylinder"
    half_width = (axes.second[-1] if cylinder else axes.first[-1]) + axes.pitches[cylinder] / 2
    side = 1 if cylinder else 2
    names, correlations = _correlations(observed)
    reference, generated = comparison.reference_showers, comparison.generated_showers
    return FigureData(
        longitudinal=tuple(
            _means(
                {name: s.observed.longitudinal[s.ranges[:, k] > 0] for name, s in weighted.items()},
                np.arange(axes.shape[2] + 1) - 0.5,
                scale=1e3,
            )
            for k in range(weighted["reference"].ranges.shape[1])
        ),
        transverse=_transverse(observed, axes),
        spectrum=_means({name: o.spectrum for name, o in observed.items()}, 1e3 * cuts.spectrum_edges_gev),
        occupancy=_means(
            {name: o.above / np.prod(axes.shape) for name, o in observed.items()}, 1e3 * cuts.thresholds_gev
        ),
        distributions=_distributions(observed, bin_edges),
        moments=_moments(observed, bin_edges),
        sums=_against_energy(weighted, lambda o: 1e3 * o.ecal_sum_gev),
        response=_against_energy(weighted, lambda o: 1e3 * o.sampling_fraction),
        resolution=_bootstrapped(weighted, lambda s: relative_widths(s.weights, s.observed.sampling_fraction, s.bins)),
        weighted_resolution=_bootstrapped(
            weighted, lambda s: relative_widths(s.weights, s.observed.weighted_fraction, s.bins)
        ),
        maximum=_bootstrapped(weighted, lambda s: maximum_depths(s, s.bins, axes.depth_x0)),
        angle=_angle(observed),
        regression=_regression(comparison.training, observed),
        correlation_names=names,
        correlation_reference=correlations[0],
        correlation_generated=correlations[1],
        mean_showers=_mean_showers(reference, generated, side),
        examples=_examples(reference, generated, side),
        half_width_mm=half_width,
        transverse_axes=axes.names,
        transverse_units=axes.units,
    )


def _means(values: Mapping[str, Floats], edges: Floats, *, scale: float = 1.0, title: str = "") -> Panel:
    """Mean over the showers (N, B) of each sample and its standard error."""
    curves = {}
    for name, sample in values.items():
        absent = np.full(sample.shape[1], np.nan)
        mean = sample.mean(axis=0) if len(sample) else absent
        error = sample.std(axis=0) / np.sqrt(len(sample)) if len(sample) > 1 else absent
        curves[name] = Curve(values=scale * mean, errors=scale * error)
    return Panel(title=title, edges=edges, curves=curves)


def _transverse(observed: Mapping[str, Observed], axes: Axes) -> tuple[Panel, ...]:
    panels = []
    along = zip(axes.names, (axes.first, axes.second), axes.pitches, ("transverse_x", "transverse_y"))
    for title, positions, pitch, attribute in along:
        edges = np.append(positions - pitch / 2, positions[-1] + pitch / 2)
        values = {name: getattr(o, attribute) for name, o in observed.items()}
        panels.append(_means(values, edges, scale=1e3, title=title))
    return tuple(panels)


def _shares(values: Mapping[str, Floats], edges: Floats, title: str = "") -> Panel:
    """Share of the showers per bin, what lies beyond in the outer bins, with the multinomial error."""
    curves = {}
    for name, sample in values.items():
        finite = sample[np.isfinite(sample)].clip(edges[0], edges[-1])
        counts = np.histogram(finite, bins=edges)[0]
        share = counts / max(len(sample), 1)
        curves[name] = Curve(values=share, errors=np.sqrt(share * (1 - share) / max(len(sample), 1)))
    return Panel(title=title, edges=edges, curves=curves)


def _distributions(observed: Mapping[str, Observed], bin_edges: Mapping[str, Floats]) -> dict[str, Panel]:
    return {
        name: _shares({sample: scalar_columns(name, o)[:, 0] for sample, o in observed.items()}, edges[0], TITLES[name])
        for name, edges in bin_edges.items()
        if len(edges) == 1
    }


def _moments(observed: Mapping[str, Observed], bin_edges: Mapping[str, Floats]) -> dict[str, Panel]:
    edges = np.concatenate([bin_edges["momentsLongitudinal"], bin_edges["momentsTransverse"]])
    panels = {}
    for group, (attribute, titles) in enumerate(MOMENTS):
        for order, title in enumerate(titles):
            values = {name: getattr(o, attribute)[:, order] for name, o in observed.items()}
            panels[f"{attribute}{order + 1}"] = _shares(values, edges[3 * group + order], title)
    return panels


def _against_energy(weighted: Mapping[str, Weighted], value: Callable[[Observed], Floats]) -> Panel:
    """Mean of a quantity in the fine bins of energy with its standard error."""
    curves = {
        name: _mean_in_bins(value(sample.observed), sample.observed.energy_gev, sample.bins)
        for name, sample in weighted.items()
        if name != "untrained"
    }
    return Panel(curves=curves)


def _mean_in_bins(values: Floats, positions: Floats, bins: Floats) -> Curve:
    """Mean of values (N,) in bins (N, K) with its standard error, at the mean positions (N,)."""
    moments = binned_moments(np.ones((1, len(values))), values, bins)
    count = moments.count[0]
    x = positions @ bins / np.where(count > 0, count, np.nan)
    return Curve(values=moments.mean[0], errors=moments.sigma[0] / np.sqrt(np.maximum(count, 1)), x=x)


def _bootstrapped(weighted: Mapping[str, Weighted], value: Callable[[Weighted], Floats]) -> Panel:
    """A quantity in the fine bins of energy, (1 + B, K) of a sample, with its bootstrap error."""
    curves = {}
    for name in ("reference", "generated"):
        values, errors = np.array([summarise(bootstraps) for bootstraps in value(weighted[name]).T]).T
        curves[name] = Curve(values=values, errors=errors, x=mean_energy(weighted[name]))
    return Panel(curves=curves)


def _regression(training: Observed, observed: Mapping[str, Observed]) -> Panel | None:
    try:
        errors = energy_regression(training, [observed["reference"], observed["generated"]])
    except ValueError:
        return None
    return _shares(dict(zip(("reference", "generated"), errors)), np.linspace(-0.5, 0.5, ERROR_BINS + 1))


def _correlations(observed: Mapping[str, Observed]) -> tuple[tuple[str, ...], list[Floats]]:
    """Names of the features and the matrices of both samples; empty where there are too few showers."""
    features = [correlation_features(o[~o.empty]) for o in (observed["reference"], observed["generated"])]
    if min(map(len, features)) < FEWEST:
        return (), [np.zeros((0, 0))] * 2
    return NAMES, [weighted_correlation(f, np.ones((1, len(f))))[0] for f in features]


def _angle(observed: Mapping[str, Observed]) -> Panel:
    """Mean measured angle in bins of the true one, degrees."""
    true = np.rad2deg(observed["reference"].angle_rad)
    low, high = float(true.min()), float(true.max())
    edges = np.linspace(low, high, ANGLE_BINS + 1) if high > low + 1e-3 else np.array([low - 0.5, high + 0.5])
    curves = {}
    for name, sample in observed.items():
        filled = sample[~sample.empty]
        degrees = np.rad2deg(filled.angle_rad)
        measured = degrees + np.rad2deg(filled.angle_error_rad)
        curves[name] = _mean_in_bins(measured, degrees, bin_of_energy(degrees, edges))
    return Panel(edges=edges, curves=curves)


def _mean_showers(reference: Showers, generated: Showers, side: int) -> tuple[Map, ...]:
    """Mean showers, summed along the transverse axis ``side``, in three ranges of the angle (one where it is fixed)."""
    degrees = np.rad2deg(reference.angle_rad.astype(np.float64))
    low, high = float(degrees.min()), float(degrees.max())
    edges = np.linspace(low, high, 4) if high > low + 1 else np.array([low, high])
    members = [bin_of_energy(np.rad2deg(s.angle_rad.astype(np.float64)), edges) > 0 for s in (reference, generated)]
    maps = []
    for k in range(len(edges) - 1):
        sides = [
            _mean_side(sample, np.flatnonzero(member[:, k]), side)
            for sample, member in zip((reference, generated), members)
        ]
        title = f"{edges[k]:.0f} to {edges[k + 1]:.0f} degrees" if len(edges) > 2 else f"{low:.0f} degrees"
        maps.append(Map(title=title, reference=sides[0], generated=sides[1]))
    return tuple(maps)


def _mean_side(sample: Showers, index: NDArray[np.intp], side: int) -> Floats:
    total = np.zeros((sample.cells_gev.shape[3 - side], sample.cells_gev.shape[3]))
    for start in range(0, len(index), 64):
        total += sample.cells_gev[index[start : start + 64]].sum(axis=(0, side), dtype=np.float64)
    return 1e3 * total / max(len(index), 1)


def _examples(reference: Showers, generated: Showers, side: int) -> tuple[Map, ...]:
    """Monte Carlo showers at low, middle and high energy, each with the generated one whose primary is nearest
    (relative to the ranges of its columns): the first that fits, not the best-looking."""
    order = np.argsort(reference.energy_gev, kind="stable")
    chosen = order[np.unique(np.linspace(0, len(order) - 1, EXAMPLES + 2).astype(int)[1:-1])]
    spans = {name: max(float(np.ptp(column)), 1e-6) for name, column in reference.primaries.items()}
    maps = []
    for index in chosen:
        one = rows(reference.primaries, index)
        distance = sum(((generated.primaries[name] - one[name]) / span) ** 2 for name, span in spans.items())
        pair = reference.cells_gev[index], generated.cells_gev[np.argmin(distance)]
        sides = [1e3 * cells.sum(axis=side - 1, dtype=np.float64) for cells in pair]
        title = f"{one['energy_gev']:.1f} GeV, {np.rad2deg(one['angle_rad']):.0f} degrees"
        title += "".join(f", {particle}" for particle, code in PDG_CODES.items() if code == one.get("pdg"))
        maps.append(Map(title=title, reference=sides[0], generated=sides[1]))
    return tuple(maps)
