"""Comparison of generated showers with held-back Monte Carlo, and the release of the model."""

from __future__ import annotations

import logging
import shutil
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import CheckpointError, InputError
from caloscale.inference import Generator, load_generator
from caloscale.inference.folder import HELD_BACK
from caloscale.models.card import CARD, ModelCard
from caloscale.physics import Evaluation, compare, evaluate
from caloscale.report.figure_data import FIGURE_DATA_FILE, figure_data
from caloscale.report.physics_sections import verdict_markdown
from caloscale.showers.arrays import Showers
from caloscale.showers.tfrecord.manifest import Manifest
from caloscale.showers.tfrecord.shard_folder import ShardFolder, open_shards
from caloscale.spec import Run
from caloscale.spec.workspace_layout import MODEL
from caloscale.stages.record import recorded
from caloscale.stages.workspace import keep_document, open_workspace
from caloscale.storage.atomic import atomic_writer
from caloscale.training.input import check_manifest
from caloscale.training.selection import selection_showers

log = logging.getLogger(__name__)

TRAINING_SHOWERS = 2000
"""Training showers read for what Monte Carlo alone teaches: the mean shower and the energy regression."""


@dataclass(frozen=True)
class ValidationOutcome:
    """What a pipeline step or a verb shows of a validation."""

    evaluation: Evaluation
    released: bool
    verdict: str
    """The verdict table, Markdown."""

    @property
    def metrics(self) -> dict[str, float]:
        """Figures for a metrics page, by name."""
        return self.evaluation.metrics()

    @property
    def roc(self) -> tuple[list[float], list[float], list[float]] | None:
        """False positive rates, true positive rates and thresholds of the classifier."""
        return self.evaluation.roc_curve()


def validate(
    run: Run, workspace: str | Path, dataset: str | Path | ShardFolder, trained: Path, model: Path | None = None
) -> ValidationOutcome:
    """Judge the networks in ``trained``; ``<workspace>/model`` gets them when all gates are kept, else the reason.

    The same is written into the folder ``model``, if one is given. What was in either folder is replaced. Raises
    InputError when ``trained`` is one of them: the networks would be lost; ShowerFileError and CheckpointError for
    shards and networks of another detector or preprocessing than the run's.
    """
    if trained.resolve() in (target.resolve() for target in (Path(workspace) / MODEL, model) if target is not None):
        raise InputError(
            "is the folder that gets the networks when they are released, or else loses them",
            file=trained,
            remedy="give the folder `training/model` of the run, or a copy",
        )
    with open_workspace(workspace) as folder, recorded("validate", folder) as figures, open_shards(dataset) as shards:
        keep_document(run, folder)
        check_manifest(shards.path, shards.manifest, run.data)
        generator = load_generator(trained)
        _check_card(generator.card, trained, run)
        if generator.card.showers_sha256 not in (None, shards.manifest.train_sha256):
            log.warning(
                "%s was trained on other shards than those of %s: if it has seen showers that are held back there, "
                "the verdict is too good",
                trained,
                shards.path,
            )
        reference = shards.read("validation", _judging_showers(shards.manifest, run))
        training = shards.read("train", np.arange(min(TRAINING_SHOWERS, shards.manifest.splits["train"])))
        generated, rate = _generate_like(reference, generator, run)
        figures.update(showersPerSecond=rate, generated=len(generated))
        untrained, _ = _generate_like(reference, load_generator(trained, untrained=True), run)
        comparison = compare(
            reference,
            generated,
            training=training,
            untrained=untrained,
            data=run.data,
            validation=run.validation,
        )
        evaluation = evaluate(comparison)
        _write_json(folder / "validation" / "physics.json", evaluation.model_dump_json(by_alias=True, indent=1))
        _write_json(folder / "validation" / FIGURE_DATA_FILE, figure_data(comparison).model_dump_json(by_alias=True))
        verdict = verdict_markdown(evaluation)
        for target in filter(None, (folder / MODEL, model)):
            _release(evaluation, verdict, trained, target)
        figures["released"] = evaluation.released
        return ValidationOutcome(evaluation, evaluation.released, verdict)


def _check_card(card: ModelCard, trained: Path, run: Run) -> None:
    for field, found, wanted in (
        ("preprocessing", card.preprocessing, run.data.preprocessing),
        ("geometry", card.geometry, run.data.geometry),
    ):
        if found != wanted:
            raise CheckpointError(
                "the networks were trained for another document",
                file=trained / CARD,
                field=field,
                value=str(found)[:200],
                remedy=f"train again, or give the document of these networks; the run wants {str(wanted)[:200]}",
            )


def _judging_showers(manifest: Manifest, run: Run) -> NDArray[np.intp]:
    """Numbers of the validation showers that judge: of those that did not choose the generator, ascending."""
    chose = selection_showers([shard.showers for shard in manifest.shards_of("validation")])
    others = np.setdiff1d(np.arange(manifest.splits["validation"]), chose)
    wanted = min(len(others), run.validation.reference_showers)
    return np.sort(np.random.default_rng(run.validation.seed).choice(others, wanted, replace=False))


def _generate_like(reference: Showers, generator: Generator, run: Run) -> tuple[Showers, float]:
    """Generated showers at the energies and angles of the Monte Carlo, and showers per second."""
    # Evenly: held-back showers lie in the order of the source files, which may go by energy, and all are compared with.
    index = np.arange(run.validation.showers) * len(reference) // run.validation.showers
    energy_gev, angle_rad = reference.energy_gev[index], reference.angle_rad[index]
    generator.generate(energy_gev[:1], angle_rad[:1], seed=run.validation.seed)  # compiles
    started = time.perf_counter()
    generated = generator.generate(energy_gev, angle_rad, seed=run.validation.seed)
    return generated, len(generated) / (time.perf_counter() - started)


def _release(evaluation: Evaluation, verdict: str, trained: Path, model: Path) -> None:
    """Replace the model folder as a whole: neither an earlier model nor an earlier reason stays beside the new one."""
    with atomic_writer(model, replace_folder=True) as folder:
        if evaluation.released:
            shutil.copytree(trained, folder)
        else:
            folder.mkdir()
            (folder / HELD_BACK).write_text(f"# This model was not released\n\n{verdict}\n", encoding="utf-8")


def _write_json(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_writer(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")
