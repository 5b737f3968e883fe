"""Which epoch's generator is kept: by physics, on showers that were held back from the training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from caloscale.showers.arrays import Showers

MOST_SHOWERS = 400
"""Showers that are compared, at most: a fraction of a second."""
MOST_SHARDS = 8
"""Shards that they are drawn from, at most: seconds of reading."""
SHARE = 0.25
"""Part of the validation showers that selects the epoch; the others judge it."""
TOLERANCE = 0.5
"""Relative difference of two deviations that is not significant with so few showers."""
ENERGY_BINS = 3
"""Ranges of energy, with equal numbers of showers."""
PROFILE_AXES = {"profile_x": (0, 2, 3), "profile_y": (0, 1, 3), "profile_z": (0, 1, 2)}
"""Axes that are summed over for each profile."""


def selection_showers(shards: Sequence[int]) -> NDArray[np.intp]:
    """Numbers of the validation showers that select the epoch, ascending.

    Drawn from a few shards that lie evenly among all, as each worker must read them: showers may lie in the order of
    their energies. The same for every run: the generator is judged by the others, as showers that chose it would
    flatter it.

    shards: validation showers in each shard.
    """
    ends = np.cumsum(shards)
    few = np.unique(np.linspace(0, len(shards) - 1, MOST_SHARDS).astype(int))
    pool = np.concatenate([np.arange(ends[index] - shards[index], ends[index]) for index in few])
    wanted = min(len(pool), MOST_SHOWERS, max(1, round(SHARE * sum(shards))))
    return np.sort(np.random.default_rng(0).choice(pool, wanted, replace=False))


def is_chosen(deviation: float, lowest: float | None) -> bool:
    """Whether the newest generator is kept instead of the one kept so far.

    lowest: least deviation of all earlier epochs; None: there is none. A later epoch is preferred while it is as good
    within what so few showers can tell.
    """
    return lowest is None or deviation <= (1 + TOLERANCE) * lowest


def physics_deviation(real: Showers, generated: Showers) -> dict[str, float]:
    """How far generated showers are from real ones of the same energies and angles; 0 is perfect agreement.

    Terms, relative deviations: of the sampling fraction and of the number of cells with energy (means over energy
    ranges); of the profiles along x, y and z, that is sum |g - r| / sum r of mean profiles with unit sum (means over
    energy ranges); of the width of the sampling fraction about its mean in each range (all ranges together, as it
    needs many showers). `deviation` is their sum: the authors' figure of merit (profiles, moments, sampling
    fraction) with what the profiles cannot show.
    """
    terms: dict[str, list[float]] = {}
    spreads: list[list[NDArray[np.float32]]] = []
    for part in np.array_split(np.argsort(real.energy_gev), ENERGY_BINS):
        if len(part) == 0:
            continue
        pair = generated[part], real[part]
        fractions = [s.ecal_sum_gev / s.energy_gev for s in pair]
        spreads.append([fraction - fraction.mean() for fraction in fractions])
        figures = _deviations(*pair)
        figures["sampling_fraction"] = _relative(float(fractions[0].mean()), float(fractions[1].mean()))
        for name, value in figures.items():
            terms.setdefault(name, []).append(value)
    means = {name: float(np.mean(values)) for name, values in terms.items()}
    widths = [float(np.concatenate(side).std()) for side in zip(*spreads)]
    means["resolution"] = _relative(widths[0], widths[1])
    return {"deviation": sum(means.values()), **means}


def _deviations(generated: Showers, real: Showers) -> dict[str, float]:
    """Terms that are computed in each range of energy."""
    pair = generated, real
    figures = {"hits": _relative(*(float(np.count_nonzero(s.cells_gev)) for s in pair))}
    for name, axes in PROFILE_AXES.items():
        profiles = [_unit(s.cells_gev.sum(axis=axes, dtype=np.float64)) for s in pair]
        figures[name] = float(np.abs(profiles[0] - profiles[1]).sum())
    return figures


def _relative(value: float, reference: float) -> float:
    return float(abs(value - reference) / reference) if reference > 0 else float(value > 0)


def _unit(profile: NDArray[np.float64]) -> NDArray[np.float64]:
    total = profile.sum()
    return profile / total if total > 0 else profile
