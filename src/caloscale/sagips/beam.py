"""A pipeline with a trained generator of showers: which beam made the measured ones?"""

import math
from pathlib import Path

import tensorflow as tf

from caloscale.detector.geometry import sensor_depth_mm
from caloscale.errors import ConfigurationError
from caloscale.models import latent, noise_size
from caloscale.models.card import GENERATOR, load_network, read_card, read_configuration
from caloscale.random import EventDraws
from caloscale.sagips.environment import EVENTS, PARAMETERS, Values
from caloscale.showers.preprocessing import to_gev

_EMPTY_GEV = 1e-9
"""Keeps means of showers without energy finite."""


class Beam:
    """Energy and angle of a beam, normalised to the ranges of the model, from its showers: sum of the cells, GeV,
    barycentre in depth, mm, and slope of x over the depth."""

    parameters = ("energy", "angle")
    observables = ("sum", "depth", "slope")

    def __init__(self, events_per_sample: int, model: str, truth: tuple[float, float] | None = None) -> None:
        """model: folder of a generator; truth: absent: not known. Raises ConfigurationError and CheckpointError for a
        model that is not possible.
        """
        folder = Path(model)
        card = read_card(folder)
        if card.spans or card.geometry.cell_shape != "grid":
            problem = "is a model of other primaries or cells"
            remedy = "give a model of one primary, in a grid of cells, with energies and angles only"
            raise ConfigurationError(problem, field="model", value=model, remedy=remedy)
        self.truth = None if truth is None else tuple(truth)
        self._ranges = {"energy_gev": card.energy_gev, "angle_rad": tuple(map(math.radians, card.angle_deg))}
        self._run, self._events = read_configuration(folder), events_per_sample
        self._network = load_network(folder / GENERATOR, self._run.model)
        self._depth = tf.constant(sensor_depth_mm(card.geometry, card.preprocessing.rebin[2]), tf.float32)
        size = card.geometry.cell_mm * card.preprocessing.rebin[0]
        self._x = (tf.range(card.shape[0], dtype=tf.float32) - (card.shape[0] - 1) / 2) * size

    def __call__(self, values: Values, draws: EventDraws) -> Values:
        """Events (samples, showers, 3): showers by the network for each primary, and what is measured of them."""
        run, size = self._run, noise_size(self._run.model, self._run.data)
        noise = draws.normal((self._events, size))
        columns = zip(self._ranges.items(), tf.unstack(values[PARAMETERS], axis=1))
        table = {name: tf.repeat(low + column * (high - low), self._events) for (name, (low, high)), column in columns}
        inputs = latent(tf.reshape(noise, (-1, size)), table, run.model, run.data)
        cells = to_gev(self._network(inputs, training=False)[..., 0], run.data.preprocessing)
        return {EVENTS: self.measure(tf.reshape(cells, (-1, self._events, *cells.shape[1:])))}

    def measure(self, cells_gev: tf.Tensor) -> tf.Tensor:
        """The observables (samples, showers, 3) of cells (samples, showers, X, Y, Z); the slope is that of the
        energy-weighted line."""
        plane = tf.reduce_sum(cells_gev, axis=3)
        total = tf.reduce_sum(plane, axis=[2, 3])
        weights = plane / tf.maximum(total, _EMPTY_GEV)[:, :, tf.newaxis, tf.newaxis]
        along, across = tf.reduce_sum(weights, axis=2), tf.reduce_sum(weights, axis=3)
        depth, x = tf.linalg.matvec(along, self._depth), tf.linalg.matvec(across, self._x)
        both = tf.einsum("sexz,x,z->se", weights, self._x, self._depth) - x * depth
        spread = tf.linalg.matvec(along, self._depth**2) - depth**2
        return tf.stack([total, depth, both / tf.maximum(spread, _EMPTY_GEV)], axis=2)
