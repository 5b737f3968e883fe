"""Events from densities on a grid, differentiable in the densities."""

from __future__ import annotations

import tensorflow as tf

LARGEST_UNIFORM = 0.9999
"""Uniform numbers are drawn from [0, this), as in the public code: the smallest x of the grid are not reached."""
_SMALLEST = 1e-12
"""Keeps the gradient finite where two points of the survival function are equal in float32."""

_BLOCK = 40
"""Columns that are added up by one product; about the square root of the number of columns costs least."""


def sample_by_inverse(densities: tf.Tensor, grid: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Events by inversion of the survival function, shape of ``uniform``, in the units of the grid.

    densities: (rows, points), positive, need not be normalised; grid: (points,), ascending; uniform: (rows, events) in
    [0, 1). The survival function is the sum of the densities from a point to the end over the sum of all; between two
    points it is interpolated linearly, outside it is the nearest point. The intervals are found by sorted search, of
    which the gradient is zero; the gradient comes from the survival function at both ends of an interval. An event is
    a continuous function of the densities.
    """
    survival, points = _sum_to_the_end(densities), grid.shape[0]
    sought = uniform * survival[:, :1]
    above = tf.searchsorted(-survival, -sought)  # points whose sum is larger; sorted search needs ascending values
    low = tf.clip_by_value(above - 1, 0, points - 2)  # survival[low] > sought >= survival[low + 1]
    left, right = tf.split(tf.gather(survival, tf.concat([low, low + 1], axis=1), batch_dims=1), 2, axis=1)
    share = tf.clip_by_value((left - sought) / tf.maximum(left - right, _SMALLEST * survival[:, :1]), 0.0, 1.0)
    x = tf.gather(grid, low)
    return x + share * (tf.gather(grid, low + 1) - x)


def _sum_to_the_end(x: tf.Tensor) -> tf.Tensor:
    """The sum from each column to the last one; shape of x (rows, columns).

    Columns are added up in blocks, by products with triangular matrices, and so are the gradients: with 1,000 columns
    that takes less than half of the time of `tf.cumsum`.
    """
    rows, columns = x.shape
    block = min(_BLOCK, columns)
    blocks = -(-columns // block)
    padded = tf.reshape(tf.pad(x, [[0, 0], [0, blocks * block - columns]]), (-1, blocks, block))
    within = tf.reshape(tf.reshape(padded, (-1, block)) @ _from(block), (-1, blocks, block))
    after = within[:, :, 0] @ (_from(blocks) - tf.eye(blocks))
    return tf.ensure_shape(
        tf.reshape(within + after[:, :, tf.newaxis], (-1, blocks * block))[:, :columns], (rows, columns)
    )


def _from(size: int) -> tf.Tensor:
    """The matrix (size, size) whose product with a row is the sum from each column to the last one."""
    return tf.linalg.band_part(tf.ones((size, size)), -1, 0)
