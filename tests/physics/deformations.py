"""Generators that are wrong in a known way: what a verdict must reject. Pure functions of showers."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from scipy.spatial import cKDTree

from caloscale.detector.axes import Floats
from caloscale.physics.comparison import mean_shower
from caloscale.showers.arrays import Showers

COLLAPSED = 100
"""Showers that a collapsed generator repeats."""
COPIED_AMONG = 3
"""Training showers with nearly the primary of a shower, one of which is copied."""
NEIGHBOURS = 20
"""Showers next to each other in energy that exchange layers."""


def scale_energy(showers: Showers) -> Showers:
    """All cells brighter by 5%."""
    return _with_cells(showers, showers.cells_gev * 1.05)


def kill_layer(showers: Showers) -> Showers:
    """The layer in the middle without energy."""
    cells = showers.cells_gev.copy()
    cells[..., cells.shape[-1] // 2] = 0
    return _with_cells(showers, cells)


def narrow_response(showers: Showers) -> Showers:
    """The deviations of sum/E from their mean at that energy halved.

    The mean is a cubic polynomial in the logarithm of the energy.
    """
    response = showers.ecal_sum_gev / showers.energy_gev
    energy = np.log(showers.energy_gev)
    mean = np.polyval(np.polyfit(energy, response, 3), energy)
    scale = np.where(response > 0, (mean + response) / 2 / np.where(response > 0, response, 1), 1)
    return _with_cells(showers, showers.cells_gev * scale[:, None, None, None])


def repeat_few(showers: Showers) -> Showers:
    """The first showers over and over, with their primaries: mode collapse."""
    return showers[np.arange(len(showers)) % COLLAPSED]


def repeat_mean(showers: Showers, training: Showers) -> Showers:
    """The mean training shower times the energy."""
    return _with_cells(showers, mean_shower(training) * showers.energy_gev[:, None, None, None])


def exchange_layers(showers: Showers) -> Showers:
    """Each layer of another shower of nearly the same energy: layers that do not depend on each other."""
    order, rng = np.argsort(showers.energy_gev, kind="stable"), np.random.default_rng(0)
    cells = showers.cells_gev.copy()
    for layer in range(cells.shape[-1]):
        for first in range(0, len(order), NEIGHBOURS):
            part = order[first : first + NEIGHBOURS]
            cells[part, ..., layer] = showers.cells_gev[rng.permutation(part), ..., layer]
    return _with_cells(showers, cells)


def exchange_cells(showers: Showers) -> Showers:
    """The cells of each layer from another shower of any energy, scaled to the layer's energy: a first stage that is
    right, and a second one that ignores it."""
    layers = showers.cells_gev.sum(axis=(1, 2), dtype=np.float64)
    cells, rng = np.zeros_like(showers.cells_gev), np.random.default_rng(0)
    for layer in range(cells.shape[-1]):
        other = rng.permutation(len(showers))
        scale = layers[:, layer] / np.where(layers[other, layer] > 0, layers[other, layer], 1)
        cells[..., layer] = showers.cells_gev[other, ..., layer] * scale[:, None, None]
    return _with_cells(showers, cells)


def repeat_training(showers: Showers, training: Showers) -> Showers:
    """For each primary one of the nearest training showers, scaled to its energy: a generator that memorises."""
    primaries = [np.column_stack([np.log(s.energy_gev), s.angle_rad]) for s in (training, showers)]
    width = np.maximum(primaries[0].std(axis=0), 1e-6)
    near = cKDTree(primaries[0] / width).query(primaries[1] / width, k=list(range(1, COPIED_AMONG + 1)))[1]
    chosen = near[np.arange(len(showers)), np.random.default_rng(0).integers(COPIED_AMONG, size=len(showers))]
    scale = showers.energy_gev / training.energy_gev[chosen]
    return _with_cells(showers, training.cells_gev[chosen] * scale[:, None, None, None])


def deformations(training: Showers) -> dict[str, Callable[[Showers], Showers]]:
    """All of them, by name."""
    return {
        "mean shower": lambda showers: repeat_mean(showers, training),
        "5% more energy": scale_energy,
        "one dead layer": kill_layer,
        "resolution halved": narrow_response,
        f"{COLLAPSED} showers repeated": repeat_few,
        "training showers repeated": lambda showers: repeat_training(showers, training),
        "layers exchanged": exchange_layers,
        "cells of a layer exchanged": exchange_cells,
    }


def _with_cells(showers: Showers, cells: Floats) -> Showers:
    return replace(showers, cells_gev=cells.astype(np.float32))
