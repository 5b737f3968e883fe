"""The flow of the cells: its steps are exact for normal data to within half a per cent."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.families.flow.cell_flow import CellFlow


class _Normal(CellFlow):
    """The velocity for scores whose variance is 1 in x = 0 and ``variance`` elsewhere."""

    variance = 1.0

    def velocity(self, scores, maps, style, angle):
        sine, cosine = (function(angle)[:, :, None, None] for function in (tf.sin, tf.cos))
        column = tf.range(scores.shape[1])[None, :, None, None]
        variance = tf.where(column == 0, 1.0, self.variance)
        return scores * sine * cosine * (variance - 1) / (cosine**2 + variance * sine**2)


@pytest.mark.parametrize("variance", [0.25, 0.5, 0.8, 1.0, 2.0, 6.0])
def test_normal_scores_get_their_variance(variance):
    flow = _Normal(3, 5, 4)
    flow.build()
    flow.variance = variance
    noise = tf.random.stateless_normal((2, 4, 4, 3), (1, 2))
    scores = flow.call(noise, tf.zeros_like(noise), tf.zeros((2, 5)))
    np.testing.assert_array_equal(scores[:, 0], noise[:, 0])
    np.testing.assert_allclose(scores[:, 1:], noise[:, 1:] * variance**0.5, rtol=5e-3)


def test_an_untrained_flow_hardly_changes_the_scores():
    """Its last convolution begins near 0: cells are independent then."""
    tf.keras.utils.set_random_seed(0)
    flow = CellFlow(3, 5, 8)
    flow.build()
    noise = tf.random.stateless_normal((2, 6, 6, 3), (1, 2))
    scores = flow.call(noise, tf.zeros_like(noise), tf.ones((2, 5)))
    assert 0 < float(tf.reduce_mean(tf.abs(scores - noise))) < 0.3


def test_cells_that_are_hit_often_weigh_more():
    """An error of the velocity in one column of cells counts by the root of its probability of a hit."""
    flow = _Normal(1, 5, 4)
    flow.build()
    noise, scores = tf.zeros((1, 4, 1, 1)), tf.constant([1.0, 0, 0, 0])[None, :, None, None]
    logits = tf.constant([0.0, -20, -20, -20])[None, :, None, None]
    angle = tf.zeros((1, 1))
    often = flow.loss(scores, logits, tf.zeros((1, 5)), noise, angle)
    seldom = flow.loss(scores, -20 * tf.ones_like(logits), tf.zeros((1, 5)), noise, angle)
    np.testing.assert_allclose(often, (0.5**0.5 + 0.02) / (0.5**0.5 + 0.08), rtol=1e-3)
    np.testing.assert_allclose(seldom, 0.25, rtol=1e-3)
