"""The passes of convolutions against Keras' layers and TensorFlow's derivatives in double precision."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.arithmetic import flops_per_layer
from caloscale.models.layers.convolution import CELLS, PaddedConv3D, computed_by
from caloscale.models.layers.convolution_ways import Direct, Ways
from caloscale.profiling.convolution_choice import (
    convolution_layers,
    passes_by,
    random_operands,
    seconds_by_turns,
)
from tests.models import needs_bfloat16

LAYERS = {
    "zeros": lambda: PaddedConv3D(6, (3, 2, 4), (1, 0, 2), 0.3),
    "same": lambda: PaddedConv3D(16, (2, 3, 4), padding="same", use_bias=False),
}


def network(*layers, shape=(5, 4, 6, 1)):
    inputs = x = tf.keras.Input(shape)
    for layer in layers:
        x = layer(x)
    return tf.keras.Model(inputs, x)


def truth_of(layer, operands):
    """Of Keras' layers one after the other."""
    x, kernel, gradient = (tf.cast(one, tf.float64) for one in (operands.x, operands.kernel, operands.gradient))
    bias = tf.zeros((), tf.float64) if operands.bias is None else tf.cast(operands.bias, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = tf.pad(x, [[0, 0], *([n, n] for n in layer.pad), [0, 0]])
        y = tf.nn.conv3d(y, kernel, [1] * 5, getattr(layer, "padding", "valid").upper())
    of_input, of_kernel = tape.gradient(y, [x, kernel], output_gradients=gradient)
    return {
        "forward": tf.where(y + bias > 0, y + bias, layer.slope * (y + bias)),
        "input_gradient": of_input,
        "kernel_gradient": of_kernel,
    }


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize(
    ("precision", "tolerance"), [("float32", 1e-5), pytest.param("bfloat16", 3e-2, marks=needs_bfloat16)]
)
def test_plain_and_own_passes(kind, precision, tolerance):
    with computed_by(CELLS[16]):
        layer = LAYERS[kind]()
    ((convolution, layers),) = convolution_layers(network(layer)).items()
    assert layers == [layer]
    operands = random_operands(convolution, 2, precision)
    truth = truth_of(layer, operands)
    for ways in (Ways(Direct(), Direct(), Direct()), layer.ways(convolution.channels)):
        passes = passes_by(ways, convolution, operands)
        assert list(passes) == list(truth)
        for name, work in passes.items():
            found = tf.cast(tf.function(work, autograph=False)(), tf.float64).numpy()
            assert found.shape == truth[name].shape
            assert np.abs(found - truth[name].numpy()).max() < tolerance * np.abs(truth[name]).max()


def test_layers_that_compute_the_same_are_one():
    """Also in a network within a network; their arithmetic is that of the bill."""
    inner = network(PaddedConv3D(2, (3, 3, 3), (1, 1, 1), name="first"), shape=(5, 4, 6, 2))
    begin = PaddedConv3D(2, (1, 1, 1), name="begin")
    whole = network(begin, inner, PaddedConv3D(2, (3, 3, 3), (1, 1, 1), name="second"), tf.keras.layers.ReLU())
    found = {tuple(layer.name for layer in layers): one.flop for one, layers in convolution_layers(whole).items()}
    counted = {name.split("/")[-1]: flop for name, flop in flops_per_layer(whole).items()}
    assert found == {("begin",): counted["begin"], ("first", "second"): counted["first"]}


def test_works_take_turns():
    """A clock of which each reading is 1 s later, and each call of b 10 s longer."""
    now, calls = [0.0], []

    def clock():
        now[0] += 1
        return now[0]

    def called(name, seconds):
        def python():
            calls.append(name)
            now[0] += seconds
            return np.float32(0)

        return lambda: tf.numpy_function(python, [], tf.float32)

    assert seconds_by_turns({"a": called("a", 0), "b": called("b", 10)}, 3, clock) == {"a": [1.0] * 3, "b": [11.0] * 3}
    assert "".join(calls) == "ab" + "ba" + "ab" + "ba"
