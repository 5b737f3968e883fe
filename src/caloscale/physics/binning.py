"""Observables as histograms per shower, so that a bootstrap is a matrix product and never sees a cell."""

from collections.abc import Callable, Mapping

import numpy as np

from caloscale.detector.axes import Floats
from caloscale.physics.observables import Observed, texts_of

SCALAR_BINS = 20
"""Bins between the 0.5% and 99.5% quantiles of Monte Carlo; three more are for values below, above and none."""

PROFILES: dict[str, Callable[[Observed], Floats]] = {
    "longitudinalProfile": lambda o: o.longitudinal,
    "transverseProfileX": lambda o: o.transverse_x,
    "transverseProfileY": lambda o: o.transverse_y,
    "cellSpectrum": lambda o: o.spectrum,
}
"""Observables that are a histogram in each shower (N, B)."""

SCALARS: dict[str, Callable[[Observed], Floats]] = {
    "ecalSum": lambda o: 1e3 * o.ecal_sum_gev,
    "samplingFraction": lambda o: 1e3 * o.sampling_fraction,
    "hits": lambda o: o.hits,
    "sparsity": lambda o: o.sparsity,
    "measuredAngle": lambda o: np.rad2deg(o.angle_error_rad),
    "momentsLongitudinal": lambda o: o.moments_z,
    "momentsTransverse": lambda o: np.column_stack([o.moments_x, o.moments_y]),
    "radius90": lambda o: o.radius90_mm,
    "showerMaximum": lambda o: o.maximum_layer,
}
"""Observables that are one number per shower (N,), or several (N, K) whose separations are averaged."""

UNITS = {"ecalSum": "MeV", "samplingFraction": "MeV/GeV", "hits": "cells", "measuredAngle": "deg", "radius90": "mm"}
TITLES, DEFINITIONS = texts_of("observables")


def fill_histograms(observed: Observed, edges: Mapping[str, Floats]) -> dict[str, Floats]:
    """The observables of N showers as histograms (N, K, B): K of them, whose separations are averaged."""
    result = {name: values(observed)[:, None, :] for name, values in PROFILES.items()}
    for name in SCALARS:
        columns = zip(scalar_columns(name, observed).T, edges[name])
        result[name] = np.stack([_one_hot(column, bins) for column, bins in columns], axis=1)
    return result


def scalar_columns(name: str, observed: Observed) -> Floats:
    """A scalar observable as (N, K)."""
    values = SCALARS[name](observed)
    return values[:, None] if values.ndim == 1 else values


def choose_edges(monte_carlo: Observed) -> dict[str, Floats]:
    """Edges of the scalar observables (K, B + 1), the same for all samples: from the quantiles of Monte Carlo showers;
    of the shower maximum a bin for each layer."""
    by_quantiles = [name for name in SCALARS if name != "showerMaximum"]
    edges = {
        name: np.stack([_edges(column) for column in scalar_columns(name, monte_carlo).T]) for name in by_quantiles
    }
    layers = np.arange(monte_carlo.longitudinal.shape[1] + 1) - 0.5
    return edges | {"showerMaximum": layers[None]}


def _edges(values: Floats) -> Floats:
    values = values[np.isfinite(values)]
    low, high = np.quantile(values, [0.005, 0.995]) if len(values) else (0.0, 1.0)
    if not high > low:
        half = max(abs(low), 1.0) / 2
        low, high = low - half, high + half
    return np.linspace(low, high, SCALAR_BINS + 1)


def _one_hot(values: Floats, edges: Floats) -> Floats:
    """(N,) -> (N, B + 3): below, the B bins (the last includes its upper edge), above, no value."""
    index = np.searchsorted(edges, values, side="right")
    index = np.where(values == edges[-1], len(edges) - 1, index)
    index = np.where(np.isnan(values), len(edges) + 1, index)
    return np.asarray(index[:, None] == np.arange(len(edges) + 2), dtype=np.float64)
