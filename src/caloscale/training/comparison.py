"""Showers of the generator as it is now, for the comparison with validation showers."""

from __future__ import annotations

from typing import Any

import numpy as np

from caloscale.models import latent, noise_size
from caloscale.showers.arrays import Showers
from caloscale.showers.preprocessing import to_gev
from caloscale.spec import Run

AT_ONCE = 64
"""Showers that are generated at a time."""


def generate_like(like: Showers, generator: Any, run: Run) -> Showers:
    """Showers of the same energies and angles, from the same noise at every call."""
    noise = np.random.default_rng(run.train.seed).standard_normal((len(like), noise_size(run.model)), np.float32)
    cells = np.empty_like(like.cells_gev)
    for first in range(0, len(like), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        fed = latent(noise[part], like.energy_gev[part], like.angle_rad[part], run.model, run.data)
        cells[part] = to_gev(generator(fed, training=False)[..., 0].numpy(), run.data.preprocessing)
    return Showers(cells, like.energy_gev, like.angle_rad, "generated")
