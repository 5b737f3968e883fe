"""Stage 1: whitening of known numbers, and a flow of a normal distribution, whose velocity is known."""

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models.families.flow import training
from caloscale.models.families.flow.detector import Detector
from caloscale.models.families.flow.layer_flow import (
    END,
    NORMAL_KNOTS,
    FaintLayers,
    LayerFlow,
    Whitening,
    bend,
    interpolate,
)
from caloscale.spec import load_run


def test_bend_takes_knots_to_images_and_back():
    rng = np.random.default_rng(0)
    knots = tf.constant(np.sort(rng.normal(size=(25, 3)), axis=0), tf.float32)
    images = tf.constant(NORMAL_KNOTS[:, None])
    np.testing.assert_allclose(bend(knots, knots, images), np.tile(NORMAL_KNOTS[:, None], (1, 3)), atol=1e-5)
    values = tf.constant(rng.normal(0, 2, (50, 3)), tf.float32)
    np.testing.assert_allclose(bend(bend(values, knots, images), images, knots), values, atol=2e-3)
    assert (np.diff(bend(tf.linspace([-9.0] * 3, [9.0] * 3, 400), knots, images), axis=0) > 0).all()


def test_faint_layers_get_the_quantiles_of_showers_and_as_many_are_empty():
    """Layers that two thirds, none and all but 50 of the showers leave empty; the second has hundreds of particles."""
    detector, rng = Detector.of(load_run(preset="flow-par04").data), np.random.default_rng(3)
    mip = np.log(detector.mip_gev / detector.floor_gev)
    real, made = rng.normal([mip + 0.5, mip + 6, mip + 0.5], [0.5, 0.3, 0.5], (2, 9000, 3))
    empty = np.arange(9000)[:, None] % 3 < [2, 0, 3]
    empty[:50] = False
    real = np.where(empty, -3 - np.abs(rng.normal(size=real.shape)), real)
    made = np.where(empty, -1.5 - np.abs(rng.normal(size=real.shape)), made - [0.3, 0.3, 0.3])
    made = made + rng.normal(0, 0.8, made.shape) * [1, 0, 1]
    layers = FaintLayers(3)
    layers.build()
    np.testing.assert_allclose(layers.call(tf.exp(tf.constant(made, tf.float32))), np.exp(made), rtol=1e-4)
    three = detector.model_copy(update={"shape": (16, 9, 3)})
    for weight, value in zip((layers.least, layers.knots, layers.images), training._fit_faint(real, made, three)):
        weight.assign(value)
    found = np.log(layers.call(tf.exp(tf.constant(made, tf.float32))))
    np.testing.assert_allclose(found[:, 1:], made[:, 1:], atol=1e-4)
    assert (found[:, 0] < 0).mean() == pytest.approx((real[:, 0] < 0).mean(), abs=0.01)
    parts = np.linspace(0.02, 0.98, 30)
    quantiles = [np.quantile(one[:, 0][one[:, 0] > 0], parts) for one in (found, real)]
    np.testing.assert_allclose(*quantiles, atol=0.05)
    assert abs(np.quantile(made[:, 0][made[:, 0] > 0], parts) - quantiles[1]).max() > 0.3


def test_the_path_has_the_velocity_of_its_points():
    noise, data = tf.constant([[1.0, -2.0]]), tf.constant([[0.5, 3.0]])
    angle, step = tf.constant([[0.7]]), 1e-3
    before, _ = interpolate(noise, data, angle - step)
    after, _ = interpolate(noise, data, angle + step)
    np.testing.assert_allclose(interpolate(noise, data, angle)[1], (after - before) / (2 * step), rtol=1e-3)
    np.testing.assert_allclose(interpolate(noise, data, tf.constant([[END]]))[0], data, atol=1e-6)


class _Gaussian(LayerFlow):
    """The exact velocity for independent normal data of these widths: x sin cos (w^2 - 1) / (cos^2 + w^2 sin^2)."""

    widths = tf.constant([[0.3, 1.0, 2.0]])

    def velocity(self, x, angle, primary, *, training=False):
        sine, cosine, variance = tf.sin(angle), tf.cos(angle), self.widths**2
        return x * sine * cosine * (variance - 1) / (cosine**2 + variance * sine**2)


def test_the_steps_integrate_a_known_velocity():
    """Of normal data the flow is a scaling by their width."""
    flow = _Gaussian(3, 2, width=8, dropout=0.0, steps=8)
    noise = tf.constant([[1.0, -2.0, 0.5], [0.1, 0.2, -1.0]])
    np.testing.assert_allclose(flow.call(noise, tf.zeros((2, 2))), noise * flow.widths, rtol=0.03)


def test_the_flow_learns_a_correlation_that_depends_on_the_primary():
    """Two normal numbers with correlation 0.8 at primary 1 and -0.8 at -1."""
    tf.keras.utils.set_random_seed(1)
    flow = LayerFlow(2, 1, width=32, dropout=0.0, steps=8)
    flow.build()
    weights = flow.trainable_variables
    optimizer = tf.keras.optimizers.Adam(5e-3)
    optimizer.build(weights)
    rng = np.random.default_rng(0)

    @tf.function(autograph=False)
    def learn(data, primary, noise, angle):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(flow.loss(data, primary, noise, angle))
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))

    for _ in range(400):
        sign = rng.choice([-1.0, 1.0], (256, 1))
        data = rng.normal(size=(256, 2)) @ np.diag([1, 0.6])
        data[:, 1:] += 0.8 * sign * data[:, :1]
        arrays = (data, sign, rng.normal(size=(256, 1, 2)), rng.uniform(0, END, (256, 1, 1)))
        learn(*(tf.constant(array, tf.float32) for array in arrays))
    for sign in (-1.0, 1.0):
        noise = tf.constant(rng.normal(size=(20_000, 2)), tf.float32)
        made = flow.call(noise, tf.fill((20_000, 1), sign)).numpy()
        np.testing.assert_allclose(np.corrcoef(made.T)[0, 1], 0.8 * sign, atol=0.1)
        np.testing.assert_allclose(made.var(axis=0), 1, atol=0.25)


def test_whitening_divides_by_a_width_that_depends_on_the_primary():
    whitening = Whitening(1, 6)
    whitening.build()
    whitening.mean.assign(tf.constant([[2.0], [0], [0], [0], [0], [0]]))
    whitening.log_width.assign(tf.constant([[0.0], [-0.5], [0], [0], [0], [0]]))
    numbers, primary = tf.constant([[3.0], [3.0]]), tf.constant([[0.0, 0], [2.0, 0]])
    whitened = whitening.call(numbers, primary)
    np.testing.assert_allclose(whitened[:, 0], [1, np.e], rtol=1e-5)
    np.testing.assert_allclose(whitening.undo(whitened, primary), numbers, rtol=1e-5)
