"""Comparison of generated showers with held-out Monte Carlo, and the verdict on the model."""

import json
import math
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic.alias_generators import to_camel

from caloscale.errors import CheckpointError, InputError
from caloscale.inference.export.runtimes import export_folder, source_sha256
from caloscale.inference.generator import load_generator
from caloscale.inference.runtime import Runtime, open_runtime
from caloscale.inference.stream import generate_table
from caloscale.models.card import CARD, DECIDED, REJECTED, VERDICT, ModelCard, read_card, read_configuration
from caloscale.physics import Comparison, Evaluation, compare, evaluate
from caloscale.physics.comparison import refuse_unlike
from caloscale.report.figure_data import FIGURE_DATA_FILE, figure_data
from caloscale.report.physics_sections import verdict_markdown
from caloscale.showers.arrays import Showers
from caloscale.showers.primaries import Table, draw_table, rows
from caloscale.showers.tfrecord.manifest import Manifest
from caloscale.showers.tfrecord.shard_folder import ShardFolder, open_shards
from caloscale.spec import Run
from caloscale.spec.data import BEAM_LINE, first_unlike
from caloscale.spec.workspace_layout import AMPLIFICATION_FILE, MODEL, PHYSICS_FILE
from caloscale.stages.record import recorded
from caloscale.stages.workspace import open_workspace
from caloscale.storage.atomic import atomic_writer, write_text
from caloscale.training.input import check_manifest
from caloscale.training.selection import selection_showers

CELLS_BYTES = 2**30
"""Memory for the cells of the generated showers and of the training showers, each, bytes."""
MOST_SHOWERS = 10_000
"""Generated showers, and training showers that are read, at most: the Monte Carlo showers limit the verdict."""
PRIMARIES = 1
"""Stream of random numbers of the primaries: the seed's others belong to the evaluation."""
OTHER_SHARDS = "trained on other shards than these (the verdict is too good if it has seen showers that are held out)"
"""Warning about a generator."""
UNTRAINED_SHOWERS = 2_000
"""Showers of the untrained network, at most."""


def validate(
    run: Run, workspace: str | Path, dataset: str | Path | ShardFolder, trained: Path, model: Path | None = None
) -> Evaluation:
    """Judge the networks in ``trained``; ``<workspace>/model`` and the folder ``model``, if one is given, get them with
    the verdict, or, when they are rejected, only the reasons.

    Raises InputError when ``trained`` is one of these folders, which are replaced; ShowerFileError and CheckpointError
    for shards and networks of another detector or preprocessing than the run's.
    """
    if trained.resolve() in (target.resolve() for target in (Path(workspace) / MODEL, model) if target is not None):
        problem = "is the folder that is replaced by the result: the networks in it would be lost"
        raise InputError(problem, file=trained, remedy="give the folder `training/model` of the run, or a copy")
    with (
        open_workspace(workspace, run) as folder,
        recorded("validate", folder) as figures,
        open_shards(dataset) as shards,
    ):
        (folder / AMPLIFICATION_FILE).unlink(missing_ok=True)  # of other networks or another comparison
        generator = load_generator(trained)
        comparison, measured = _compared(run, shards, generator, trained)
        figures.update(measured)
        evaluation = _evaluated(run, comparison, generator.card, shards)
        evaluation = evaluation.model_copy(update={"network_sha256": source_sha256(trained)})
        write_text(folder / PHYSICS_FILE, evaluation.model_dump_json(by_alias=True, indent=1))
        write_text(folder / "validation" / FIGURE_DATA_FILE, figure_data(comparison).model_dump_json(by_alias=True))
        verdict = verdict_markdown(evaluation)
        for target in filter(None, (folder / MODEL, model)):
            _publish(evaluation, verdict, trained, target)
        figures["decision"] = evaluation.decision
        return evaluation


def validate_int8(run: Run, dataset: str | Path | ShardFolder, model: Path) -> Evaluation:
    """Judge a model as OpenVINO computes it in int8, by the gates of the run; the verdict is stored next to the export.

    The model itself and its own verdict do not change. Raises CheckpointError for a folder that is no model or of
    another detector or preprocessing than the run's, InputError when OpenVINO or NNCF is not installed.
    """
    read_card(model)
    with open_shards(dataset) as shards:
        generator = open_runtime(model, "openvino", precision="int8")
        comparison, _ = _compared(run, shards, generator, model)
        evaluation = _evaluated(run, comparison, generator.card, shards)
        write_text(export_folder(model, "openvino-int8") / VERDICT, json.dumps(_decided(evaluation), indent=1))
        return evaluation


def _compared(run: Run, shards: ShardFolder, generator: Runtime, trained: Path) -> tuple[Comparison, dict[str, float]]:
    """A generator, opened from ``trained``, and held-out Monte Carlo; how many showers it made, and per second."""
    _check_card(generator.card, trained, run)
    reference, training = monte_carlo(run, shards)
    primaries = draw_primaries(run, training, generated_showers(run))
    generated, rate = _generate(generator, primaries, run.validation.seed)
    few = rows(primaries, slice(UNTRAINED_SHOWERS))
    untrained, _ = _generate(load_generator(trained, untrained=True), few, run.validation.seed)
    comparison = compare(
        reference, generated, training=training, untrained=untrained, data=run.data, validation=run.validation
    )
    return comparison, {"showersPerSecond": rate, "generated": len(generated)}


def _evaluated(run: Run, comparison: Comparison, card: ModelCard, shards: ShardFolder) -> Evaluation:
    """The evaluation, with a warning where the generator was trained on others than these shards, where it began with
    a model of own data, whose held-out showers may have been others, and where primaries of simulated data are
    distributed otherwise, as of many showers below data.preprocessing.minimumSumGev. Those of own data are drawn from
    the shards."""
    evaluation = evaluate(comparison)
    warnings = list(evaluation.warnings)
    if card.showers_sha256 not in (None, shards.manifest.train_sha256):
        warnings.append(OTHER_SHARDS)
    start = card.configuration.get("train", {}).get("startFrom")
    if start is not None and run.data.source != "simulate":
        seen = "the verdict is too good if these have seen showers that are held out here"
        warnings.append(f"trained from the weights of {start} ({seen})")
    if run.data.source == "simulate":
        drawn = comparison.generated_showers.primaries  # as those of the simulation
        warnings += refuse_unlike("generated", drawn, comparison.reference_showers.primaries, drawn)
    return evaluation.model_copy(update={"warnings": tuple(warnings)})


def _check_card(card: ModelCard, trained: Path, run: Run) -> None:
    if (unlike := first_unlike(read_configuration(trained).data, run.data, *BEAM_LINE)) is not None:
        field, found, wanted = unlike
        problem = "the networks were trained for another run configuration"
        remedy = f"train again, or give the run configuration of these networks; the run wants {str(wanted)[:200]}"
        raise CheckpointError(problem, file=trained / CARD, field=field, value=str(found)[:200], remedy=remedy)
    for name in ("energy_gev", "angle_deg"):
        (low, high), judged = getattr(card, name), getattr(run.data, name)
        if not judged[0] <= low <= high <= judged[1]:
            problem = "the networks were trained on a wider range than is judged, and are used in all of it"
            remedy = f"set data.{to_camel(name)} to {[low, high]}, or train on {list(judged)} alone"
            raise CheckpointError(problem, file=trained / CARD, field=to_camel(name), value=[low, high], remedy=remedy)


def monte_carlo(run: Run, shards: ShardFolder) -> tuple[Showers, Showers]:
    """The held-out showers that judge, and training showers; ShowerFileError for shards of another run."""
    check_manifest(shards.path, shards.manifest, run.data)
    # Shards are in random order: the first training showers that fit into memory are a sample.
    trained = np.arange(min(_showers_in_memory(run), shards.manifest.splits["train"]))
    return shards.read("validation", judging_showers(shards.manifest, run)), shards.read("train", trained)


def judging_showers(manifest: Manifest, run: Run) -> NDArray[np.intp]:
    """Numbers of the validation showers that did not select the generator, ascending."""
    chose = selection_showers([shard.showers for shard in manifest.shards_of("validation")])
    others = np.setdiff1d(np.arange(manifest.splits["validation"]), chose)
    count = min(len(others), run.validation.reference_showers)
    return np.sort(np.random.default_rng(run.validation.seed).choice(others, count, replace=False))


def generated_showers(run: Run) -> int:
    """How many showers are generated: as the run configuration sets, or `MOST_SHOWERS` as far as they fit in memory."""
    return run.validation.showers or _showers_in_memory(run)


def _showers_in_memory(run: Run) -> int:
    return max(1, min(MOST_SHOWERS, CELLS_BYTES // (4 * math.prod(run.data.shape))))


def draw_primaries(run: Run, own: Showers, count: int, *, whole: bool = True) -> dict[str, NDArray[np.float32]]:
    """The table of primaries of ``count`` generated showers: uniform in the ranges of the run configuration, as of
    simulated data; or drawn from ``own``, with repetition, where the distribution is not known: of own data, and of
    simulated ones that are not ``whole``, as some were left out.
    """
    random = np.random.default_rng([run.validation.seed, PRIMARIES])
    if whole and run.data.source == "simulate":
        return draw_table(run.data, count, random)
    return rows(own.primaries, random.integers(0, len(own), count))


def _generate(generator: Runtime, primaries: Table, seed: int) -> tuple[Showers, float]:
    """Generated showers, and showers per second."""
    generate_table(generator, rows(primaries, slice(1)), seed=seed, finite=False)  # compiles
    started = time.perf_counter()
    generated = generate_table(generator, primaries, seed=seed, finite=False)
    return generated, len(generated) / (time.perf_counter() - started)


def _publish(evaluation: Evaluation, verdict: str, trained: Path, model: Path) -> None:
    """Replace the model folder as a whole: neither an earlier model nor an earlier reason remains with the new one."""
    with atomic_writer(model, replace_folder=True) as folder:
        if evaluation.decision == "rejected":
            folder.mkdir()
            (folder / REJECTED).write_text(f"# Rejected\n\n{verdict}\n", encoding="utf-8")
        else:
            shutil.copytree(trained, folder)
            (folder / VERDICT).write_text(json.dumps(_decided(evaluation), indent=1) + "\n", encoding="utf-8")


def _decided(evaluation: Evaluation) -> dict[str, Any]:
    """What is stored of a verdict with a model."""
    return evaluation.model_dump(mode="json", by_alias=True, include=set(DECIDED))
