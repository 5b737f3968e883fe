"""A pipeline with a trained generator of showers: which beam made the measured ones?"""

import math
from pathlib import Path

import tensorflow as tf

from caloscale.detector.geometry import sensor_depth_mm
from caloscale.errors import ConfigurationError
from caloscale.models import latent, noise_size
from caloscale.models.card import GENERATOR, ModelCard, read_card, read_configuration
from caloscale.models.network_files import load_network
from caloscale.random import EventDraws
from caloscale.sagips.environment import EVENTS, PARAMETERS, Chain, Values
from caloscale.showers.preprocessing import to_gev

_EMPTY_GEV = 1e-9
"""Keeps means of showers without energy finite."""


class Primaries:
    """Energy, GeV, and angle, rad, (samples,) each, of parameters within the ranges of a model."""

    def __init__(self, card: ModelCard) -> None:
        self._ranges = [card.energy_gev, tuple(map(math.radians, card.angle_deg))]

    def __call__(self, values: Values, draws: EventDraws) -> Values:
        """The tensors ``energy_gev`` and ``angle_rad``."""
        columns = tf.unstack(values[PARAMETERS], axis=1)
        primaries = [low + column * (high - low) for column, (low, high) in zip(columns, self._ranges)]
        return dict(zip(("energy_gev", "angle_rad"), primaries))


class ShowerGenerator:
    """Showers of each primary by the network of a model folder: cells in GeV (samples, showers, X, Y, Z)."""

    def __init__(self, folder: Path, events_per_sample: int) -> None:
        self._run, self._events = read_configuration(folder), events_per_sample
        self._network = load_network(folder / GENERATOR, self._run.model)

    def __call__(self, values: Values, draws: EventDraws) -> Values:
        """The tensor ``cells_gev``."""
        run, size = self._run, noise_size(self._run.model, self._run.data)
        noise = draws.normal((self._events, size))
        table = {name: tf.repeat(values[name], self._events) for name in ("energy_gev", "angle_rad")}
        inputs = latent(tf.reshape(noise, (-1, size)), table, run.model, run.data)
        cells = to_gev(self._network(inputs, training=False)[..., 0], run.data.preprocessing)
        return {"cells_gev": tf.reshape(cells, (-1, self._events, *cells.shape[1:]))}


class Calorimeter:
    """What is measured of a shower: sum of the cells, GeV, barycentre in depth, mm, and slope of x over the depth."""

    def __init__(self, card: ModelCard) -> None:
        self._depth = tf.constant(sensor_depth_mm(card.geometry, card.preprocessing.rebin[2]), tf.float32)
        size = card.geometry.cell_mm * card.preprocessing.rebin[0]
        self._x = (tf.range(card.shape[0], dtype=tf.float32) - (card.shape[0] - 1) / 2) * size

    def __call__(self, values: Values, draws: EventDraws) -> Values:
        """Events (samples, showers, 3) of the tensor ``cells_gev``; the slope is that of the energy-weighted line."""
        plane = tf.reduce_sum(values["cells_gev"], axis=3)
        total = tf.reduce_sum(plane, axis=[2, 3])
        weights = plane / tf.maximum(total, _EMPTY_GEV)[:, :, tf.newaxis, tf.newaxis]
        along, across = tf.reduce_sum(weights, axis=2), tf.reduce_sum(weights, axis=3)
        depth, x = tf.linalg.matvec(along, self._depth), tf.linalg.matvec(across, self._x)
        both = tf.einsum("sexz,x,z->se", weights, self._x, self._depth) - x * depth
        spread = tf.linalg.matvec(along, self._depth**2) - depth**2
        return {EVENTS: tf.stack([total, depth, both / tf.maximum(spread, _EMPTY_GEV)], axis=2)}


class Beam(Chain):
    """Energy and angle of a beam, normalised to the ranges of the model, from its showers."""

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
        super().__init__(Primaries(card), ShowerGenerator(folder, events_per_sample), Calorimeter(card))
