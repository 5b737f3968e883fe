"""Conversion of deposited energy into the units of the networks, and its inverse.

Units of numpy arrays and of TensorFlow tensors, so training, inference and physics share it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from caloscale.spec.data import Preprocessing

_ROUNDING = 1e-5
"""Relative error that float32 makes on the way to the networks and back."""


def rebin(cells: NDArray[np.float32], factors: tuple[int, int, int]) -> NDArray[np.float32]:
    """Sum neighbouring cells: (N, X, Y, Z) -> (N, X/fx, Y/fy, Z/fz); the sum of all cells stays.

    The factors must divide the cells (the run configuration checks it).
    """
    if tuple(factors) == (1, 1, 1):
        return cells
    fx, fy, fz = factors
    _, x, y, z = cells.shape
    split = (-1, x // fx, fx, y // fy, fy, z // fz, fz)
    return np.asarray(cells.reshape(split).sum(axis=(2, 4, 6), dtype=cells.dtype))


def to_network(cells_gev: Any, preprocessing: Preprocessing) -> Any:
    """Network units: (cell * unitsPerGev)^power, 0 below the threshold. Any shape, GeV in."""
    threshold = float(np.float32(preprocessing.threshold_gev))
    empty = (cells_gev < threshold) | (cells_gev <= 0)
    return _power(cells_gev * preprocessing.units_per_gev, preprocessing.power, empty)


def to_gev(x: Any, preprocessing: Preprocessing) -> Any:
    """Deposited energy of network units: the inverse of `to_network` above the threshold, 0 below it.

    Negative values count as 0; what is not finite stays so. A cell within rounding of the threshold counts as at the
    threshold, so that to_gev(to_network(to_gev(x))) keeps the same cells.
    """
    threshold = float(np.float32(preprocessing.threshold_gev))
    cells_gev = _power(x, 1 / preprocessing.power, x <= 0) / preprocessing.units_per_gev
    empty = (cells_gev < threshold * (1 - _ROUNDING)) | (x <= 0)  # false for NaN
    if isinstance(x, np.ndarray):
        return np.where(empty, cells_gev.dtype.type(0), np.maximum(cells_gev, cells_gev.dtype.type(threshold)))
    import tensorflow as tf

    return tf.where(empty, tf.zeros_like(cells_gev), tf.maximum(cells_gev, threshold))


def without_faint(cells_gev: NDArray[np.float32], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Cells in GeV with those below the threshold empty, as in shards and of networks; negative ones stay."""
    faint = (cells_gev > 0) & (cells_gev < np.float32(preprocessing.threshold_gev * (1 - _ROUNDING)))
    return np.where(faint, np.float32(0), cells_gev)


def _power(base: Any, exponent: float, empty: Any) -> Any:
    """base^exponent, 0 where empty (elsewhere base > 0). Most cells are empty: numpy skips them."""
    if isinstance(base, np.ndarray):
        return np.power(base, exponent, out=np.zeros_like(base), where=~empty)
    import tensorflow as tf

    # The inner tf.where keeps the infinite slope at 0 out of the gradient.
    return tf.where(empty, tf.zeros_like(base), tf.where(empty, tf.ones_like(base), base) ** exponent)
