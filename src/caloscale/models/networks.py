"""From the run configuration to a pair of networks, and the input of a generator."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import tensorflow as tf

from caloscale.spec import Data, Model
from caloscale.spec.data import PDG_CODES


class Networks(NamedTuple):
    """A generator and its discriminator, Keras models."""

    generator: tf.keras.Model
    """latent (B, latentSize) -> showers (B, X, Y, Z, 1) in network units, never negative."""
    discriminator: tf.keras.Model
    """showers (B, X, Y, Z, 1), and the condition where there is one (`judged`) -> real_fake (probability), energy
    (E / energyScaleGev), angle (rad), ecal_sum (units of 1/unitsPerGev GeV), each (B, 1), and with model.binCounts bins
    (B, 8)."""


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


class Computed(NamedTuple):
    """How a training step computes the networks. What showers are between the two is a matter of the functions."""

    generator: Callable[..., Any]
    """(latent, training) -> generated showers."""
    discriminator: Callable[..., Any]
    """(showers, and their condition where there is one, as `judged` gives both; training) -> outputs."""
    showers: Callable[[tf.Tensor], Any]
    """(B, X, Y, Z, 1) in network units -> showers."""


def for_training(networks: Networks, model: Model) -> Computed:
    """The functions of the networks as a training step computes them, with the networks' own weights."""
    if model.is_compact:
        from caloscale.models.compact_training import compact_for_training

        with suppress(ValueError):
            return compact_for_training(networks)
    return Computed(networks.generator, networks.discriminator, tf.identity)


def noise_size(model: Model, data: Data) -> int:
    """Random numbers that a generator takes for each shower."""
    return model.latent_size - data.condition_size - (0 if model.preset == "fixed-angle" else 2)


def latent(noise: tf.Tensor, primaries: Mapping[str, tf.Tensor], model: Model, data: Data) -> tf.Tensor:
    """Input of the generator (B, latentSize).

    noise: normal with mean 0 and width 1, (B, noise_size(model, data)); primaries: with the columns of the run's table
    of primaries, (B,) or (B, 1) each.
    Variable angle and compact: [E / energyScaleGev, angle, condition, noise]. Fixed angle: [condition,
    noise * E / energyScaleGev], and the angle is not used.
    """
    noise = tf.convert_to_tensor(noise)
    if noise.shape[-1] != noise_size(model, data):
        raise ValueError(f"noise must have {noise_size(model, data)} columns for {model.preset}, got {noise.shape}")
    energy = _column(primaries["energy_gev"], noise.dtype) / data.preprocessing.energy_scale_gev
    further = condition(primaries, data, noise.dtype)
    if model.preset == "fixed-angle":
        return tf.concat([*further, noise * energy], axis=1) if further else noise * energy
    return tf.concat([energy, _column(primaries["angle_rad"], noise.dtype), *further, noise], axis=1)


def condition(primaries: Mapping[str, tf.Tensor], data: Data, dtype: tf.DType = tf.float32) -> list[tf.Tensor]:
    """What networks take of the further columns of a table of primaries, (B, n) each, n adding up to
    `Data.condition_size`; nothing where the run has energies and angles only.

    Cosine and sine of the azimuth, which continue over a full turn; entries in re-binned cells; 1 for the primary and 0
    for the others.
    """
    parts = []
    for name in data.spans:
        column = _column(primaries[name], dtype)
        if name == "azimuth_rad":
            parts += [tf.cos(column), tf.sin(column)]
        elif name == "pdg":
            codes = tf.constant([[PDG_CODES[particle] for particle in data.particles]], dtype)
            parts.append(tf.cast(tf.equal(column, codes), dtype))
        else:
            axis = 0 if name == "entry_x_mm" else 1
            parts.append(column / (data.geometry.cell_mm * data.preprocessing.rebin[axis]))
    return parts


def judged(cells: tf.Tensor, primaries: Mapping[str, tf.Tensor], data: Data) -> tf.Tensor | list[tf.Tensor]:
    """Input of the discriminator: the showers (B, X, Y, Z, 1), and their `condition` where there is one."""
    further = condition(primaries, data)
    return [cells, tf.concat(further, axis=1)] if further else cells


def _column(values: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    return tf.reshape(tf.cast(values, dtype), (-1, 1))


def count_parameters(network: tf.keras.Model) -> int:
    """Trainable parameters of a Keras model."""
    return sum(math.prod(weight.shape) for weight in network.trainable_weights)
