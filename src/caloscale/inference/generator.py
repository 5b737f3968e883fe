"""Load a released generator and generate showers with it, in batches."""

import logging
import math
import random
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from caloscale.errors import CheckpointError, InputError
from caloscale.inference.primaries import Primaries, Span, broadcast, check_trained
from caloscale.inference.runtime import Runtime, RuntimeName, suitable_streams
from caloscale.inference.stream import generate_table
from caloscale.models import build, family_of
from caloscale.models.card import CARD, GENERATOR, ModelCard, load_network, read_card, read_configuration
from caloscale.models.layers.convolution import check_precision
from caloscale.processor import cores
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.layouts import DETECTOR_ATTRIBUTE
from caloscale.showers.preprocessing import to_gev
from caloscale.showers.primaries import Floats
from caloscale.showers.sources import origin_attributes
from caloscale.spec import Run
from caloscale.spec.data import PDG_CODES

log = logging.getLogger(__name__)


class Generator(Runtime):
    """A trained generator in TensorFlow: network and preprocessing as one compiled graph."""

    def __init__(
        self, network: Any, card: ModelCard, run: Run, *, precision: str = "float32", streams: int = 1
    ) -> None:
        self.family = family_of(run.model)
        noise = self.family.noise_size(run.model, run.data)
        super().__init__(card, noise, precision=precision, streams=streams)
        self.network, self.run = network, run

    @classmethod
    def load(cls, folder: str | Path) -> "Generator":
        """The generator of a model folder, such as runs/latest/model.

        Raises CheckpointError for a folder that is no model, is damaged, or holds the reasons of a rejection only.
        """
        return load_generator(folder)

    def __repr__(self) -> str:
        """One line: network, cells, and what it was trained with."""
        card = self.card
        cells, energy, angle = " x ".join(map(str, card.shape)), card.energy_gev, card.angle_deg
        return (
            f"Generator({card.preset}, {cells} cells, {card.particle_text} of {energy[0]:g} to {energy[1]:g} GeV, "
            f"{angle[0]:g} to {angle[1]:g} degrees)"
        )

    def generate(
        self,
        energy_gev: float | NDArray[np.floating],
        angle_rad: float | NDArray[np.floating] | None = None,
        *,
        count: int | None = None,
        seed: int | None = None,
        batch: int | None = None,
        extrapolate: bool = False,
        **further: float | NDArray[np.floating],
    ) -> Showers:
        """Showers of these primaries, in GeV, re-binned; the same for the same seed and any batch.

        energy_gev: one number, or one of each shower (N,), GeV. angle_rad: likewise, rad; None: drawn uniformly from
        the angles that the model was trained with, by the seed. count: number of showers where all primaries are single
        numbers; None: 1. seed: None is a random one; the showers have it as ``seed``. further: the other columns of the
        model's table of primaries (`ModelCard.columns`); ``pdg``, which the showers have always, need not be given to a
        model of one primary. extrapolate: also energies and angles that the model was not trained with, where no
        verdict holds, with a warning. Raises InputError for these otherwise, for energies that are not positive, angles
        that are not within 0 and pi, numbers that are not finite or not of equal length, and further columns that are
        missing or go beyond what was trained.
        """
        given = {"energy_gev": energy_gev, **({} if angle_rad is None else {"angle_rad": angle_rad}), **further}
        table = broadcast({name: np.asarray(column, np.float32) for name, column in given.items()}, count)
        seed = secrets.randbits(31) if seed is None else seed
        if angle_rad is None:
            angles = Span(*map(math.radians, self.card.angle_deg))
            table |= Primaries({"angle_rad": angles}, seed).of(0, len(table["energy_gev"]))
        if "pdg" in table and "pdg" not in self.card.spans:  # of its only primary
            check_trained({"pdg": table.pop("pdg")}, self.card)
        showers = generate_table(self, table, seed=seed, batch=batch, extrapolate=extrapolate)
        pdg = np.full(len(showers), PDG_CODES[self.card.particles[0]], np.float32)
        columns = {**showers.further, "pdg": showers.further.get("pdg", pdg)}
        detector = origin_attributes(self.run.data)[DETECTOR_ATTRIBUTE]
        return replace(showers, seed=seed, further=columns, detector=detector)

    def _compute(self, inputs: dict[str, Floats]) -> Floats:
        return self.cells_gev(*inputs.values()).numpy()

    @cached_property
    def cells_gev(self) -> Any:
        """The graph that this runtime computes: `graph` for TensorFlow."""
        return self.graph("tensorflow")

    def graph(self, runtime: RuntimeName) -> Any:
        """From noise (B, n) and the columns of the table of primaries (B,) to GeV per cell (B, X, Y, Z).

        The network's function with its layers merged in the way that is fastest in a runtime, as one compiled graph for
        any B, with the names that exported models have too. It has the weights that the network has now.
        """
        compute = self._merged(runtime)
        return self._compiled(lambda *inputs: compute(self._latent(*inputs)))

    @cached_property
    def network_cells_gev(self) -> Any:
        """The same by the Keras network, layer by layer: what every other form is compared with."""
        preprocessing = self.card.preprocessing
        return self._compiled(
            lambda *inputs: to_gev(self.network(self._latent(*inputs), training=False)[..., 0], preprocessing)
        )

    def _merged(self, runtime: RuntimeName) -> Callable[[Any], Any]:
        """From the network's input to GeV; layer by layer where the family has no other form."""
        preprocessing, precision = self.card.preprocessing, self.precision if runtime == "tensorflow" else "float32"
        try:
            cells_of, unit = self.family.fast_form(self.network, self.run, runtime, precision)
        except ValueError as error:
            if precision != "float32":
                problem = f"is not offered for this network: {error}"
                remedy = "use --precision float32"
                raise InputError(problem, field="precision", value=precision, remedy=remedy) from error
            log.info("%s: the network is computed layer by layer: %s", runtime, error)
            return lambda inputs: to_gev(self.network(inputs, training=False)[..., 0], preprocessing)
        if unit == "network":
            return lambda inputs: to_gev(cells_of(inputs), preprocessing)
        smallest = max(np.float32(preprocessing.threshold_gev), np.finfo(np.float32).tiny)

        def above_threshold(inputs: Any) -> Any:
            cells = cells_of(inputs)
            # Not tf.where, which becomes nine operations in ONNX. A cell that is not finite stays so.
            return cells * tf.cast(cells >= smallest, tf.float32)

        return above_threshold

    def _latent(self, noise: Any, *columns: Any) -> Any:
        return self.family.latent(noise, dict(zip(self.card.columns, columns)), self.run.model, self.run.data)

    def _compiled(self, function: Callable[..., Any]) -> Any:
        return tf.function(
            lambda noise, *columns: function(noise, *columns),
            input_signature=(
                tf.TensorSpec((None, self.noise_size), tf.float32, name="noise"),
                *(tf.TensorSpec((None,), tf.float32, name=name) for name in self.card.columns),
            ),
            jit_compile=False,
            autograph=False,
        )


def open_generator(folder: Path, *, precision: str, streams: int, threads: int | None) -> Generator:
    """The generator of a model folder as a runtime with its options. Raises CheckpointError and InputError."""
    if precision == "int8":
        problem = "TensorFlow computes released generators in float32 or bfloat16"
        remedy = "use --runtime openvino, or --precision bfloat16"
        raise InputError(problem, field="precision", value=precision, remedy=remedy)
    check_precision(precision, "precision")
    if threads is not None:
        limit_threads(threads, streams)
    elif streams > 1:
        with suppress(InputError):  # TensorFlow has started: the streams share what it has
            limit_threads(cores(), streams)
    loaded = load_generator(folder)
    opened = Generator(loaded.network, loaded.card, loaded.run, precision=precision, streams=streams)
    _ = opened.cells_gev  # refuses what cannot be had before any shower is generated
    return opened


def limit_threads(threads: int, streams: int = 1) -> None:
    """Bound the threads of TensorFlow in this process; an operation gets the share of a stream, waiting for no other.

    Raises InputError once it has started with others.
    """
    threading, share = tf.config.threading, max(1, threads // streams)
    if threading.get_intra_op_parallelism_threads() == share:
        return
    try:
        threading.set_intra_op_parallelism_threads(share)
        threading.set_inter_op_parallelism_threads(max(share, streams))
    except RuntimeError as error:
        problem = "cannot change once TensorFlow has started"
        remedy = "set them in a process of its own, before anything else uses TensorFlow"
        raise InputError(problem, field="threads", value=threads, remedy=remedy) from error


def load_generator(folder: str | Path, *, untrained: bool = False) -> Generator:
    """The generator of a model folder; ``untrained``: with fresh weights, as before a training.

    It has twice as many streams as `suitable_streams`: TensorFlow's threads, which are not bound here, have work while
    the random numbers of another batch are drawn. Raises CheckpointError for a folder that is no model, is damaged, or
    does not fit together.
    """
    folder = Path(folder)
    card, run = read_card(folder), read_configuration(folder)
    path = folder / GENERATOR
    network = load_network(path, run.model)
    expected = (tuple(network.input_shape[1:]), tuple(network.output_shape[1:]))
    if expected != ((card.latent_size,), (*card.shape, 1)):
        problem = f"is a network for other showers than {CARD} says"
        raise CheckpointError(problem, file=path, value=expected, remedy="copy the whole model folder again")
    return Generator(_untrained(network, run) if untrained else network, card, run, streams=2 * suitable_streams())


def _untrained(trained: tf.keras.Model, run: Run) -> tf.keras.Model:
    """Fresh weights, the same at every call, but for those that no step changes (`Family.adapted_weights`).

    Keras draws the seeds of its initializers from Python's generator, which is then set back.
    """
    before = random.getstate()
    random.seed(run.train.seed)
    try:
        network, family = build(run.model, run.data)["generator"], family_of(run.model)
    finally:
        random.setstate(before)
    for weight, value in zip(family.adapted_weights(network), family.adapted_weights(trained)):
        weight.assign(value)
    return network
