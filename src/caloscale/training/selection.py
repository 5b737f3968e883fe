"""Which epoch's generator is kept: by physics, on showers that were held back from the training."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from caloscale.showers.arrays import Showers

MOST_SHOWERS = 400
"""Showers that are compared, at most: a fraction of a second."""
SHARE = 0.25
"""Part of the validation showers that selects the epoch; the others judge it."""
ENERGY_BINS = 3
"""Ranges of energy, with equal numbers of showers."""
PROFILE_AXES = {"profile_x": (0, 2, 3), "profile_y": (0, 1, 3), "profile_z": (0, 1, 2)}
"""Axes that are summed over for each profile."""


def selection_showers(validation_showers: int) -> int:
    """How many of the validation showers, from the first on, select the epoch.

    The generator is judged by the others: showers that chose it would flatter it.
    """
    return min(MOST_SHOWERS, max(1, round(SHARE * validation_showers)))


def physics_deviation(real: Showers, generated: Showers) -> dict[str, float]:
    """How far generated showers are from real ones of the same energies and angles; 0 is best.

    Terms: relative deviation of the sampling fraction (mean over energy ranges) and of its width; mean relative
    deviation of the profiles along x, y and z, that is sum |g - r| / sum r of mean profiles with unit sum (mean over
    energy ranges); relative deviation of the number of cells with energy. `deviation` is their sum: the authors'
    figure of merit (profiles, moments, sampling fraction) with what the profiles cannot show.
    """
    terms: dict[str, list[float]] = {}
    for part in np.array_split(np.argsort(real.energy_gev), ENERGY_BINS):
        if len(part) == 0:
            continue
        for name, value in _deviations(real[part], generated[part]).items():
            terms.setdefault(name, []).append(value)
    figures = {name: float(np.mean(values)) for name, values in terms.items()}
    return {"deviation": sum(figures.values()), **figures}


def _deviations(real: Showers, generated: Showers) -> dict[str, float]:
    fractions = [s.ecal_sum_gev / s.energy_gev for s in (generated, real)]
    figures = {
        "sampling_fraction": _relative(*(f.mean() for f in fractions)),
        "resolution": _relative(*(f.std() for f in fractions)),
        "hits": _relative(*(np.count_nonzero(s.cells_gev) for s in (generated, real))),
    }
    for name, axes in PROFILE_AXES.items():
        profiles = [_unit(s.cells_gev.sum(axis=axes, dtype=np.float64)) for s in (generated, real)]
        figures[name] = float(np.abs(profiles[0] - profiles[1]).sum())
    return figures


def _relative(value: float, reference: float) -> float:
    return float(abs(value - reference) / reference) if reference > 0 else float(value > 0)


def _unit(profile: NDArray[np.float64]) -> NDArray[np.float64]:
    total = profile.sum()
    return profile / total if total > 0 else profile
