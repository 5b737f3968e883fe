"""Variables to the host and back, under strategies."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from caloscale.training.checkpoint.manager import from_host, to_host


def variables(value, size=3):
    return {"a": tf.Variable(tf.fill((size,), float(value))), "step": tf.Variable(value, dtype=tf.int64)}


def test_values_are_copies():
    held = variables(2)
    taken = to_host(held)
    held["a"].assign([7, 7, 7])
    assert taken["a"].tolist() == [2, 2, 2]
    assert taken["step"].dtype == np.int64
    from_host(held, taken)
    assert held["a"].numpy().tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    "strategy", [tf.distribute.OneDeviceStrategy("/cpu:0"), tf.distribute.MirroredStrategy(["/cpu:0"])]
)
def test_under_a_strategy(strategy):
    with strategy.scope():
        held = variables(0)
    from_host(held, to_host(variables(5)))
    assert to_host(held)["a"].tolist() == [5, 5, 5]
    assert to_host(held)["step"] == 5


def test_another_network_changes_nothing():
    held = variables(1)
    with pytest.raises(ValueError, match=r"a has the shape \(4,\) instead of \(3,\)"):
        from_host(held, to_host(variables(2, size=4)))
    with pytest.raises(ValueError, match=r"missing \['step'\], left over \['b'\]"):
        from_host(held, {"a": np.ones(3), "b": np.ones(3)})
    assert held["a"].numpy().tolist() == [1, 1, 1]
