"""Observables as histograms per shower, so that a bootstrap is a matrix product and never sees a cell."""

from collections.abc import Callable, Mapping

import numpy as np

from caloscale.detector.axes import Floats
from caloscale.physics.observables import Observed

SCALAR_BINS = 20
"""Bins between the 0.5% and 99.5% quantiles of Monte Carlo; three more are for values below, above and none."""

PROFILES: dict[str, tuple[str, Callable[[Observed], Floats]]] = {
    "longitudinalProfile": ("Longitudinal profile", lambda o: o.longitudinal),
    "transverseProfileX": ("Transverse profile in x", lambda o: o.transverse_x),
    "transverseProfileY": ("Transverse profile in y", lambda o: o.transverse_y),
    "cellSpectrum": ("Cell-energy spectrum", lambda o: o.spectrum),
}
"""Observables that are a histogram in each shower: title and (N, B)."""

SCALARS: dict[str, tuple[str, Callable[[Observed], Floats]]] = {
    "ecalSum": ("ECAL sum", lambda o: 1e3 * o.ecal_sum_gev),
    "samplingFraction": ("Sampling fraction, sum/E", lambda o: 1e3 * o.sampling_fraction),
    "hits": ("Hits", lambda o: o.hits),
    "sparsity": ("Sparsity", lambda o: o.sparsity),
    "measuredAngle": ("Measured minus true angle", lambda o: np.rad2deg(o.angle_error_rad)),
    "momentsLongitudinal": ("Longitudinal moments 1 to 3", lambda o: o.moments_z),
    "momentsTransverse": ("Transverse moments 1 to 3, x and y", lambda o: np.column_stack([o.moments_x, o.moments_y])),
    "radius90": ("Radius of 90% of the energy", lambda o: o.radius90_mm),
    "showerMaximum": ("Layer of the shower maximum", lambda o: o.maximum_layer),
}
"""Observables that are one number per shower (N,), or several (N, K) whose separations are averaged."""

UNITS = {"ecalSum": "MeV", "samplingFraction": "MeV/GeV", "hits": "cells", "measuredAngle": "deg", "radius90": "mm"}

_TRANSVERSE = "energy per column and row of cells; x is the plane of the angle"
DEFINITIONS = {
    "longitudinalProfile": "energy per layer",
    "transverseProfileX": _TRANSVERSE,
    "transverseProfileY": _TRANSVERSE,
    "showerMaximum": "layer with the most energy, 0 = front",
    "ecalSum": "sum of the cells, MeV",
    "samplingFraction": "sum / E, MeV/GeV",
    "cellSpectrum": "cells per bin of energy, ten bins a decade, from the threshold of the preprocessing (at least "
    "15.15 keV) to the largest Monte Carlo cell",
    "hits": "cells above validation.hitsThresholdGev, 0.3 MeV as published: about two minimum-ionising particles in "
    "0.5 mm of silicon",
    "sparsity": "part of the cells that are not above the threshold of the preprocessing (at least 15.15 keV)",
    "measuredAngle": "measured minus true angle; the angle is measured from the shower as the networks do "
    "(detector/angle.py)",
    "momentsLongitudinal": "barycentre and rms in X0, skewness, along z",
    "momentsTransverse": "barycentre and rms in mm, skewness, along x and along y",
    "radius90": "radius about the axis that contains 90% of the energy; the axis passes through the barycentre in the "
    "primary's direction. With cells wider than a Molière radius the size of the cells dominates it",
}
"""What each observable of a shower is. Pages and reports have these sentences."""
TITLES = {name: title for name, (title, _) in (PROFILES | SCALARS).items()}


def fill_histograms(observed: Observed, edges: Mapping[str, Floats]) -> dict[str, Floats]:
    """The observables of N showers as histograms (N, K, B): K of them, whose separations are averaged."""
    result = {name: values(observed)[:, None, :] for name, (_, values) in PROFILES.items()}
    for name in SCALARS:
        columns = zip(scalar_columns(name, observed).T, edges[name])
        result[name] = np.stack([_one_hot(column, bins) for column, bins in columns], axis=1)
    return result


def scalar_columns(name: str, observed: Observed) -> Floats:
    """A scalar observable as (N, K)."""
    values = SCALARS[name][1](observed)
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
