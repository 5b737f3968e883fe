"""Load a released generator and generate showers with it, in batches."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from caloscale.errors import CheckpointError, InputError
from caloscale.inference.primaries import Primaries
from caloscale.inference.runtime import Floats, Runtime
from caloscale.inference.stream import stream
from caloscale.models import latent, noise_size
from caloscale.models.card import CARD, GENERATOR, UNTRAINED, ModelCard, read_card, read_configuration
from caloscale.models.network_files import load_network
from caloscale.progress import bar
from caloscale.showers.arrays import Showers
from caloscale.showers.preprocessing import to_gev
from caloscale.spec import Run

_WORTH_A_BAR = 20_000
"""Showers from which on progress is shown."""


class Generator(Runtime):
    """A trained generator in TensorFlow: network and preprocessing as one compiled graph."""

    def __init__(
        self, network: Any, card: ModelCard, run: Run, *, streams: int = 1, threads: int | None = None
    ) -> None:
        super().__init__(card, noise_size(run.model), streams=streams, threads=threads)
        self.network, self.run = network, run

    @classmethod
    def load(cls, folder: str | Path) -> Generator:
        """The generator of a model folder, such as runs/latest/model.

        Raises CheckpointError for a folder that is no model, is damaged, or holds the reasons of a rejection only.
        """
        return load_generator(folder)

    def generate(
        self,
        energy_gev: NDArray[np.floating],
        angle_rad: NDArray[np.floating],
        *,
        seed: int,
        batch: int = 128,
    ) -> Showers:
        """Showers of these energies and angles (N,), in GeV, re-binned; the same for the same seed and any batch.

        Raises InputError for energies and angles that are not finite, not positive, or not of equal length.
        """
        energy_gev, angle_rad = _checked(energy_gev, angle_rad)
        cells = np.empty((len(energy_gev), *self.card.shape), np.float32)
        primaries = Primaries(energy_gev, angle_rad, seed, paired=True)
        done = 0
        with bar("generate", len(cells), "showers", disable=len(cells) < _WORTH_A_BAR) as shown:
            for part in stream(self, primaries, seed=seed, count=len(cells), batch=batch):
                cells[done : done + len(part)] = part.cells_gev
                done += len(part)
                shown.update(len(part))
        return Showers(cells, energy_gev, angle_rad, "generated")

    def _compute(self, noise: Floats, energy_gev: Floats, angle_rad: Floats) -> Floats:
        cells: Floats = self.cells_gev(noise, energy_gev, angle_rad).numpy()
        return cells

    @cached_property
    def cells_gev(self) -> Any:
        """From noise (B, n), energies in GeV (B,) and angles in rad (B,) to GeV per cell (B, X, Y, Z).

        One compiled graph for any B, with the names that exported models have too.
        """
        return tf.function(
            self._cells_of_batch,
            input_signature=(
                tf.TensorSpec((None, self.noise_size), tf.float32, name="noise"),
                tf.TensorSpec((None,), tf.float32, name="energy_gev"),
                tf.TensorSpec((None,), tf.float32, name="angle_rad"),
            ),
            jit_compile=False,
            autograph=False,
        )

    def _cells_of_batch(self, noise: Any, energy_gev: Any, angle_rad: Any) -> Any:
        inputs = latent(noise, energy_gev, angle_rad, self.run.model, self.run.data)
        return to_gev(self.network(inputs, training=False)[..., 0], self.card.preprocessing)


def open_generator(folder: Path, *, precision: str, streams: int, threads: int | None) -> Generator:
    """The generator of a model folder as a runtime with its options. Raises CheckpointError and InputError."""
    if precision != "float32":
        raise InputError(
            "TensorFlow computes released generators in float32",
            field="precision",
            value=precision,
            remedy="use --runtime openvino for bfloat16, or --precision float32",
        )
    if threads is not None:
        _limit_threads(threads)
    loaded = load_generator(folder)
    return Generator(loaded.network, loaded.card, loaded.run, streams=streams, threads=threads)


def _limit_threads(threads: int) -> None:
    threading = tf.config.threading
    if threading.get_intra_op_parallelism_threads() == threads:
        return
    try:
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise InputError(
            "cannot change once TensorFlow has started",
            field="threads",
            value=threads,
            remedy="set them in a process of its own, before anything else uses TensorFlow",
        ) from error


def load_generator(folder: str | Path, *, untrained: bool = False) -> Generator:
    """The generator of a model folder; ``untrained``: as it was before its first step.

    Raises CheckpointError for a folder that is no model, is damaged, or does not fit together.
    """
    folder = Path(folder)
    card = read_card(folder)
    path = folder / UNTRAINED / GENERATOR if untrained else folder / GENERATOR
    run = read_configuration(folder)
    network = load_network(path)
    expected = (tuple(network.input_shape[1:]), tuple(network.output_shape[1:]))
    if expected != ((card.latent_size,), (*card.shape, 1)):
        raise CheckpointError(
            f"is a network for other showers than {CARD} says",
            file=path,
            value=expected,
            remedy="copy the whole model folder again",
        )
    return Generator(network, card, run)


def _checked(energy_gev: Any, angle_rad: Any) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    energy, angle = np.asarray(energy_gev, np.float32), np.asarray(angle_rad, np.float32)
    if energy.ndim != 1 or energy.shape != angle.shape:
        raise InputError(
            "must be two lists of equal length",
            field="energy_gev, angle_rad",
            value=(energy.shape, angle.shape),
            remedy="give (N,) and (N,)",
        )
    if not (np.isfinite(energy).all() and np.isfinite(angle).all() and (energy > 0).all()):
        raise InputError("must be finite, energies above 0", field="energy_gev, angle_rad", remedy="remove the others")
    return energy, angle
