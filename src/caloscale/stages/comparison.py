"""Finished runs in one comparison, and files of other generators judged as a run is."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from caloscale.errors import InputError
from caloscale.physics import Evaluation, compare, evaluate
from caloscale.physics.comparison import refuse_shared, refuse_unlike
from caloscale.report.comparison import Compared, differences
from caloscale.report.figure_data import FIGURE_DATA_FILE, FigureData, figure_data
from caloscale.showers.files import SUFFIXES
from caloscale.showers.primaries import draw_table
from caloscale.showers.sources import read_of_run, sample_of_run
from caloscale.showers.tfrecord.shard_folder import open_shards
from caloscale.spec import Run, load_run
from caloscale.spec.block import read_block
from caloscale.spec.workspace_layout import PHYSICS_FILE
from caloscale.stages.record import read_records
from caloscale.stages.summary import Summary
from caloscale.stages.workspace import dataset_of, named
from caloscale.tensorflow_import import load_tensorflow_quietly


def compare_runs(sources: Sequence[Path], dataset: str | Path | None = None) -> tuple[Compared, ...]:
    """What runs found, in the order given; a file of showers is judged by the first run's gates and held-out showers.
    Those of one name are named by their paths.

    dataset: the shards of the first run, for files; None: `dataset_of` it. Raises InputError for fewer than two
    sources, the same one twice, no run among them, a run that was not validated, or whose report is older than its
    training or validation, and showers of a file with other primaries than those of the run; StorageError and
    ShowerFileError for what cannot be read.
    """
    resolved = [source.resolve() for source in sources]
    if len(sources) < 2 or len(set(resolved)) < len(sources):
        problem = "are fewer than two" if len(sources) < 2 else "name one of them twice"
        remedy = "give two or more different runs"
        raise InputError(problem, field="RUN", value=[str(s) for s in sources], remedy=remedy)
    runs = [source for source in sources if source.suffix not in SUFFIXES]
    if not runs:
        problem = "are files, and no run gives the gates by which they are judged"
        remedy = "give the folder of a run, too"
        raise InputError(problem, field="RUN", value=[str(source) for source in sources], remedy=remedy)
    if dataset is not None and len(runs) == len(sources):
        remedy = "leave it out, or give a file of showers, too"
        raise InputError("judges files, and all are runs", field="dataset", value=str(dataset), remedy=remedy)
    by_source = {source: _read_run(source) for source in runs}
    first, configuration = by_source[runs[0]], load_run(runs[0] / "run.yaml")
    for source in sources:
        if source not in by_source:
            evaluation, figures = judge_file(source, configuration, dataset or dataset_of(runs[0]))
            by_source[source] = Compared(
                name=source.name,
                folder=str(source),
                network=f"file, gates of {first.name}",
                configuration=None,
                evaluation=evaluation,
                figures=figures,
            )
    compared = [by_source[source] for source in sources]
    names = [each.name for each in compared]
    return tuple(each if names.count(each.name) == 1 else replace(each, name=each.folder) for each in compared)


def judge_file(file: Path, run: Run, dataset: str | Path) -> tuple[Evaluation, FigureData]:
    """Showers of a file as if the generator of a run had made them: by its gates, against its held-out showers."""
    data = run.data
    generated = sample_of_run(read_of_run(file, data), data, judged=True, file=file)
    load_tensorflow_quietly()
    from caloscale.stages.validation import MOST_SHOWERS, monte_carlo

    with open_shards(dataset) as shards:
        reference, training = monte_carlo(run, shards)
    refuse_shared(str(file), generated, reference)
    simulated = draw_table(data, MOST_SHOWERS, np.random.default_rng(0)) if data.source == "simulate" else None
    warnings = refuse_unlike(str(file), generated.primaries, reference.primaries, simulated)
    comparison = compare(reference, generated, training=training, untrained=None, data=data, validation=run.validation)
    evaluation = evaluate(comparison)
    evaluation = evaluation.model_copy(update={"warnings": (*evaluation.warnings, *warnings)})
    return evaluation, figure_data(comparison)


def comparison_json(compared: Sequence[Compared]) -> dict[str, Any]:
    """Runs with their gates and figures, and the fields of the run configuration that differ."""
    return {
        "runs": [
            {
                "name": each.name,
                "folder": each.folder,
                "network": each.network,
                "decision": each.evaluation.decision,
                "warnings": list(each.evaluation.warnings),
                "classifierAuc": each.evaluation.classifier.value,
                "millisecondsPerShower": each.milliseconds_per_shower,
                "trainingSeconds": each.training_seconds,
                "usd": each.usd,
                "gates": [gate.as_values() for gate in each.evaluation.gates],
            }
            for each in compared
        ],
        "differences": {field: list(values) for field, values in differences(compared).items()},
    }


def _read_run(folder: Path) -> Compared:
    path = folder / "summary.json"
    if not path.is_file():
        remedy = f"give a folder such as runs/latest, or a file of showers that ends in {', '.join(SUFFIXES)}"
        raise InputError("is not the folder of a run that has a report", field="RUN", value=str(folder), remedy=remedy)
    again = f"validate and report again: caloscale validate -w {folder}; caloscale report -w {folder}"
    summary = read_block(Summary, path, remedy=again)
    reported = read_records(folder).get("report")  # each other stage sets it aside
    if summary.physics is None or reported is None or reported.outcome != "succeeded":
        problem = "was not validated, or was trained or validated again after its report"
        raise InputError(problem, field="RUN", value=str(folder), remedy=again)
    run = load_run(folder / "run.yaml")
    return Compared(
        name=named(folder).name,
        folder=str(folder),
        network=run.model.network,
        configuration=run.as_values(),
        evaluation=read_block(Evaluation, folder / PHYSICS_FILE, remedy=again),
        figures=read_block(FigureData, folder / "validation" / FIGURE_DATA_FILE, remedy=again),
        milliseconds_per_shower=1e3 / summary.generate.showers_per_second if summary.generate else None,
        training_seconds=summary.train.seconds if summary.train else None,
        usd=summary.bill.usd if summary.bill else None,
    )
