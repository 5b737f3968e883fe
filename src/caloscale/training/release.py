"""The folder of a trained model: networks, and a card that says what they are."""

import platform
from pathlib import Path

import numpy as np
import tensorflow as tf

import caloscale
from caloscale.models import Networks, count_parameters
from caloscale.models.card import CARD, ModelCard, save_networks
from caloscale.showers.tfrecord.manifest import Manifest
from caloscale.spec import Run
from caloscale.storage.atomic import atomic_writer
from caloscale.training.checkpoint.metadata import Progress


def versions() -> dict[str, str]:
    """Versions of what a training depends on."""
    return {
        "caloscale": caloscale.__version__,
        "python": platform.python_version(),
        "tensorflow": tf.__version__,
        "keras": f"keras {tf.keras.__version__}",
        "numpy": np.__version__,
    }


def parameters(networks: Networks) -> dict[str, int]:
    """Trainable parameters of each network, by role."""
    return {role: count_parameters(network) for role, network in networks.items()}


def release(folder: Path, networks: Networks, run: Run, manifest: Manifest, selected: Progress) -> None:
    """Write the model folder; one of an earlier training is replaced as a whole. Raises StorageError."""
    card = ModelCard.of(
        run,
        source=manifest.source,
        showers_sha256=manifest.train_sha256,
        versions=versions(),
        parameters=parameters(networks),
        step=selected.selected_step or 0,
        epoch=selected.selected_epoch or 0,
        deviation=selected.selected_deviation,
    )
    with atomic_writer(folder, replace_folder=True) as temporary:
        temporary.mkdir()
        save_networks(run, networks, temporary)
        (temporary / CARD).write_text(card.as_json() + "\n", encoding="utf-8")
