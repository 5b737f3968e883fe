"""What the showers of finished runs are worth in Geant4 showers, and in dollars."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from caloscale.errors import InputError
from caloscale.inference import load_generator
from caloscale.physics import compare
from caloscale.physics.amplification import measure_amplification
from caloscale.physics.worth import Worth
from caloscale.showers.tfrecord.shard_folder import open_shards
from caloscale.spec import Run, dump_run, load_run
from caloscale.spec.workspace_layout import AMPLIFICATION_FILE, DATASET, TRAINED
from caloscale.stages.reporting import report
from caloscale.stages.validation import draw_primaries, judging_showers
from caloscale.storage.atomic import atomic_writer
from caloscale.training.input import check_manifest


def amplification(
    runs: Sequence[Path], *, held_out: Path | None = None, showers: int = 10_000, worth_of: int = 1_000_000
) -> Worth:
    """Generate with the networks of each run folder and compare with Monte Carlo showers that none was trained on.

    Each run folder gets the result (`AMPLIFICATION_FILE`), and its report is made again.

    held_out: a folder of shards of which all training showers are read, for more than a run has; absent: the validation
    showers of the first run that did not select its networks. showers: of each generator that are compared. worth_of:
    generated showers whose worth is stated.
    Raises InputError for runs that differ in more than the seed of the training, and for a run that is given twice.
    """
    configurations = [_configuration(folder) for folder in runs]
    _check_ensemble(runs, configurations)
    run = configurations[0]
    with open_shards(held_out or runs[0] / DATASET) as shards:
        check_manifest(shards.path, shards.manifest, run.data)
        if held_out is None:
            reference = shards.read("validation", judging_showers(shards.manifest, run))
        else:
            reference = shards.read("train")
    weighted = []
    for number, (folder, configuration) in enumerate(zip(runs, configurations), start=1):
        # Primaries and noise of their own for each member: a common fluctuation would hide in the scatter.
        seed = configuration.validation.seed + number
        drawn = configuration.model_copy(
            update={"validation": configuration.validation.model_copy(update={"seed": seed})}
        )
        primaries = draw_primaries(drawn, reference, showers)
        generated = load_generator(folder / TRAINED).generate_table(primaries, seed=seed)
        comparison = compare(
            reference, generated, training=reference, untrained=None, data=run.data, validation=drawn.validation
        )
        if comparison.samples.unusable:
            raise InputError(
                "generated showers have cells that are not finite or negative",
                file=folder,
                value=comparison.samples.unusable,
                remedy="leave this run out: its generator is rejected",
            )
        weighted.append(comparison.weighted)
    edges = comparison.range_edges_gev
    labels = [f"{low:.3g} to {high:.3g} GeV" for low, high in pairwise(edges)]
    usd = _bill(runs)
    found = measure_amplification(
        weighted[0]["reference"],
        [w["generated"] for w in weighted],
        labels,
        comparison.samples.axes.depth_x0,
        generated=worth_of,
        usd=usd,
    )
    gates = {gate.quantity for gate in run.validation.gates}
    worth = Worth(
        runs=tuple(folder.name for folder in runs),
        source=reference.source,
        reference=len(reference),
        generated=showers,
        worth_of=worth_of,
        usd=usd,
        gated=tuple(one for one in found if one.quantity in gates),
        others=tuple(one for one in found if one.quantity not in gates),
    )
    for folder, configuration in zip(runs, configurations):
        with atomic_writer(folder / AMPLIFICATION_FILE) as temporary:
            temporary.write_text(worth.model_dump_json(by_alias=True, indent=2) + "\n", encoding="utf-8")
        report(configuration, folder)
    return worth


def _configuration(folder: Path) -> Run:
    if not (folder / "run.yaml").is_file():
        raise InputError("no finished run", file=folder, remedy="give folders of runs, such as runs/latest")
    return load_run(folder / "run.yaml")


def _check_ensemble(runs: Sequence[Path], configurations: Sequence[Run]) -> None:
    seen: dict[int, Path] = {}
    for folder, run in zip(runs, configurations):
        if run.train.seed in seen:
            raise InputError(
                f"has the seed of {seen[run.train.seed]}: it is the same generator",
                file=folder,
                field="train.seed",
                value=run.train.seed,
                remedy="give runs of different train.seed",
            )
        seen[run.train.seed] = folder
        if _without_seed(run) != _without_seed(configurations[0]):
            raise InputError(
                f"differs from {runs[0]} in more than the seed of the training: they are no ensemble",
                file=folder,
                field="run.yaml",
                remedy="give runs of one configuration, made with --set train.seed=1, 2, ...",
            )


def _without_seed(run: Run) -> str:
    return dump_run(run.model_copy(update={"train": run.train.model_copy(update={"seed": 0})}))


def _bill(runs: Sequence[Path]) -> float | None:
    """USD of all runs; None where one has no bill: `bill.json` is absent, or says why there is no price."""
    bills = [json.loads(file.read_text(encoding="utf-8")) for r in runs if (file := r / "bill.json").is_file()]
    prices = [bill["usd"] for bill in bills if "usd" in bill]
    return sum(map(float, prices)) if len(prices) == len(runs) else None
