"""Counts of operations against published figures and against direct sums."""

import pytest
import tensorflow as tf

from caloscale.models import build
from caloscale.models.arithmetic import flops, flops_per_layer
from caloscale.spec import load_run

layers = tf.keras.layers


@pytest.fixture(scope="module")
def networks():
    run = load_run(preset="variable-angle")
    return build(run.model, run.data)


def test_published_totals_of_the_variable_angle_networks(networks):
    assert flops(networks["generator"]) / 1e9 == pytest.approx(6.1, abs=0.05)
    assert flops(networks["discriminator"]) / 1e9 == pytest.approx(3.8, abs=0.05)


def test_measured_layers_have_their_published_gflop(networks):
    generator, discriminator = map(flops_per_layer, networks.values())
    published = {"conv1": 3.63, "conv2": 0.88, "conv3": 0.63, "conv5": 0.25, "conv6": 0.14}
    assert {name: round(generator[name] / 1e9, 2) for name in published} == published
    published = {"conv1": 0.37, "conv2": 2.19, "conv3": 0.77, "conv4": 0.45}
    assert {name: round(discriminator[name] / 1e9, 2) for name in published} == published


def test_kinds_of_layers_one_by_one():
    x = tf.keras.Input((8, 6, 5))
    y = layers.Conv2D(7, (3, 2), strides=2, name="conv")(x)  # 3 x 3 positions
    y = layers.BatchNormalization()(y)
    y = layers.Conv2DTranspose(4, (2, 2), strides=2, name="transposed")(y)
    y = layers.Dense(3, name="each_cell")(y)  # 6 x 6 positions
    y = layers.Dense(2, name="dense")(layers.Flatten()(y))
    assert flops_per_layer(tf.keras.Model(x, y)) == {
        "conv": 2 * 3 * 3 * (3 * 2 * 5 * 7),
        "transposed": 2 * 3 * 3 * (2 * 2 * 7 * 4),
        "each_cell": 2 * 6 * 6 * (4 * 3),
        "dense": 2 * (6 * 6 * 3 * 2),
    }


def test_networks_inside_a_network_are_counted():
    inner_input = tf.keras.Input((4,))
    inner = tf.keras.Model(inner_input, layers.Dense(3, name="dense")(inner_input), name="inner")
    x = tf.keras.Input((4,))
    outer = tf.keras.Model(x, layers.Dense(2, name="outer_dense")(inner(x)))
    assert flops_per_layer(outer) == {"inner/dense": 24, "outer_dense": 12}
    assert flops(outer) == 36


def test_an_unknown_layer_is_an_error_and_not_zero():
    x = tf.keras.Input((4, 3))
    network = tf.keras.Model(x, layers.GRU(2, name="memory")(x))
    with pytest.raises(TypeError, match="memory"):
        flops(network)


def test_a_layer_may_state_its_own_operations():
    class Stated(layers.Dense):
        def arithmetic(self):
            return 77

    x = tf.keras.Input((4,))
    assert flops_per_layer(tf.keras.Model(x, Stated(2, name="stated")(x))) == {"stated": 77}
