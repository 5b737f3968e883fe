"""The files of a trained generator: its description `model.json`, and its networks as .keras files."""

import zipfile
from pathlib import Path
from typing import Any

from pydantic import Field

from caloscale.errors import CheckpointError, ConfigurationError
from caloscale.models.families.family import Networks, build, family_of
from caloscale.spec import Model, Run, build_run
from caloscale.spec.block import read_block
from caloscale.spec.data import Geometry, Preprocessing, PrimaryRanges

CARD = "model.json"
GENERATOR = "generator.keras"
"""Networks are files by the name of their role."""
REJECTED = "REJECTED.md"
"""File that a validation writes instead of a model that it rejected."""
VERDICT = "verdict.json"
"""File with the decision of a validation about the model in the same folder."""
_NOT_SIMULATED: Any = {"mirror": True, "preprocessing": True, "simulation": {"processes"}}
"""Fields of data on which neither simulated showers nor their split depend."""
DECIDED = ("decision", "reasons", "gates", "dropped", "ungated", "worth", "warnings")
"""What is stored of an evaluation with a model."""


class ModelCard(PrimaryRanges):
    """Description of a trained generator, as programs that use it need it."""

    preset: str
    """The preset."""
    shape: tuple[int, int, int]
    """Cells of a shower, after re-binning."""
    latent_size: int
    """Length of the generator's input."""
    preprocessing: Preprocessing
    """From energies to network units."""
    geometry: Geometry
    """The detector, before re-binning."""
    source: str
    """Origin of the training showers: geant4, parametrised, generated or file."""
    showers_sha256: str | None = None
    """Checksum of the training shards (`Manifest.train_sha256`); none: not known."""
    configuration: dict[str, Any]
    """The run configuration."""
    versions: dict[str, str]
    """Versions of the software that trained it."""
    step: int = Field(ge=0)
    """Step of its weights."""
    epoch: int = Field(ge=0)
    """Epoch of its weights."""
    deviation: float | None
    """Its figure of merit on validation showers; null where its showers were not finite."""
    parameters: dict[str, int]
    """Trainable parameters of each network, by role."""

    @classmethod
    def of(cls, run: Run, **given: Any) -> "ModelCard":
        """The card of a generator of this run. given: the fields that do not follow from the run; `step`, `epoch` and
        `deviation` are 0 where they are absent."""
        data = run.data
        return cls(
            preset=run.model.preset,
            shape=data.shape,
            latent_size=family_of(run.model).latent_size(run.model, data),
            preprocessing=data.preprocessing,
            geometry=data.geometry,
            **dict(data.primary_ranges()),
            configuration=run.model_dump(mode="json", by_alias=True),
            **{"step": 0, "epoch": 0, "deviation": 0.0, **given},
        )


def read_card(folder: Path) -> ModelCard:
    """The card of a model folder. Raises CheckpointError."""
    path, remedy = folder / CARD, "give the folder `model` of a training"
    if not path.exists() and (folder / REJECTED).is_file():
        remedy = f"its validation rejected it, {REJECTED} says why; the model is in `training/model` of the run"
    return read_block(ModelCard, path, remedy=remedy, error=CheckpointError, what="a model card")


def read_configuration(folder: Path) -> Run:
    """The blocks `model` and `data` of the run configuration that a model was trained with, which determine its
    networks and units. All others are those of the preset: another version may have written them with other keys.

    Raises CheckpointError.
    """
    card = read_card(folder)
    try:
        return build_run({block: card.configuration.get(block, {}) for block in ("model", "data")}, file=folder / CARD)
    except ConfigurationError as error:
        problem = f"holds a run configuration that is not valid here: {error.field}: {error.problem}"
        remedy = "use the version of caloscale that trained it (versions in the same file), or train again"
        raise CheckpointError(problem, file=folder / CARD, remedy=remedy) from error


def read_start(folder: Path, run: Run) -> Run:
    """The run configuration of the model with whose weights a training of ``run`` begins (train.startFrom).

    Raises CheckpointError, and ConfigurationError for a model of another preset or another primary, and for one that
    was trained on simulated showers that this run holds out.
    """
    trained = read_configuration(folder)
    for field in ("preset", "family"):
        theirs, ours = getattr(trained.model, field), getattr(run.model, field)
        if theirs != ours:
            problem = f"is a model of the {field} {theirs}, this run has {ours}"
            remedy = f"set model.{field} to {theirs}, or give another model"
            raise ConfigurationError(problem, field="train.startFrom", value=run.train.start_from, remedy=remedy)
    if trained.data.particle != run.data.particle:
        ours = run.data.particle_text
        problem = f"is a model of showers of {trained.data.particle_text}, this run has showers of {ours}"
        remedy = f"give a model of {ours}, or leave train.startFrom out"
        raise ConfigurationError(problem, field="train.startFrom", value=run.train.start_from, remedy=remedy)
    known, own = (data.model_dump(exclude=_NOT_SIMULATED) for data in (trained.data, run.data))
    split = [own.pop(name) == known.pop(name) for name in ("showers", "validation_fraction")]
    if run.data.source == "simulate" and known == own and not all(split):
        problem = "was trained on showers of the same simulation, some of which are held out to judge this run"
        remedy = f"set data.seed to another value than {run.data.seed}, which simulates other showers"
        raise ConfigurationError(problem, field="train.startFrom", value=run.train.start_from, remedy=remedy)
    return trained


def save_networks(run: Run, networks: Networks, folder: Path) -> None:
    """Write networks of a run into a folder, as .keras files by role. Raises OSError.

    A network may have been trained in bfloat16 or with synchronised batch normalisation. The file holds the network of
    the family in float32 with the trained weights, which have the same order in all of these.
    """
    for role, plain in build(run.model, run.data).items():
        plain.set_weights(networks[role].get_weights())
        plain.save(str(folder / f"{role}.keras"))


def load_network(file: Path, model: Model) -> Any:
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
