"""Networks as .keras files that Keras 3 loads, and weights as .npz files.

A network may have been trained in bfloat16 or with synchronised batch normalisation. The file holds the network of the
family in float32 with the trained weights, which have the same order in all of these.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import CheckpointError, TrainingError
from caloscale.models import legacy_keras
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
    """Write networks as .keras files. Raises OSError and TrainingError."""
    if legacy_keras.is_active():
        _save_with_keras_3(run, files)
        return
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


def _save_with_keras_3(run: Run, files: Sequence[NetworkFile]) -> None:
    """`save_networks` in another process, which has Keras 3. Raises OSError, and TrainingError when it fails."""
    with tempfile.TemporaryDirectory() as folder:
        for index, (_, _, weights) in enumerate(files):
            save_weights(Path(folder) / f"{index}.npz", weights)
        (Path(folder) / "run.json").write_text(run.model_dump_json(by_alias=True), encoding="utf-8")
        omitted = (legacy_keras.VARIABLE, "TF_CONFIG")
        environment = {name: value for name, value in os.environ.items() if name not in omitted}
        named = [f"{role}={Path(file).absolute()}" for file, role, _ in files]
        env = {**environment, "CUDA_VISIBLE_DEVICES": "-1"}
        done = subprocess.run([sys.executable, "-m", __name__, folder, *named], env=env, capture_output=True, text=True)
    if done.returncode:
        raise TrainingError(f"the networks cannot be saved by Keras 3:\n{done.stderr[-2000:]}")


def _main(arguments: Sequence[str]) -> None:
    """The process of `_save_with_keras_3`: a folder with run.json and numbered weights, then role=file in order."""
    folder, *named = arguments
    run = Run.model_validate_json((Path(folder) / "run.json").read_bytes())
    files = []
    for index, argument in enumerate(named):
        role, _, file = argument.partition("=")
        files.append(NetworkFile(Path(file), role, load_weights(Path(folder) / f"{index}.npz")))
    save_networks(run, files)


if __name__ == "__main__":
    _main(sys.argv[1:])
