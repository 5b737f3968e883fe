"""The classifiers of the CaloChallenge: the published networks and features, and what they find in toy showers."""

from functools import partial

import numpy as np
import pytest

from caloscale.detector.axes import axes_of
from tests.physics.conftest import DATA, make_showers
from tools.classifiers import (
    DENSE_EPOCHS,
    LEARNING_RATE,
    convolutional_network,
    dense_network,
    high_level_features,
    judge,
    low_level_features,
    residual_network,
)

AXES = axes_of(DATA)
SAMPLING = 0.026
REAL, ALIKE, WRONG = (make_showers(400, 1), make_showers(400, 2), make_showers(400, 3, response=1.3, stretch=1.2))


def trainable(network):
    return sum(int(np.prod(weight.shape)) for weight in network.trainable_weights)


def test_the_dense_network_has_the_published_layers():
    """code/evaluate.py: Linear(inputs, 2048), twice Linear(2048, 2048), Linear(2048, 1), LeakyReLU(0.01) between."""
    inputs, units = 1 + 6480, 2048
    network = dense_network(inputs)
    kinds = [type(layer).__name__ for layer in network.layers]
    assert kinds == ["Dense", "LeakyReLU"] * 3 + ["Dense"]
    assert {layer.negative_slope for layer in network.layers if hasattr(layer, "negative_slope")} == {0.01}
    assert trainable(network) == (inputs * units + units) + 2 * (units * units + units) + units + 1 == 21_669_889
    first = network.layers[0].get_weights()
    for weights in first:  # PyTorch's Linear: uniform within 1 / sqrt(inputs)
        assert np.abs(weights).max() <= inputs**-0.5
        assert weights.std() == pytest.approx((3 * inputs) ** -0.5, rel=0.1)
    assert DENSE_EPOCHS == 50


def test_the_residual_network_has_the_published_layers():
    """code/resnet.py, 18 layers with 32, 64, 64, 128 channels, counted by hand from its layers."""
    stem = 7**3 * 32 + 2 * 32
    first = 2 * (2 * 27 * 32 * 32 + 4 * 32)

    def stage(before, channels):
        shortcut = before * channels + 2 * channels
        return 27 * before * channels + 3 * 27 * channels**2 + 8 * channels + shortcut

    published = stem + first + stage(32, 64) + stage(64, 64) + stage(64, 128) + (128 + 1 + 1) + 2
    network = residual_network((45, 16, 9))
    assert trainable(network) == published == 2_516_644
    # PyTorch: floor((n + 2 p - k) / s) + 1 for the first convolution, the pooling and each stage.
    shapes = [tuple(layer.output.shape[1:]) for layer in network.layers if type(layer).__name__ == "Add"]
    assert shapes == [(12, 4, 3, 32)] * 2 + [(6, 2, 2, 64)] * 2 + [(3, 1, 1, 64)] * 2 + [(2, 1, 1, 128)] * 2


def test_low_level_features_are_the_cells_over_the_energy():
    features = low_level_features(REAL, SAMPLING)
    assert features.shape == (400, 1 + 9 * 9 * 12)
    assert features[:, 0] == pytest.approx(np.log10(1000 * REAL.energy_gev))
    cells = features[7, 1:].reshape(12, 9, 9)
    assert cells[5, 3, 4] == pytest.approx(REAL.cells_gev[7, 3, 4, 5] / REAL.energy_gev[7] / SAMPLING)
    assert features[:, 1:].sum(axis=1).mean() == pytest.approx(1, abs=0.1)


def test_high_level_features_are_the_published_list():
    """One layer of one shower by hand, with the published formulas, and an empty layer."""
    showers = make_showers(5, 4)
    showers.cells_gev[3, :, :, 11] = 0
    features = high_level_features(showers, SAMPLING, AXES)[3]
    assert features.shape == (2 + 8 * 12,)
    cells = showers.cells_gev[3].astype(float) * 1000 / SAMPLING
    energies, x, y, width_x, width_y = (features[1 + 12 * k : 13 + 12 * k] for k in range(5))
    sparsity, r, width_r = (features[62 + 12 * k : 74 + 12 * k] for k in range(3))
    layer = cells[:, :, 5]
    columns, rows = np.meshgrid(AXES.first, AXES.second, indexing="ij")
    assert features[0] == pytest.approx(np.log10(1000 * showers.energy_gev[3]))
    assert features[61] == pytest.approx(np.log10(cells.sum()))
    assert energies[5] == pytest.approx(np.log10(layer.sum()))
    for centre, width, at in ((x, width_x, columns), (y, width_y, rows), (r, width_r, np.hypot(columns, rows))):
        mean = np.average(at, weights=layer)
        assert 100 * centre[5] == pytest.approx(mean, abs=1e-4)
        assert 100 * width[5] == pytest.approx(np.sqrt(np.average((at - mean) ** 2, weights=layer)), rel=1e-4)
    assert sparsity[5] == pytest.approx((layer == 0).mean())
    assert (energies[11], x[11], r[11], width_r[11], sparsity[11]) == pytest.approx((-8, 0, 0, 0, 1))


@pytest.mark.integration
def test_equal_samples_are_not_distinguished_and_unequal_ones_are():
    real, alike, wrong = (high_level_features(showers, SAMPLING, AXES) for showers in (REAL, ALIKE, WRONG))
    options = {"epochs": 6, "seed": 1, "batch": 40}
    build = partial(dense_network, 98, 256)
    equal, unequal = judge(real, alike, build, **options), judge(real, wrong, build, **options)
    assert equal.auc == pytest.approx(0.5, abs=3.5 * equal.auc_uncertainty)
    assert unequal.auc > 0.5 + 5 * unequal.auc_uncertainty and unequal.auc > equal.auc + 0.15
    assert unequal.showers == (240, 80, 80) and 1 <= unequal.best_epoch <= unequal.epochs <= 6


@pytest.mark.long
@pytest.mark.parametrize(("network", "rate"), [(residual_network, LEARNING_RATE), (convolutional_network, 1e-3)])
def test_networks_of_cells_distinguish_bright_cells(network, rate):
    real, alike = (low_level_features(showers[:100], SAMPLING) for showers in (REAL, ALIKE))
    alike[:, 1:] *= 3
    found = judge(real, alike, partial(network, (12, 9, 9)), epochs=12, seed=1, batch=10, learning_rate=rate)
    assert found.auc > 0.9 and found.showers == (60, 20, 20)


@pytest.mark.long
def test_the_small_network_sees_how_cells_lie_beside_each_other():
    """The same cells in another order: no feature of a single cell differs."""
    real, alike = (low_level_features(showers, SAMPLING) for showers in (REAL, ALIKE))
    cells = alike[:, 1:].reshape(len(alike), 12, 81)
    mixed = np.random.default_rng(1).permuted(cells, axis=2)
    options = {"epochs": 6, "seed": 1, "batch": 30, "learning_rate": 1e-3}
    build = partial(convolutional_network, (12, 9, 9))
    other = np.concatenate([alike[:, :1], mixed.reshape(len(alike), -1)], axis=1)
    equal, unequal = judge(real, alike, build, **options), judge(real, other, build, **options)
    assert equal.auc == pytest.approx(0.5, abs=3.5 * equal.auc_uncertainty)
    assert unequal.auc > 0.9


@pytest.mark.integration
def test_a_certain_difference_ends_the_training_at_accuracy_one():
    real = np.ones((50, 3), np.float32)
    found = judge(real, -real, partial(dense_network, 3, 64), epochs=50, seed=1, batch=10)
    assert found.auc == 1 and found.epochs < 50 and found.jsd == pytest.approx(1, abs=1e-4)


def test_too_few_showers_are_refused():
    with pytest.raises(ValueError, match="five showers of each kind, there are 4"):
        judge(np.ones((4, 2)), np.ones((9, 2)), partial(dense_network, 2), epochs=1, seed=1)
