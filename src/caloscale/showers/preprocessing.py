"""From deposited energy to what the networks see, and back: the only place that does either.

Works on numpy arrays and TensorFlow tensors, so training, inference and physics share it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from caloscale.spec.data import Preprocessing

_ROUNDING = 1e-5
"""Relative error that float32 makes on the way to the networks and back."""


def rebin(cells: Any, factors: tuple[int, int, int]) -> Any:
    """Sum neighbouring cells: (N, X, Y, Z) -> (N, X/fx, Y/fy, Z/fz); the sum of all cells stays.

    The factors must divide the cells (the run document checks it).
    """
    if tuple(factors) == (1, 1, 1):
        return cells
    fx, fy, fz = factors
    _, x, y, z = cells.shape
    split = (-1, x // fx, fx, y // fy, fy, z // fz, fz)
    if isinstance(cells, np.ndarray):
        return cells.reshape(split).sum(axis=(2, 4, 6), dtype=cells.dtype)
    import tensorflow as tf

    return tf.reduce_sum(tf.reshape(cells, split), axis=(2, 4, 6))


def to_network(cells_gev: Any, preprocessing: Preprocessing) -> Any:
    """Network units: (cell * unitsPerGev)^power, 0 below the threshold. Any shape, GeV in."""
    where, maximum = _operations(cells_gev)
    kept = where(cells_gev >= _threshold(preprocessing), cells_gev, cells_gev * 0)
    return maximum(kept * preprocessing.units_per_gev, kept * 0) ** preprocessing.power


def to_gev(x: Any, preprocessing: Preprocessing) -> Any:
    """Deposited energy of network units: the inverse of `to_network` above the threshold, 0 below it.

    A cell within rounding of the threshold counts as at the threshold, so that
    to_gev(to_network(to_gev(x))) keeps the same cells.
    """
    where, maximum = _operations(x)
    threshold = _threshold(preprocessing)
    cells_gev = maximum(x, x * 0) ** (1 / preprocessing.power) / preprocessing.units_per_gev
    return where(cells_gev >= threshold * (1 - _ROUNDING), maximum(cells_gev, x * 0 + threshold), x * 0)


def _threshold(preprocessing: Preprocessing) -> float:
    return float(np.float32(preprocessing.threshold_gev))


def _operations(x: Any) -> tuple[Any, Any]:
    if isinstance(x, np.ndarray | np.generic):
        return np.where, np.maximum
    import tensorflow as tf

    return tf.where, tf.maximum
