"""Which epoch's generator is selected: by physics, on held-out showers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caloscale.models import latent, noise_size
from caloscale.showers.arrays import Showers
from caloscale.showers.preprocessing import to_gev
from caloscale.showers.primaries import rows
from caloscale.spec import Run, Train

MOST_SHOWERS = 125
"""Showers that are compared, at most: those that select cannot judge, and `TOLERANCE` is for as few."""
MOST_SHARDS = 8
"""Shards that they are drawn from, at most: seconds of reading."""
SHARE = 0.25
"""Fraction of the validation showers that selects the epoch; the others validate it."""
TOLERANCE = 0.5
"""Relative difference of two deviations that is not significant with so few showers."""
SETTLED = 0.75
"""Part of a training behind which a learning rate that decays as a cosine is below 15%: before, the networks swing
around each other, and the few showers that select would choose an epoch by chance."""
ENERGY_BINS = 3
"""Ranges of energy, with equal numbers of showers."""
AT_ONCE = 64
"""Showers that are generated at a time."""
PROFILE_AXES = {"profile_x": (0, 2, 3), "profile_y": (0, 1, 3), "profile_z": (0, 1, 2)}
"""Axes that are summed over for each profile."""


def selection_showers(shards: Sequence[int]) -> NDArray[np.intp]:
    """Numbers of the validation showers that select the epoch, ascending.

    Drawn from a few shards at equal distances, as each worker reads them and showers may be sorted by energy. The same
    for every run. The generator is validated with the others: the result for showers that selected it is biased.

    shards: validation showers in each shard.
    """
    ends = np.cumsum(shards)
    few = np.unique(np.linspace(0, len(shards) - 1, MOST_SHARDS).astype(int))
    pool = np.concatenate([np.arange(ends[index] - shards[index], ends[index]) for index in few])
    count = min(len(pool), MOST_SHOWERS, max(1, round(SHARE * sum(shards))))
    return np.sort(np.random.default_rng(0).choice(pool, count, replace=False))


def is_selected(deviation: float, earlier: Mapping[int, float], train: Train, last: int) -> bool:
    """Whether the newest generator replaces the one that is selected so far.

    earlier: deviations of earlier epochs; last: the epoch with which the training ends. A later epoch is preferred
    unless it is significantly worse than one whose learning rate has decayed as well.
    """
    begin = SETTLED * last if train.decay == "cosine" else -1
    settled = (value for epoch, value in earlier.items() if epoch > begin and math.isfinite(value))
    lowest = min(settled, default=None)
    return math.isfinite(deviation) and (lowest is None or deviation <= (1 + TOLERANCE) * lowest)


def generate_like(like: Showers, generator: Any, run: Run) -> Showers:
    """Showers of the same primaries, from the same noise at every call."""
    noise = np.random.default_rng(run.train.seed).standard_normal(
        (len(like), noise_size(run.model, run.data)), np.float32
    )
    cells = np.empty_like(like.cells_gev)
    for first in range(0, len(like), AT_ONCE):
        batch = slice(first, first + AT_ONCE)
        inputs = latent(noise[batch], rows(like.primaries, batch), run.model, run.data)
        cells[batch] = to_gev(generator(inputs, training=False)[..., 0].numpy(), run.data.preprocessing)
    return replace(like, cells_gev=cells, source="generated")


def physics_deviation(real: Showers, generated: Showers, *, hits_threshold_gev: float) -> dict[str, float]:
    """How far generated showers are from real ones of the same energies and angles; 0 is perfect agreement.

    Terms, relative deviations: of the sampling fraction and of the number of hits, cells above ``hits_threshold_gev``
    as the gates count them (means over energy ranges); of the profiles along x, y and z, that is sum |g - r| / sum r of
    mean profiles with unit sum (means over energy ranges); of the width of the sampling fraction about its mean in each
    range (all ranges together, as it needs many showers). `deviation` is their sum: the authors' figure of merit
    (profiles, moments, sampling fraction) with what the profiles cannot show.
    """
    terms: dict[str, list[float]] = {name: [] for name in ("hits", *PROFILE_AXES, "sampling_fraction")}
    spreads: list[list[NDArray[np.float32]]] = []
    for members in np.array_split(np.argsort(real.energy_gev), min(ENERGY_BINS, len(real))):
        pair = generated[members], real[members]
        terms["hits"].append(_relative(*(float(np.count_nonzero(s.cells_gev > hits_threshold_gev)) for s in pair)))
        for name, axes in PROFILE_AXES.items():
            profiles = [_unit(s.cells_gev.sum(axis=axes, dtype=np.float64)) for s in pair]
            terms[name].append(float(np.abs(profiles[0] - profiles[1]).sum()))
        fractions = [s.ecal_sum_gev / s.energy_gev for s in pair]
        terms["sampling_fraction"].append(_relative(*(float(fraction.mean()) for fraction in fractions)))
        spreads.append([fraction - fraction.mean() for fraction in fractions])
    means = {name: float(np.mean(values)) for name, values in terms.items()}
    means["resolution"] = _relative(*(float(np.concatenate(side).std()) for side in zip(*spreads)))
    return {"deviation": sum(means.values()), **means}


def _relative(value: float, reference: float) -> float:
    return float(abs(value - reference) / reference) if reference > 0 else float(value > 0)


def _unit(profile: NDArray[np.float64]) -> NDArray[np.float64]:
    total = profile.sum()
    return profile / total if total > 0 else profile
