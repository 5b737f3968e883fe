"""Networks as files that any Keras 3 loads, whatever they were trained with.

A network may have been trained by tf_keras, in bfloat16 or with shared batch normalisation; what is given away is the
plain one of the preset, in float32, with the trained weights. Weights have the same order in all of these.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from caloscale.errors import TrainingError
from caloscale.models import build
from caloscale.spec import Run
from caloscale.training.keras_version import VARIABLE

Weights = Sequence[NDArray[np.float32]]


class Portable(NamedTuple):
    """A file to be written."""

    file: Path
    network: Literal["generator", "discriminator"]
    weights: Weights


def save_portable(run: Run, files: Sequence[Portable]) -> None:
    """Write networks as .keras files. Raises OSError, and TrainingError when the other process fails."""
    if "tf_keras" not in tf.keras.Model.__module__:
        _save(run, files)
        return
    with tempfile.TemporaryDirectory() as folder:
        for index, (_, _, weights) in enumerate(files):
            save_weights(Path(folder) / f"{index}.npz", weights)
        (Path(folder) / "run.json").write_text(run.model_dump_json(by_alias=True), encoding="utf-8")
        hidden = (VARIABLE, "TF_CONFIG")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        named = [f"{network}={Path(file).absolute()}" for file, network, _ in files]
        done = subprocess.run(
            [sys.executable, "-m", __name__, folder, *named],
            env={**environment, "CUDA_VISIBLE_DEVICES": "-1"},
            capture_output=True,
            text=True,
        )
    if done.returncode:
        raise TrainingError(f"the model could not be rewritten for Keras 3:\n{done.stderr[-2000:]}")


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


def _save(run: Run, files: Sequence[Portable]) -> None:
    plain = build(run.model, run.data)
    for file, name, weights in files:
        network: Any = getattr(plain, name)
        network.set_weights(list(weights))
        network.save(str(file))


def main(arguments: Sequence[str]) -> None:
    """The other process: a folder with run.json and numbered weights, then network=file in their order."""
    folder, *named = arguments
    run = Run.model_validate_json((Path(folder) / "run.json").read_bytes())
    pairs = [argument.partition("=") for argument in named]
    _save(
        run,
        [
            Portable(Path(file), "generator" if name == "generator" else "discriminator", load_weights(weights))
            for weights, (name, _, file) in zip((Path(folder) / f"{i}.npz" for i in range(len(pairs))), pairs)
        ],
    )


if __name__ == "__main__":
    main(sys.argv[1:])
