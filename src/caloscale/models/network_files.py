"""Networks as .keras files.

A network may have been trained in bfloat16 or with synchronised batch normalisation. The file holds the network of the
family in float32 with the trained weights, which have the same order in all of these.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from caloscale.errors import CheckpointError
from caloscale.models.families.family import Networks, build, family_of
from caloscale.spec import Model, Run

if TYPE_CHECKING:
    import tensorflow as tf


def save_networks(run: Run, networks: Networks, folder: Path) -> None:
    """Write networks of a run into a folder, as .keras files by role. Raises OSError."""
    for role, plain in build(run.model, run.data).items():
        plain.set_weights(networks[role].get_weights())
        plain.save(str(folder / f"{role}.keras"))


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
