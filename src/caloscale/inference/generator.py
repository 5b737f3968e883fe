"""Load a released generator and generate showers with it, in batches."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from caloscale.errors import CheckpointError, ConfigurationError, InputError
from caloscale.inference.folder import read_card
from caloscale.inference.noise import latent_noise
from caloscale.models import latent, noise_size
from caloscale.models.card import CARD, GENERATOR, UNTRAINED, ModelCard
from caloscale.progress import bar
from caloscale.showers.arrays import Showers
from caloscale.showers.preprocessing import to_gev
from caloscale.spec import Run, build_run

_WORTH_A_BAR = 20_000
"""Showers from which on progress is shown."""


@dataclass(frozen=True)
class Generator:
    """A trained generator and what it was trained for."""

    network: Any
    card: ModelCard
    run: Run

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
        done = 0
        with bar("generate", len(cells), "showers", disable=len(cells) < _WORTH_A_BAR) as shown:
            for part in self.batches(energy_gev, angle_rad, seed=seed, batch=batch):
                cells[done : done + len(part)] = part.cells_gev
                done += len(part)
                shown.update(len(part))
        return Showers(cells, energy_gev, angle_rad, "generated")

    def batches(
        self,
        energy_gev: NDArray[np.floating],
        angle_rad: NDArray[np.floating],
        *,
        seed: int,
        batch: int = 128,
    ) -> Iterator[Showers]:
        """The same showers batch by batch: memory does not grow with their number."""
        if batch < 1:
            raise InputError("must be at least 1", field="batch", value=batch, remedy="use 128")
        energy_gev, angle_rad = _checked(energy_gev, angle_rad)
        for first in range(0, len(energy_gev), batch):
            energy, angle = energy_gev[first : first + batch], angle_rad[first : first + batch]
            noise = latent_noise(seed, first, len(energy), self.noise_size)
            cells = self.cells_gev(noise, energy, angle).numpy()
            yield Showers(cells, energy, angle, "generated")

    @property
    def noise_size(self) -> int:
        """Random numbers a shower takes."""
        return noise_size(self.run.model)

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
        fed = latent(noise, energy_gev, angle_rad, self.run.model, self.run.data)
        return to_gev(self.network(fed, training=False)[..., 0], self.card.preprocessing)


def load_generator(folder: str | Path, *, untrained: bool = False) -> Generator:
    """The generator of a model folder; ``untrained``: as it was before its first step.

    Raises CheckpointError for a folder that is no model, is damaged, or does not fit together.
    """
    folder = Path(folder)
    card = read_card(folder)
    path = folder / UNTRAINED / GENERATOR if untrained else folder / GENERATOR
    remedy = "train again, or copy the whole model folder"
    try:
        run = build_run(card.document, file=folder / CARD)
    except ConfigurationError as error:
        raise CheckpointError("holds a document that is not valid here", file=folder / CARD, remedy=remedy) from error
    if not path.is_file():
        raise CheckpointError("is missing", file=path, remedy=remedy)
    if not zipfile.is_zipfile(path):
        raise CheckpointError("is truncated or damaged: it is not a complete Keras archive", file=path, remedy=remedy)
    # The layers of all presets must be known to Keras before a network is read.
    import caloscale.models.compact_layers
    import caloscale.models.convolution
    import caloscale.models.layers
    import caloscale.models.measurement_layers  # noqa: F401

    try:
        network = tf.keras.models.load_model(str(path), compile=False)
    except Exception as error:  # Keras raises what its parts raise: zip, JSON, HDF5, its own
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"cannot be read: {reason}", file=path, remedy=remedy) from error
    expected = (tuple(network.input_shape[1:]), tuple(network.output_shape[1:]))
    if expected != ((card.latent_size,), (*card.shape, 1)):
        raise CheckpointError(
            f"is a network for other showers than {CARD} says", file=path, value=expected, remedy=remedy
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
