"""Merged generators against the Keras networks, layer by layer."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models import build
from caloscale.models.families.compact.merged import FORMS, merged_compact
from caloscale.models.families.published.depth_blocks import BlockConvolution, Blocks
from caloscale.models.families.published.merged import merged
from caloscale.spec import load_run
from tests.models import HAS_BFLOAT16, needs_bfloat16


@pytest.fixture(autouse=True)
def seeded():
    """The error of bfloat16 depends on the weights."""
    tf.keras.utils.set_random_seed(1)


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize(("depths", "kernel", "pad"), [(11, 6, 1), (7, 3, 0), (8, 2, 2), (5, 5, 0), (13, 8, 3)])
@pytest.mark.parametrize("phase", [0, 1, 4])
def test_a_convolution_in_blocks(size, depths, kernel, pad, phase):
    rng = np.random.default_rng(1)
    blocks = Blocks(size, min(phase, size - 1), depths)
    volume, weights = rng.normal(size=(2, 4, 5, depths, 2)), rng.normal(size=(2, 3, kernel, 2, 3))
    truth = tf.nn.conv3d(tf.pad(volume, [[0, 0]] * 3 + [[pad, pad], [0, 0]]), weights, [1] * 5, "VALID").numpy()

    behind = blocks.count * size - blocks.phase - depths
    x = np.pad(volume, [(0, 0)] * 3 + [(blocks.phase, behind), (0, 0)])
    x = x.reshape(2, 4, 5, blocks.count, size * 2).transpose(0, 3, 1, 2, 4)
    form = BlockConvolution(blocks, kernel, pad)
    x = np.pad(x[:, : blocks.count + min(0, form.behind)], [(0, 0), (form.before, max(0, form.behind))] + [(0, 0)] * 3)
    y = tf.nn.conv3d(x, form.kernel(weights), [1] * 5, "VALID").numpy()
    y = y.transpose(0, 2, 3, 1, 4).reshape(2, *truth.shape[1:3], -1, 3)
    found = y[:, :, :, form.output.phase : form.output.phase + form.output.depths]
    np.testing.assert_allclose(found, truth, rtol=0, atol=1e-12)


def disturbed(network):
    """Biases, scales and statistics as after a training, some scales negative; the last sum of both signs."""
    rng = np.random.default_rng(3)
    for layer in network.layers:
        if "norm" in layer.name:
            gamma, beta, mean, variance = layer.get_weights()
            sign = np.where(rng.random(gamma.shape) < 0.2, -1, 1)
            scale, width = sign * rng.uniform(0.5, 1.5, gamma.shape), rng.uniform(0.5, 2, variance.shape)
            layer.set_weights([scale, rng.normal(0, 0.3, beta.shape), rng.normal(0.3, 0.1, mean.shape), width])
        elif layer.weights:
            layer.set_weights([w + rng.normal(0, 0.05, w.shape) * (w.ndim == 1) for w in layer.get_weights()])
    return network


@pytest.mark.parametrize(
    ("preset", "options"),
    [("variable-angle", ()), ("fixed-angle", ()), ("fixed-angle", ("model.filters=multiples-of-16",))],
)
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.integration), 7])
def test_the_published_generators(preset, options, batch):
    run = load_run(preset=preset, overrides=["model.latentSize=8", *options])
    network = disturbed(build(run.model, run.data)["generator"])
    before = tf.keras.Model(network.input, network.layers[-1].input)  # without the last ReLU
    latent = np.random.default_rng(0).standard_normal((batch, 8)).astype(np.float32)
    truth = before(latent).numpy()
    ours = merged(before)(latent).numpy()
    assert ours.shape == truth.shape and np.abs(truth).max() > 0
    np.testing.assert_allclose(ours, truth, rtol=0, atol=3e-5 * np.abs(truth).max())
    if not HAS_BFLOAT16:
        return
    rounded = tf.function(merged(before, "bfloat16"), autograph=False)(latent).numpy()
    assert rounded.dtype == np.float32
    # Six convolutions, whose inputs, weights and results have a relative error of 2^-9 each.
    assert 1e-4 < np.abs(rounded - truth).max() / np.abs(truth).max() < 0.05


@pytest.mark.parametrize("precision", ["float32", pytest.param("bfloat16", marks=needs_bfloat16)])
def test_a_graph_with_biases_of_zero(precision):
    """As before the first step. TensorFlow leaves them out, and then loses slopes behind zeros and a convolution."""
    run = load_run(preset="fixed-angle", overrides=["model.latentSize=8"])
    network = build(run.model, run.data)["generator"]
    latent = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    truth = network(latent).numpy()
    ours = tf.function(merged(network, precision, rounded_later=True), autograph=False)(latent).numpy()
    assert np.abs(ours - truth).max() < (3e-5 if precision == "float32" else 0.05) * truth.max()


@pytest.mark.parametrize("preset", ["compact", "par04"])
@pytest.mark.parametrize("form", ["tensorflow", "onnx", "openvino"])
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.integration), 7])
def test_the_compact_generator(preset, form, batch):
    """In every form, but channels last: TensorFlow has no convolution with channels first on a CPU.

    The inverse of the network's power is applied in double precision.
    """
    run = load_run(preset=preset, overrides=["model.latentSize=12"])
    network = build(run.model, run.data)["generator"]
    rng = np.random.default_rng(5)
    network.set_weights([w + rng.normal(0, 0.02, w.shape) for w in network.get_weights()])
    latent = rng.standard_normal((batch, 12)).astype(np.float32)
    latent[:, 0] = rng.uniform(*run.data.energy_gev, batch) / run.data.preprocessing.energy_scale_gev
    latent[:, 1] = np.radians(rng.uniform(*run.data.angle_deg, batch))
    preprocessing = run.data.preprocessing
    shower = network(latent).numpy()[..., 0].astype(float)
    truth = shower ** (1 / preprocessing.power) / preprocessing.units_per_gev
    ours = merged_compact(network, run.data, replace(FORMS[form], channels_first=False))(latent).numpy()
    largest = truth.max(axis=(1, 2, 3), keepdims=True)
    assert ours.shape == truth.shape and (largest > 0).all()
    assert (np.abs(ours - truth) / largest).max() < 1e-4
    if not HAS_BFLOAT16:
        return
    rounded = merged_compact(network, run.data, replace(FORMS[form], channels_first=False), "bfloat16")(latent).numpy()
    assert 1e-4 < (np.abs(rounded - truth) / largest).max() < 0.05
    sums = truth.sum(axis=(1, 2, 3))
    np.testing.assert_allclose(rounded.sum(axis=(1, 2, 3)), sums, rtol=1e-5)  # no result of a convolution
