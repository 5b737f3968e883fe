"""Both ways of dividing a network among workers train the same network, and exchange what they must."""

import numpy as np
import pytest

from caloscale.studies.parallelism import time_parallelism

TINY = {"widths": [12, 8, 6, 4], "batch": 8, "steps": 3}


def plain_loss() -> float:
    """The loss of the fourth step of the same network in TensorFlow."""
    import tensorflow as tf

    rng = np.random.default_rng(1)
    images = rng.standard_normal((8, 12), np.float32)
    labels = rng.integers(0, 4, 8)
    shapes = ((12, 8), (8, 6), (6, 4))
    weights = [
        tf.Variable(rng.standard_normal(shape, np.float32) * np.float32(np.sqrt(2 / shape[0]))) for shape in shapes
    ]
    for _ in range(4):
        with tf.GradientTape() as tape:
            x = tf.nn.relu(tf.nn.relu(images @ weights[0]) @ weights[1]) @ weights[2]
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x))
        for weight, gradient in zip(weights, tape.gradient(loss, weights)):
            weight.assign_sub(0.01 * gradient)
    return float(loss)


@pytest.mark.integration
def test_every_division_trains_the_network_of_tensorflow() -> None:
    wanted = plain_loss()
    for method, workers in (("data", 1), ("data", 2), ("model", 1), ("model", 2)):
        found = time_parallelism({**TINY, "method": method, "workers": workers})
        assert found["loss"] == pytest.approx(wanted, rel=1e-5), (method, workers)
        assert 0 < found["exchangeSeconds"] < found["stepSeconds"]


@pytest.mark.integration
def test_what_is_exchanged() -> None:
    """Data: 4 bytes a parameter. Model: a worker's outputs, and gradients of the inputs of all layers but the first."""
    data = time_parallelism({**TINY, "method": "data", "workers": 2})
    assert data["exchangedMib"] == pytest.approx(4 * (12 * 8 + 8 * 6 + 6 * 4) / 2**20)
    model = time_parallelism({**TINY, "method": "model", "workers": 2})
    assert model["exchangedMib"] == pytest.approx(4 * 8 * ((8 + 6 + 4) / 2 + 8 + 6) / 2**20)
