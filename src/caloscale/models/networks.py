"""From the run configuration to a pair of networks, and the input of a generator."""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf

from caloscale.spec import Data, Model


class Networks(NamedTuple):
    """A generator and its discriminator, Keras models."""

    generator: tf.keras.Model
    """latent (B, latentSize) -> showers (B, X, Y, Z, 1) in network units, never negative."""
    discriminator: tf.keras.Model
    """showers (B, X, Y, Z, 1) -> real_fake (probability), energy (E / energyScaleGev), angle (rad),
    ecal_sum (units of 1/unitsPerGev GeV), each (B, 1), and with model.binCounts bins (B, 8)."""


def build(model: Model, data: Data, *, synchronized: bool = False) -> Networks:
    """The networks of a run, with fresh weights.

    synchronized: batch normalisation uses the showers of all replicas.
    Raises ConfigurationError when the preset does not fit the shape of the showers.
    """
    # Only the preset that is asked for is loaded.
    if model.preset == "variable-angle":
        from caloscale.models.variable_angle import build_variable_angle

        return build_variable_angle(model, data, synchronized=synchronized)
    if model.preset == "fixed-angle":
        from caloscale.models.fixed_angle import build_fixed_angle

        return build_fixed_angle(model, data, synchronized=synchronized)
    from caloscale.models.compact import build_compact

    networks: Networks = build_compact(model, data)
    return networks


def noise_size(model: Model) -> int:
    """Random numbers that a generator takes for each shower."""
    return model.latent_size if model.preset == "fixed-angle" else model.latent_size - 2


def latent(noise: tf.Tensor, energy_gev: tf.Tensor, angle_rad: tf.Tensor, model: Model, data: Data) -> tf.Tensor:
    """Input of the generator (B, latentSize).

    noise: normal with mean 0 and width 1, (B, noise_size(model)); energy_gev, angle_rad: (B,) or (B, 1).
    Variable angle and compact: [E / energyScaleGev, angle, noise]. Fixed angle: noise * E / energyScaleGev,
    and the angle is not used.
    """
    noise = tf.convert_to_tensor(noise)
    if noise.shape[-1] != noise_size(model):
        raise ValueError(f"noise must have {noise_size(model)} columns for {model.preset}, got {noise.shape}")
    energy = tf.reshape(tf.cast(energy_gev, noise.dtype), (-1, 1)) / data.preprocessing.energy_scale_gev
    if model.preset == "fixed-angle":
        return noise * energy
    angle = tf.reshape(tf.cast(angle_rad, noise.dtype), (-1, 1))
    return tf.concat([energy, angle, noise], axis=1)


def count_parameters(network: tf.keras.Model) -> int:
    """Trainable parameters of a Keras model."""
    return sum(math.prod(weight.shape) for weight in network.trainable_weights)
