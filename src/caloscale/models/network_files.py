"""Networks as .keras files, and weights as .npz files.

A network may have been trained in bfloat16 or with synchronised batch normalisation. The file holds the network of the
family in float32 with the trained weights, which have the same order in all of these.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import CheckpointError
from caloscale.models.families.family import build, family_of
from caloscale.spec import Model, Run

if TYPE_CHECKING:
    import tensorflow as tf

Weights = Sequence[NDArray[np.float32]]


class NetworkFile(NamedTuple):
    """A .keras file that is to be written."""

    file: Path
    role: str
    weights: Weights


def save_networks(run: Run, files: Sequence[NetworkFile]) -> None:
    """Write networks as .keras files. Raises OSError."""
    networks = build(run.model, run.data)
    for file, role, weights in files:
        networks[role].set_weights(list(weights))
        networks[role].save(str(file))


def save_weights(file: Path, weights: Weights) -> None:
    """Write weights as an .npz file, in order."""
    # An open file: numpy would add a suffix to a name.
    with file.open("wb") as stream:
        named: dict[str, Any] = {f"{index:04d}": value for index, value in enumerate(weights)}
        np.savez(stream, **named)


def load_weights(file: Path) -> Weights:
    """What `save_weights` wrote. Raises OSError and ValueError."""
    with np.load(file) as saved:
        return [saved[name] for name in sorted(saved.files)]


def load_network(file: Path, model: Model) -> tf.keras.Model:
    """The Keras model that `save_networks` wrote for a run. CheckpointError for a file that is missing or damaged."""
    import tensorflow as tf

    # Its layers must be known to Keras before a network is read.
    family_of(model).load_layers()
    remedy = "train again, or copy the whole model folder"
    if not file.is_file():
        raise CheckpointError("is missing", file=file, remedy=remedy)
    if not zipfile.is_zipfile(file):
        raise CheckpointError("is truncated or damaged: it is not a complete Keras archive", file=file, remedy=remedy)
    try:
        return tf.keras.models.load_model(str(file), compile=False)
    except Exception as error:  # Keras raises what its parts raise: zip, JSON, HDF5, its own
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(f"is damaged: {reason}", file=file, remedy=remedy) from error
