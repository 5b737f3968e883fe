"""The published networks: parameters, shapes, input, and the showers that they refuse."""

import math

import numpy as np
import pytest
import tensorflow as tf

from caloscale.errors import ConfigurationError
from caloscale.models import build, count_parameters, latent, noise_size
from caloscale.spec import Data, Geometry, LayerGroup, Model, load_run

GENERATOR_SHAPES = {
    "variable-angle": {
        "dense": (5184,),
        "reshape": (9, 9, 8, 8),
        "conv1": (49, 49, 41, 8),
        "conv2": (50, 50, 38, 6),
        "conv3": (51, 51, 35, 6),
        "conv4": (52, 52, 32, 6),
        "conv5": (52, 52, 28, 6),
        "conv6": (52, 52, 26, 6),
        "conv7": (51, 51, 25, 1),
    },
    "fixed-angle": {
        "dense": (3136,),
        "reshape": (7, 7, 8, 8),
        "conv1": (7, 7, 8, 64),
        "upsampling1": (14, 14, 16, 64),
        "conv2": (13, 14, 9, 6),
        "upsampling2": (26, 28, 27, 6),
        "conv3": (26, 26, 26, 6),
        "conv4": (25, 25, 25, 1),
    },
}
DISCRIMINATOR_SHAPES = {
    "variable-angle": {
        "conv1": (51, 51, 25, 16),
        "conv2": (47, 46, 22, 8),
        "conv3": (43, 41, 19, 8),
        "conv4": (39, 36, 14, 8),
        "pooling": (19, 18, 7, 8),
        "flatten": (19152,),
    },
    "fixed-angle": {
        "conv1": (25, 25, 25, 32),
        "conv2": (25, 25, 25, 8),
        "conv3": (25, 25, 25, 8),
        "conv4": (23, 23, 23, 8),
        "pooling": (11, 11, 11, 8),
        "flatten": (10648,),
    },
}
PRESETS = tuple(GENERATOR_SHAPES)


@pytest.fixture(scope="module")
def networks():
    runs = {preset: load_run(preset=preset) for preset in PRESETS}
    return {preset: build(run.model, run.data) for preset, run in runs.items()}


def test_parameters_are_the_published_ones(networks):
    found = {preset: [count_parameters(network) for network in both.values()] for preset, both in networks.items()}
    assert found == {"variable-angle": [1_364_983, 87_354], "fixed-angle": [872_808, 73_402]}
    # Published: "about 946k parameters, 3.78 MB" for both together, in float32.
    assert round((872_808 + 73_402) * 4 / 1e6, 2) == 3.78
    dense = networks["variable-angle"]["generator"].get_layer("dense").trainable_weights
    assert round(100 * sum(math.prod(weight.shape) for weight in dense) / 1_364_983, 1) == 97.6


def test_filters_in_multiples_of_16():
    """Kernel cells x inputs x outputs of each convolution; what is not a convolution has the published numbers."""
    run = load_run(preset="fixed-angle", overrides=["model.filters=multiples-of-16"])
    generator, discriminator = build(run.model, run.data).values()
    kernels = {
        generator: [(6 * 6 * 8, 8, 64), (6 * 5 * 8, 64, 16), (3 * 3 * 8, 16, 16), (2 * 2 * 2, 16, 1)],
        discriminator: [(5**3, 1, 32), (5**3, 32, 16), (5**3, 16, 16), (5**3, 16, 16)],
    }
    for network, wanted in kernels.items():
        found = [layer.kernel.shape for layer in network.layers if "conv" in layer.name and hasattr(layer, "kernel")]
        assert [(math.prod(shape[:3]), *shape[3:]) for shape in found] == wanted
    assert generator.output_shape == (None, 25, 25, 25, 1)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_intermediate_shape(networks, preset):
    generator, discriminator = networks[preset].values()
    for network, shapes in ((generator, GENERATOR_SHAPES), (discriminator, DISCRIMINATOR_SHAPES)):
        found = {name: tuple(network.get_layer(name).output.shape)[1:] for name in shapes[preset]}
        assert found == shapes[preset]


@pytest.mark.parametrize("preset", PRESETS)
def test_only_running_statistics_are_weights_without_training(networks, preset):
    """They are averaged over the replicas in each step; a constant among them would be for nothing."""
    for network in networks[preset].values():
        kept = [layer for layer in network.layers if layer.non_trainable_weights]
        assert kept and all(isinstance(layer, tf.keras.layers.BatchNormalization) for layer in kept)


def kinds(network):
    return [type(layer).__name__ for layer in network.layers]


def test_order_of_the_variable_angle_networks_layers(networks):
    generator, discriminator = networks["variable-angle"].values()
    middle = ["PaddedConv3D", "BatchNormalization"]
    start = ["InputLayer", "Dense", "Reshape", "UpsampledConv3D", "BatchNormalization"]
    assert kinds(generator) == [*start, *middle * 4, "PaddedConv3D", "PaddedConv3D", "ReLU"]
    found = [(layer.slope, layer.pad) for layer in generator.layers if "conv" in layer.name]
    assert found == [(0, (0, 0, 0)), *[(0, (2, 2, 1))] * 3, *[(0, (1, 1, 0))] * 2, (1, (0, 0, 0))]
    tail = ["PaddedConv3D", "BatchNormalization", "EventDropout"]
    trained = ["InputLayer", "PaddedConv3D", "EventDropout", *tail * 3]
    constraints = {"CellEnergy", "MeasuredAngle", "EcalSum"}
    found = [kind for kind in kinds(discriminator) if kind not in constraints]
    assert found == [*trained, "AveragePooling3D", "Flatten", "Dense", "Dense"]


@pytest.mark.parametrize(("preset", "epsilon"), [("variable-angle", 1e-6), ("fixed-angle", 1e-3)])
def test_normalisations(networks, preset, epsilon):
    for network in networks[preset].values():
        norms = [layer for layer in network.layers if type(layer).__name__ == "BatchNormalization"]
        assert norms
        assert {(layer.epsilon, layer.momentum) for layer in norms} == {(epsilon, 0.99)}


def test_weights_start_as_published(networks):
    generator, discriminator = networks["variable-angle"].values()

    def spread(layer):
        return float(np.std(layer.get_weights()[0]))

    # He uniform: variance 2 / fan in; Glorot normal and uniform: 2 / (fan in + fan out).
    for number in range(1, 7):
        layer = generator.get_layer(f"conv{number}")
        fan_in = np.prod(layer.get_weights()[0].shape[:-1])
        assert spread(layer) == pytest.approx(np.sqrt(2 / fan_in), rel=0.15)
    layer = discriminator.get_layer("conv2")
    kernel = layer.get_weights()[0].shape
    assert spread(layer) == pytest.approx(np.sqrt(2 / (180 * (kernel[-2] + kernel[-1]))), rel=0.05)
    assert not np.any(layer.get_weights()[1])


def test_slope_of_the_leaky_units_and_rate_of_the_dropout():
    run = load_run(preset="fixed-angle", overrides=["model.dropout=0.35"])
    discriminator = build(run.model, run.data)["discriminator"]
    assert {layer.slope for layer in discriminator.layers if "conv" in layer.name} == {0.3}
    rates = {layer.rate for layer in discriminator.layers if type(layer).__name__ == "EventDropout"}
    assert rates == {0.35}


@pytest.mark.parametrize("preset", PRESETS)
def test_outputs(networks, preset):
    run = load_run(preset=preset)
    generator, discriminator = networks[preset].values()
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((1, noise_size(run.model, run.data))).astype(np.float32)
    showers = generator(latent(noise, {"energy_gev": [150.0], "angle_rad": [1.5]}, run.model, run.data))
    assert showers.shape == (1, *run.data.shape, 1)
    assert np.min(showers) >= 0
    outputs = discriminator(showers)
    assert set(outputs) == {"real_fake", "energy", "angle", "ecal_sum"}
    assert all(value.shape == (1, 1) for value in outputs.values())
    assert 0 <= outputs["real_fake"][0, 0] <= 1
    np.testing.assert_allclose(
        outputs["ecal_sum"],
        np.sum(np.asarray(showers, np.float64) ** (1 / run.data.preprocessing.power), keepdims=True).reshape(1, 1),
        rtol=1e-4,
    )


def test_constraints_give_the_discriminator_no_gradient_and_the_generator_one(networks):
    discriminator = networks["fixed-angle"]["discriminator"]
    showers = tf.constant(np.random.default_rng(1).random((1, 25, 25, 25, 1)).astype(np.float32))
    with tf.GradientTape() as tape:
        tape.watch(showers)
        outputs = discriminator(showers)
        total = tf.reduce_sum(outputs["angle"]) + tf.reduce_sum(outputs["ecal_sum"])
    to_showers, *to_weights = tape.gradient(total, [showers, *discriminator.trainable_weights])
    assert np.any(to_showers)
    assert all(slope is None for slope in to_weights)


def test_bin_counts_are_a_fifth_output():
    run = load_run(preset="fixed-angle", overrides=["model.binCounts=true"])
    discriminator = build(run.model, run.data)["discriminator"]
    bins = discriminator(np.zeros((2, 25, 25, 25, 1), np.float32))["bins"]
    np.testing.assert_array_equal(bins, [[0] * 7 + [25**3]] * 2)
    assert count_parameters(discriminator) == 73_402


# Keras 3 saves with numpy.array(variable), which numpy 2 wants to be otherwise.
@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")
def test_saved_networks_are_the_same_after_loading(networks, tmp_path):
    showers = np.random.default_rng(2).random((1, 25, 25, 25, 1)).astype(np.float32)
    discriminator = networks["fixed-angle"]["discriminator"]
    discriminator.save(tmp_path / "discriminator.keras")
    again = tf.keras.models.load_model(tmp_path / "discriminator.keras")
    before, after = discriminator(showers), again(showers)
    assert before.keys() == after.keys()
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


class TestLatent:
    data = Data(showers=1)

    def test_variable_angle_is_energy_angle_noise(self):
        model = Model(latent_size=5)
        assert noise_size(model, self.data) == 3
        noise = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
        values = latent(noise, {"energy_gev": [150.0, 100.0], "angle_rad": [1.2, 1.9]}, model, self.data)
        np.testing.assert_allclose(values, [[1.5, 1.2, 1, 2, 3], [1.0, 1.9, 4, 5, 6]], rtol=1e-6)

    def test_fixed_angle_is_noise_times_energy(self):
        model = Model(preset="fixed-angle", latent_size=3)
        assert noise_size(model, self.data) == 3
        noise = np.array([[1.0, -2.0, 3.0], [4.0, 5.0, 6.0]], np.float32)
        values = latent(noise, {"energy_gev": [[150.0], [50.0]], "angle_rad": [[1.57], [1.57]]}, model, self.data)
        np.testing.assert_allclose(values, [[1.5, -3, 4.5], [2, 2.5, 3]], rtol=1e-6)

    def test_refuses_noise_of_another_width(self):
        with pytest.raises(ValueError, match="254 columns"):
            latent(np.zeros((1, 256), np.float32), {"energy_gev": [1.0], "angle_rad": [1.0]}, Model(), self.data)


@pytest.mark.parametrize("preset", PRESETS)
def test_showers_of_another_shape_are_refused_with_a_remedy(preset):
    data = Data(showers=1, geometry=Geometry(cells=(17, 17, 25)))
    with pytest.raises(ConfigurationError, match=r"geometry\.cells(.|\n)*\[17, 17, 25\](.|\n)*remedy") as refused:
        build(Model(preset=preset), data)
    assert refused.value.exit_code == 2
    four_layers = Geometry(cells=(51, 51, 4), layers=(LayerGroup(count=4, absorber_mm=2.4),))
    with pytest.raises(ConfigurationError, match="made for showers of"):
        build(Model(preset=preset), Data(showers=1, geometry=four_layers))


def test_the_fixed_angle_network_refuses_several_angles():
    """It would be trained with showers of all of them, and generate any for the angle that is asked for."""
    for overrides in (["data.angleDeg=[60, 120]"], ["data.angleDeg=[80, 80]", "data.mirror=true"]):
        with pytest.raises(ConfigurationError, match=r"not given the angle, data\.angleDeg is") as refused:
            load_run(preset="fixed-angle", overrides=overrides)
        assert refused.value.exit_code == 2 and "data.angleDeg" in refused.value.remedy
    assert load_run(preset="fixed-angle", overrides=["data.angleDeg=[80, 80]"]).data.angle_deg == (80, 80)
    assert load_run(preset="fixed-angle", overrides=["data.mirror=true"]).data.mirror
