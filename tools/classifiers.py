"""The classifiers of the CaloChallenge and a small one as judges of generated showers; no gate uses them.

Networks, features, split, training and calibration follow the public evaluation code of the challenge
(arXiv:2410.21611; github.com/CaloChallenge/homepage, code/evaluate.py, code/resnet.py, code/HighLevelFeatures.py at
9b41df7), ported from PyTorch to Keras: the same layers, initial weights, optimiser and batches, in float32 where the
published code computes in float64. Cells on a square grid take the place of the published cylinders: centres of energy
and widths along eta and phi become those along x and y, and radii are distances from the middle of the window.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from sklearn.isotonic import IsotonicRegression

from caloscale.detector.axes import Axes, Floats
from caloscale.physics.classifier import auc
from caloscale.physics.observables import chunks
from caloscale.progress import bar
from caloscale.showers.arrays import Showers

layers = tf.keras.layers

DENSE_UNITS = 2048
DENSE_LAYERS = 2
"""Layers between layers of DENSE_UNITS: the published network has one more than this, its input layer."""
DENSE_EPOCHS = 50
RESIDUAL_CHANNELS = (32, 64, 64, 128)
CONVOLUTIONAL_CHANNELS = (48, 48, 64)
LEARNING_RATE = 2e-4
BATCH = 1000
SHARES = (0.6, 0.2, 0.2)
"""Of each sample: to train, to select the epoch and calibrate, to test."""
_ADAM_EPSILON = 1e-8
_LEAKY_SLOPE = 0.01
_MOMENTUM, _EPSILON = 0.9, 1e-5
_TINY = 1e-16
_TINY_MEV = 1e-8
_FAINT_MEV = 5.0
"""Deposited energy over sampling fraction above which a cell counts by its logarithm."""


@dataclass(frozen=True)
class Judgement:
    """What a classifier finds between two samples.

    auc, auc_uncertainty: after calibration, with the standard deviation of DeLong et al., Biometrics 44 (1988), from
    the test showers alone. jsd: Jensen-Shannon divergence, 1 - (binary cross-entropy after calibration) / ln 2, bits;
    may be slightly negative. epochs, best_epoch: epochs trained and the one with the best accuracy on the second share.
    showers: of each kind that trained, selected, tested.
    """

    auc: float
    auc_uncertainty: float
    jsd: float
    epochs: int
    best_epoch: int
    parameters: int
    showers: tuple[int, int, int]


def low_level_features(showers: Showers, sampling_fraction: float) -> Floats:
    """log10 of the primary's energy in MeV, then cells / sampling fraction / primary's energy: (N, 1 + Z X Y) float32.

    Layers come first, as in the files of the challenge. sampling_fraction: mean of visible over primary's energy in
    Monte Carlo, so that the cells of a shower add up to about 1, as in those files.
    """
    features = np.empty((len(showers), 1 + math.prod(showers.cells_gev.shape[1:])), np.float32)
    features[:, 0] = np.log10(1000 * showers.energy_gev)
    by_layer = showers.cells_gev.transpose(0, 3, 1, 2).reshape(len(showers), -1)
    np.divide(by_layer, sampling_fraction * showers.energy_gev[:, None], out=features[:, 1:])
    return features


def high_level_features(showers: Showers, sampling_fraction: float, axes: Axes) -> Floats:
    """The published list, (N, 2 + 8 Z) float32: log10 E, for each layer log10 of its energy, centre of energy in x and
    in y, widths in x and in y, then log10 of the sum, and for each layer sparsity, mean radius and its width.

    Energies in MeV over the sampling fraction, with 1e-8 MeV added in logarithms; lengths in units of 100 mm.
    """
    x_mm, y_mm = (grid.reshape(-1) for grid in (axes.x_mm, axes.y_mm))
    positions = np.column_stack([x_mm, y_mm, np.hypot(x_mm, y_mm)])
    parts = []
    for chunk in chunks(showers):
        count, *_, depth = chunk.cells_gev.shape
        cells = chunk.cells_gev.transpose(0, 3, 1, 2).reshape(count, depth, -1) * (1000.0 / sampling_fraction)
        per_layer = cells.sum(axis=2, dtype=np.float64)
        mean = cells @ positions / (per_layer + _TINY)[..., None]
        square = cells @ positions**2 / (per_layer + _TINY)[..., None]
        width = np.sqrt((square - mean**2).clip(min=0))
        sparsity = 1 - (cells > 0).mean(axis=2)
        parts.append(
            np.concatenate(
                [
                    np.log10(1000.0 * chunk.energy_gev)[:, None],
                    np.log10(per_layer + _TINY_MEV),
                    *(mean[..., k] / 100 for k in (0, 1)),
                    *(width[..., k] / 100 for k in (0, 1)),
                    np.log10(per_layer.sum(axis=1) + _TINY_MEV)[:, None],
                    sparsity,
                    mean[..., 2] / 100,
                    width[..., 2] / 100,
                ],
                axis=1,
            )
        )
    return np.concatenate(parts).astype(np.float32)


def dense_network(inputs: int, units: int = DENSE_UNITS) -> Any:
    """The published dense network, (B, inputs) -> logit (B, 1): an input layer and DENSE_LAYERS more of `units` with
    LeakyReLU (the published probability of dropout is 0), then one number."""
    network = [layers.Input((inputs,))]
    for width in (inputs, *[units] * DENSE_LAYERS):
        network += [_linear(width, units), layers.LeakyReLU(negative_slope=_LEAKY_SLOPE)]
    return tf.keras.Sequential([*network, _linear(units, 1)])


def _linear(inputs: int, units: int) -> Any:
    """A dense layer that begins as PyTorch's: weights and biases uniform within 1 / sqrt(inputs)."""
    limit = inputs**-0.5
    start = partial(tf.keras.initializers.RandomUniform, -limit, limit)
    return layers.Dense(units, kernel_initializer=start(), bias_initializer=start())


def residual_network(shape: tuple[int, int, int]) -> Any:
    """The published residual network of 18 layers in three dimensions: (B, 1 + Z X Y) -> logit (B, 1).

    shape: layers, x, y. Paddings are those of PyTorch, equal on both sides.
    """
    features = layers.Input((1 + math.prod(shape),))
    energy = _normalised(features[:, :1])
    cells = layers.Reshape((*shape, 1))(features[:, 1:])
    cells = layers.ReLU()(_convolution(cells, RESIDUAL_CHANNELS[0], 7, 2))
    # What enters is not negative, so padding with zeros is that with the smallest number.
    cells = layers.MaxPooling3D(3, 2)(layers.ZeroPadding3D(1)(cells))
    for stage, channels in enumerate(RESIDUAL_CHANNELS):
        cells = _block(cells, channels, 1 if stage == 0 else 2)
        cells = _block(cells, channels, 1)
    joined = layers.Concatenate()([layers.GlobalAveragePooling3D()(cells), energy])
    return tf.keras.Model(features, _linear(RESIDUAL_CHANNELS[-1] + 1, 1)(joined))


def convolutional_network(shape: tuple[int, int, int]) -> Any:
    """A small network that sees a layer's cells beside those of all layers: (B, 1 + Z X Y) -> logit (B, 1).

    shape: layers, x, y. Not of the challenge: logarithms of the cells, with layers as channels.
    """
    features = layers.Input((1 + math.prod(shape),))
    energy = features[:, :1]
    cells = layers.Permute((2, 3, 1))(layers.Reshape(shape)(features[:, 1:] * 10**energy))
    cells = tf.keras.ops.log1p(cells / _FAINT_MEV)
    for channels in CONVOLUTIONAL_CHANNELS:
        cells = layers.Conv2D(channels, 3, padding="same", activation="relu")(cells)
    joined = layers.Concatenate()([layers.GlobalAveragePooling2D()(cells), energy])
    return tf.keras.Model(features, layers.Dense(1)(layers.Dense(64, activation="relu")(joined)))


def _block(cells: Any, channels: int, stride: int) -> Any:
    shortcut = cells
    if stride != 1 or cells.shape[-1] != channels:
        shortcut = _convolution(cells, channels, 1, stride)
    found = layers.ReLU()(_convolution(cells, channels, 3, stride))
    found = _convolution(found, channels, 3, 1)
    return layers.ReLU()(layers.Add()([found, shortcut]))


def _normalised(cells: Any) -> Any:
    return layers.BatchNormalization(momentum=_MOMENTUM, epsilon=_EPSILON)(cells)


def _convolution(cells: Any, channels: int, width: int, stride: int) -> Any:
    """Without bias, begun by He's normal distribution over the outputs, padded equally on both sides, normalised."""
    start = tf.keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
    if width > 1:
        cells = layers.ZeroPadding3D(width // 2)(cells)
    return _normalised(layers.Conv3D(channels, width, stride, use_bias=False, kernel_initializer=start)(cells))


def judge(
    real: Floats,
    generated: Floats,
    build: Callable[[], Any],
    *,
    epochs: int,
    seed: int,
    batch: int = BATCH,
    learning_rate: float = LEARNING_RATE,
    label: str = "classifier",
) -> Judgement:
    """Train a network to distinguish features of Monte Carlo (N, D) and generated showers (M, D), as published.

    Each sample is split by SHARES at random. The weights of the epoch with the best accuracy on the second share are
    calibrated there by isotonic regression and tested on the third; an accuracy of 1 ends the training. build: makes
    the network, features to logits (B, 1). The larger sample is cut to the size of the smaller. Raises ValueError for
    fewer than five showers of a kind.
    """
    count = min(len(real), len(generated))
    if count < 5:
        raise ValueError(f"a classifier needs five showers of each kind, there are {count}")
    rng = np.random.default_rng(seed)
    bounds = np.cumsum((np.array(SHARES[:2]) * count).astype(int))
    thirds = [np.split(sample[rng.permutation(len(sample))[:count]], bounds) for sample in (real, generated)]
    train, select, test = (np.concatenate(pair) for pair in zip(*thirds))
    labels = [np.repeat(np.array([1, 0], np.float32), len(part) // 2) for part in (train, select, test)]
    tf.keras.utils.set_random_seed(seed)
    network = build()
    network.compile(
        tf.keras.optimizers.Adam(learning_rate, epsilon=_ADAM_EPSILON),
        tf.keras.losses.BinaryCrossentropy(from_logits=True),
        jit_compile=False,
    )
    best, best_epoch, weights, epoch = -1.0, 0, network.get_weights(), 0
    with bar(label, epochs, "epochs") as progress:
        while epoch < epochs and best < 1:
            network.fit(train, labels[0], batch_size=batch, shuffle=True, verbose=0)
            epoch += 1
            accuracy = float(((_probability(network, select) > 0.5) == (labels[1] > 0.5)).mean())
            if accuracy > best:
                best, best_epoch, weights = accuracy, epoch, network.get_weights()
            progress.update(1)
    network.set_weights(weights)
    calibration = IsotonicRegression(out_of_bounds="clip", y_min=1e-6, y_max=1 - 1e-6)
    calibration.fit(_probability(network, select), labels[1])
    found = calibration.predict(_probability(network, test))
    half = len(test) // 2
    area = auc(found[:half], found[half:])
    cross_entropy = -np.mean(np.log(np.r_[found[:half], 1 - found[half:]]))
    return Judgement(
        auc=area.value,
        auc_uncertainty=area.uncertainty,
        jsd=float(1 - cross_entropy / np.log(2)),
        epochs=epoch,
        best_epoch=best_epoch,
        parameters=int(sum(np.prod(weight.shape) for weight in network.trainable_weights)),
        showers=(len(train) // 2, len(select) // 2, half),
    )


def _probability(network: Any, features: Floats) -> Floats:
    logits = network.predict(features, batch_size=BATCH, verbose=0)[:, 0].astype(np.float64)
    return 1 / (1 + np.exp(-logits))
