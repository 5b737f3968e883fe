"""Events from densities on a grid, differentiable in the densities."""

from __future__ import annotations

import tensorflow as tf

LARGEST_UNIFORM = 0.9999
"""Uniform numbers are drawn from [0, this), as in the public code: the smallest x of the grid are not reached."""
_SMALLEST = 1e-12
"""Keeps the gradient finite where two points of the survival function are equal in float32."""


def sample_by_inverse(densities: tf.Tensor, grid: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Events by inversion of the survival function, shape of ``uniform``, in the units of the grid.

    densities: (rows, points), positive, need not be normalised; grid: (points,), ascending; uniform: (rows, events) in
    [0, 1). The survival function is the sum of the densities from a point to the end over the sum of all; between two
    points it is interpolated linearly, outside it is the nearest point. The intervals are found by sorted search, of
    which the gradient is zero; the gradient comes from the survival function at both ends of an interval. An event is
    a continuous function of the densities.
    """
    survival = tf.cumsum(densities, axis=1, reverse=True)
    survival /= survival[:, :1]
    points = grid.shape[0]
    # Sorted search needs an ascending function; survival is not sorted again, as it is descending by construction.
    above = points - tf.searchsorted(survival[:, ::-1], uniform, side="right")
    low = tf.clip_by_value(above - 1, 0, points - 2)  # survival[low] > uniform >= survival[low + 1]
    left, right = tf.gather(survival, low, batch_dims=1), tf.gather(survival, low + 1, batch_dims=1)
    share = tf.clip_by_value((left - uniform) / tf.maximum(left - right, _SMALLEST), 0.0, 1.0)
    x = tf.gather(grid, low)
    return x + share * (tf.gather(grid, low + 1) - x)
