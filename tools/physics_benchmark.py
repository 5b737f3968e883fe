"""A generator judged by the classifiers, FPD and KPD of the CaloChallenge.

    python -m tools.physics_benchmark --output FILE [--run FOLDER] [--held-out FOLDER] [--showers 10000] [--set ...]

Simulates showers that only judge (a seed of their own), trains on others, generates as many and measures; or it takes
a finished run, and shards of showers that it has not seen. Simulation and training are kept in the user's cache and
runs/trained.
"""

import argparse
import dataclasses
import json
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from caloscale.bench.classifiers import (
    BATCH,
    DENSE_EPOCHS,
    dense_network,
    high_level_features,
    judge,
    low_level_features,
    residual_network,
)
from caloscale.bench.results import BenchMachine, describe_machine, machine_text
from caloscale.detector.axes import Floats, axes_of
from caloscale.physics.distances import FEWEST_SHOWERS, Estimate, fpd, kpd
from caloscale.showers.arrays import Showers
from caloscale.showers.tfrecord.shard_folder import open_shards
from caloscale.showers.tfrecord.shards import read_split
from caloscale.spec import load_run
from caloscale.spec.workspace_layout import DATASET, TRAINED
from caloscale.storage.atomic import write_text
from tools import table
from tools.trained_runs import held_out_showers, trained

PRESET = "compact"
SHOWERS = 10_000
EPOCHS = 20
RESIDUAL_EPOCHS, RESIDUAL_BATCH = 8, 100
"""Epochs that fit into the time; batches small enough that they are hundreds of updates."""
NULLS = 5
"""Random divisions of Geant4 showers behind the nulls of FPD and KPD."""
JUDGES = {
    "dense-low": "dense network, cells",
    "dense-high": "dense network, high-level features",
    "residual": "residual network, cells",
    "null": "dense network, high-level features, Geant4 against Geant4",
}


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.physics_benchmark", description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--showers", type=int, default=SHOWERS, help="Geant4 and generated showers that judge, each")
    parser.add_argument(
        "--run", type=Path, help="folder of a finished run; absent: a long training of the compact network"
    )
    parser.add_argument("--held-out", type=Path, help="shards whose training showers judge; absent: they are simulated")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="FIELD=VALUE")
    asked = parser.parse_args(list(arguments))
    if asked.showers < FEWEST_SHOWERS:
        parser.error(f"--showers: FPD and KPD need at least {FEWEST_SHOWERS}")
    return asked


def distance(
    measure: Callable[..., Estimate], real: Floats, generated: Floats, others: Floats, seed: int
) -> dict[str, Any]:
    """FPD or KPD of generated showers, and its null: mean and standard deviation over random divisions of all Monte
    Carlo showers, real and others (features (N, D) each), into two samples of the size that was compared, or of half
    of all where those are fewer."""
    showers = min(len(real), len(generated))
    found = measure(real[:showers], generated[:showers], seed=seed)
    pool = np.concatenate([real, others])
    size = min(showers, len(pool) // 2)
    nulls = []
    for repeat in range(NULLS):
        order = np.random.default_rng([seed, repeat]).permutation(len(pool))
        nulls.append(measure(pool[order[:size]], pool[order[size : 2 * size]], seed=seed).value)
    return {
        "value": found.value,
        "uncertainty": found.uncertainty,
        "showers": showers,
        "null": float(np.mean(nulls)),
        "nullUncertainty": float(np.std(nulls, ddof=1)),
        "nullShowers": size,
    }


def main(arguments: Sequence[str]) -> int:
    """Measure what is missing and write the result."""
    from caloscale.inference import load_generator
    from caloscale.stages.validation import draw_primaries

    asked = options(arguments)
    training = (
        *(f"data.showers={SHOWERS}", "data.validationFraction=0.1"),
        *(f"train.epochs={EPOCHS}", "train.maxMinutes=120", *asked.overrides),
    )
    folder = asked.run or trained(preset=PRESET, overrides=training)
    run = load_run(folder / "run.yaml")
    if asked.held_out:
        real = read_split(asked.held_out, "train")[: asked.showers]
    else:
        real = held_out_showers(asked.showers, preset=run.model.preset, overrides=asked.overrides)
    generator = load_generator(folder / TRAINED)
    with open_shards(folder / DATASET) as shards:
        others = shards.read("train")
    primaries = draw_primaries(run, others, len(real))
    generated = generator.generate(**primaries, seed=run.validation.seed)
    sampling = float(np.mean(real.ecal_sum_gev / real.energy_gev))
    axes, seed = axes_of(run.data), run.validation.seed
    x, y, layers = run.data.shape

    def high(showers: Showers) -> Floats:
        return high_level_features(showers, sampling, axes)

    def low(showers: Showers) -> Floats:
        return low_level_features(showers, sampling)

    def judged(first: Showers, second: Showers, features: Callable[[Showers], Floats], which: str) -> dict[str, Any]:
        pair = features(first), features(second)
        build, epochs, batch = partial(dense_network, pair[0].shape[1]), DENSE_EPOCHS, BATCH
        if which == "residual":
            build, epochs, batch = partial(residual_network, (layers, x, y)), RESIDUAL_EPOCHS, RESIDUAL_BATCH
        return dataclasses.asdict(judge(*pair, build, epochs=epochs, seed=seed, batch=batch, label=JUDGES[which]))

    def distances() -> dict[str, Any]:
        features = high(real), high(generated), high(others)
        with threadpool_limits(limits=1):  # small matrices: threads that wait for each other cost more than they bring
            return {name: distance(of, *features, seed) for name, of in (("fpd", fpd), ("kpd", kpd))}

    started = time.perf_counter()
    found = {
        "distances": distances(),
        "dense-high": judged(real, generated, high, "dense-high"),
        "null": judged(real, others, high, "null"),
        "dense-low": judged(real, generated, low, "dense-low"),
        "residual": judged(real, generated, low, "residual"),
    }
    result = {
        "source": real.source,
        "showers": len(real),
        "trainingShowers": len(others),
        "preset": run.model.preset,
        "epochs": run.train.epochs,
        "seconds": time.perf_counter() - started,
        "energyGev": run.data.energy_gev,
        "overrides": asked.overrides,
        "found": found,
        "machine": describe_machine().as_values(),
    }
    write_text(asked.output, json.dumps(result, indent=1))
    print(tables(result))
    return 0


def tables(result: dict[str, Any]) -> str:
    """The classifiers and the distances, Markdown."""
    found = result["found"]
    judges = [
        [
            title,
            f"{found[name]['auc']:.4f} ± {found[name]['auc_uncertainty']:.4f}",
            f"{found[name]['jsd']:.3f}",
            f"{found[name]['parameters']:,}",
            f"{found[name]['epochs']}, {found[name]['best_epoch']}",
            " / ".join(str(count) for count in found[name]["showers"]),
        ]
        for name, title in JUDGES.items()
    ]
    both = found["distances"]
    spaces = [
        [
            name.upper(),
            *(f"{1e3 * one[key]:.3g} ± {1e3 * one[spread]:.2g}" for key, spread in DISTANCE_COLUMNS),
            f"{one['showers']} ({one['nullShowers']})",
        ]
        for name, one in ((name, both[name]) for name in ("fpd", "kpd"))
    ]
    return "\n\n".join(
        (
            table(["classifier", "AUC", "JSD", "parameters", "epochs, best", "trained / selected / tested"], judges),
            table(["distance x 1,000", "generated", "Geant4 against Geant4", "showers of each (null)"], spaces),
        )
    )


DISTANCE_COLUMNS = (("value", "uncertainty"), ("null", "nullUncertainty"))


def section(result: dict[str, Any], command: str) -> str:
    """The text of docs/benchmarks.md about a result."""
    low, high = result["energyGev"]
    changed = f" Changed: {', '.join(result['overrides'])}." if result["overrides"] else ""
    return (
        f"`{command}`: the preset {result['preset']}, trained {result['epochs']} epochs on "
        f"{result['trainingShowers']:,} showers of {low:g} to {high:g} GeV ({result['source']}), judged by "
        f"{result['showers']:,} others and as many "
        f"generated ones.{changed}\n\n{tables(result)}\n\n"
        f"Features, distances and classifiers took {result['seconds'] / 60:.0f} minutes. "
        f"Machine: {machine_text(BenchMachine.model_validate(result['machine']))}."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
