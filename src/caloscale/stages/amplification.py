"""What the showers of finished runs are worth in Geant4 showers, and in dollars."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from caloscale.errors import InputError
from caloscale.inference.generator import Generator, load_generator
from caloscale.inference.stream import generate_table
from caloscale.physics import compare
from caloscale.physics.amplification import measure_worth
from caloscale.physics.comparison import refuse_unlike
from caloscale.physics.worth import Worth
from caloscale.showers.arrays import Showers
from caloscale.showers.tfrecord.manifest import MANIFEST
from caloscale.showers.tfrecord.shard_folder import open_shards
from caloscale.showers.tfrecord.shards import FAINT
from caloscale.spec import Run, load_run
from caloscale.spec.workspace_layout import AMPLIFICATION_FILE, TRAINED
from caloscale.stages.reporting import report
from caloscale.stages.validation import draw_primaries, judging_showers
from caloscale.stages.workspace import dataset_of, named
from caloscale.storage.atomic import write_text
from caloscale.training.input import check_manifest


def amplification(
    runs: Sequence[Path], *, held_out: Path | None = None, showers: int = 10_000, worth_of: int = 1_000_000
) -> Worth:
    """Generate with the networks of each run folder and compare with Monte Carlo showers that none was trained on.

    Each run folder gets the result (`AMPLIFICATION_FILE`), and its report is made again.

    held_out: a folder of shards whose training showers are read; absent: the validation showers of the first run that
    did not select its networks. showers: of each generator that are compared. worth_of: generated showers whose worth
    is stated. Raises InputError for runs that differ in more than the seed of the training, for a run that is given
    twice, for showers that the networks were trained on or may have been, and for held-out showers of other primaries
    than these.
    """
    for folder in runs:
        if not (folder / "run.yaml").is_file():
            raise InputError("no finished run", file=folder, remedy="give folders of runs, such as runs/latest")
    configurations = [load_run(folder / "run.yaml") for folder in runs]
    _check_ensemble(runs, configurations)
    run = configurations[0]
    generators = [load_generator(folder / TRAINED) for folder in runs]
    learnt = _training_showers(runs[0], generators[0])
    with open_shards(held_out or dataset_of(runs[0])) as shards:
        check_manifest(shards.path, shards.manifest, run.data)
        # Without the training showers, those of the configuration show whether others are held out.
        whole = not shards.manifest.dropped.get(FAINT) or (held_out is not None and learnt is None)
        if held_out is None:
            # Equal simulations are equal showers, also where another machine compressed them to other bytes.
            checked = generators[:1] if run.data.source == "simulate" else generators
            for folder, generator in zip(runs, checked):
                if generator.card.showers_sha256 not in (None, shards.manifest.train_sha256):
                    problem = f"was trained on other shards than {shards.path} has, and may have seen its held-out ones"
                    remedy = "give shards of Monte Carlo that no run was trained on with --held-out"
                    raise InputError(problem, file=folder, remedy=remedy)
            reference = shards.read("validation", judging_showers(shards.manifest, run))
        elif shards.manifest.train_sha256 in [generator.card.showers_sha256 for generator in generators]:
            problem = "holds the showers that the networks were trained on"
            remedy = "give shards of Monte Carlo with another seed, or leave it out"
            raise InputError(problem, file=held_out, field="--held-out", remedy=remedy)
        else:
            reference = shards.read("train")
            if learnt is not None:
                _refuse_shared(reference, learnt, held_out)
                refuse_unlike("training", learnt.primaries, reference.primaries)
    against = partial(compare, reference, training=reference, untrained=None, data=run.data)
    pairs = []
    for number, (folder, configuration, generator) in enumerate(zip(runs, configurations, generators), start=1):
        # Primaries and noise of their own for each member: a common fluctuation would hide in the scatter.
        seed = configuration.validation.seed + number
        drawn = configuration.model_copy(
            update={"validation": configuration.validation.model_copy(update={"seed": seed})}
        )
        # Of own data, and without the faint showers that no generator learnt, the held-out primaries: another finite
        # sample of them would differ by more than the generators do.
        primaries = draw_primaries(drawn, reference, showers, whole=whole)
        refuse_unlike("generated", primaries, reference.primaries)
        generated = generate_table(generator, primaries, seed=seed, finite=False)
        comparison = against(generated, validation=drawn.validation)
        if comparison.unusable:
            problem = "generated showers have cells that are not finite or negative"
            remedy = "leave this run out: its generator is rejected"
            raise InputError(problem, file=folder, value=comparison.unusable, remedy=remedy)
        pairs.append((comparison.weighted["reference"], comparison.weighted["generated"]))
    training = None
    if learnt is not None:
        compared = against(learnt, validation=run.validation)
        training = compared.weighted["reference"], compared.weighted["generated"]
    worth = measure_worth(
        pairs,
        [energy.label for energy in comparison.energy_ranges],
        comparison.axes.depth_x0,
        gated={gate.quantity for gate in run.validation.judging},
        source=reference.source,
        generated=worth_of,
        training=training,
    ).of_runs(tuple(named(folder).name for folder in runs), _bill(runs))
    for folder, configuration in zip(runs, configurations):
        write_text(folder / AMPLIFICATION_FILE, worth.as_json())
        report(configuration, folder)
    return worth


def _training_showers(folder: Path, generator: Generator) -> Showers | None:
    """Of a run's folder; None where it has no shards, as after a copy from a bucket, or others than were trained on."""
    dataset = dataset_of(folder)
    if not (dataset / MANIFEST).is_file():
        return None
    with open_shards(dataset) as shards:
        return shards.read("train") if shards.manifest.train_sha256 == generator.card.showers_sha256 else None


def _refuse_shared(reference: Showers, learnt: Showers, held_out: Path) -> None:
    """InputError when showers of the folder ``held_out`` have energy and sum, GeV, of one that was trained on."""
    seen, own = (
        set(zip(showers.energy_gev.tolist(), showers.cells_gev.sum(axis=(1, 2, 3), dtype=float).tolist()))
        for showers in (learnt, reference)
    )
    shared = sum(1 for _, sum_gev in seen & own if sum_gev > 0)  # empty showers of one energy are equal
    if shared:
        problem = f"holds {shared} of the showers that the networks were trained on, of {len(reference)}"
        remedy = "give shards of Monte Carlo that was simulated with another seed, or of other files, or leave it out"
        raise InputError(problem, file=held_out, field="--held-out", remedy=remedy)


def _check_ensemble(runs: Sequence[Path], configurations: Sequence[Run]) -> None:
    seen: dict[int, Path] = {}
    for folder, run in zip(runs, configurations):
        if run.train.seed in seen:
            problem = f"has the seed of {seen[run.train.seed]}: it is the same generator"
            remedy = "give runs of different train.seed"
            raise InputError(problem, file=folder, field="train.seed", value=run.train.seed, remedy=remedy)
        seen[run.train.seed] = folder
        if _without_seed(run) != _without_seed(configurations[0]):
            problem = f"differs from {runs[0]} in more than the seed of the training: they are no ensemble"
            remedy = "give runs of one configuration, made with --set train.seed=1, 2, ..."
            raise InputError(problem, file=folder, field="run.yaml", remedy=remedy)


def _without_seed(run: Run) -> dict[str, Any]:
    """What networks and their comparison depend on; on a cluster each run has its own workspace, and maybe budget."""
    included: dict[str, Any] = {"model": True, "data": True, "train": True, "validation": True, "hardware": {"count"}}
    return run.model_dump(include=included, exclude={"train": {"seed"}})


def _bill(runs: Sequence[Path]) -> float | None:
    """USD of all runs; None where one has no bill: `bill.json` is absent, or states why there is no price."""
    bills = [json.loads(file.read_text(encoding="utf-8")) for r in runs if (file := r / "bill.json").is_file()]
    prices = [bill["usd"] for bill in bills if "usd" in bill]
    return sum(map(float, prices)) if len(prices) == len(runs) else None
