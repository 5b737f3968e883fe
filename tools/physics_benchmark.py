"""A generator judged by the classifiers, FPD and KPD of the CaloChallenge.

    python -m tools.physics_benchmark [--run runs/latest] [--held-out FOLDER] [--showers 10000]

Takes a finished run, simulates showers that only judge (a seed of their own, kept in the user's cache) or takes shards
of showers that the run has not seen, generates as many and measures.
"""

import argparse
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from caloscale.bench.results import describe_machine, machine_text
from caloscale.detector.axes import Floats, axes_of
from caloscale.inference.generator import load_generator
from caloscale.physics.distances import FEWEST_SHOWERS, Estimate, fpd, kpd
from caloscale.showers.tfrecord.shard_folder import open_shards
from caloscale.showers.tfrecord.shards import read_split
from caloscale.spec import load_run
from caloscale.spec.workspace_layout import TRAINED
from caloscale.stages.validation import draw_primaries
from caloscale.stages.workspace import dataset_of
from tools import table
from tools.classifiers import (
    DENSE_EPOCHS,
    Judgement,
    convolutional_network,
    dense_network,
    high_level_features,
    judge,
    low_level_features,
    residual_network,
)
from tools.held_out import RUNS, held_out_showers

SHOWERS = 10_000
DENSE: dict[str, Any] = {"epochs": DENSE_EPOCHS}
RESIDUAL: dict[str, Any] = {"epochs": 8, "batch": 100}
"""Epochs that fit into the time; batches small enough that they are hundreds of updates."""
SMALL: dict[str, Any] = {"epochs": 15, "batch": 64, "learning_rate": 1e-3}
"""Training of the small convolutional network."""
NULLS = 5
"""Random divisions of Geant4 showers behind the nulls of FPD and KPD."""


def options() -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.physics_benchmark", description=__doc__)
    parser.add_argument("--showers", type=int, default=SHOWERS, help="Geant4 and generated showers that judge, each")
    parser.add_argument("--run", type=Path, default=RUNS / "latest", help="folder of a finished run")
    parser.add_argument("--held-out", type=Path, help="shards whose training showers judge; absent: they are simulated")
    asked = parser.parse_args()
    if asked.showers < FEWEST_SHOWERS:
        parser.error(f"--showers: FPD and KPD need at least {FEWEST_SHOWERS}")
    if asked.held_out and asked.held_out.resolve() == dataset_of(asked.run).resolve():
        parser.error("--held-out: the run was trained on these showers; make others (caloscale simulate, preprocess)")
    return asked


class Distance(NamedTuple):
    """FPD or KPD of generated showers, and its null: mean and standard deviation."""

    found: Estimate
    showers: int
    null: float
    null_uncertainty: float
    null_showers: int


def distance(measure: Callable[..., Estimate], real: Floats, generated: Floats, others: Floats, seed: int) -> Distance:
    """FPD or KPD of generated showers. The null is that of random divisions of all Monte Carlo showers, real and others
    (features (N, D) each), into two samples of the size that was compared, or of half of all where those are fewer."""
    showers = min(len(real), len(generated))
    found = measure(real[:showers], generated[:showers], seed=seed)
    pool = np.concatenate([real, others])
    size = min(showers, len(pool) // 2)
    nulls = []
    for repeat in range(NULLS):
        order = np.random.default_rng([seed, repeat]).permutation(len(pool))
        nulls.append(measure(pool[order[:size]], pool[order[size : 2 * size]], seed=seed).value)
    return Distance(found, showers, float(np.mean(nulls)), float(np.std(nulls, ddof=1)), size)


def main() -> None:
    """Measure, and print the text of docs/benchmarks.md."""
    asked = options()
    run = load_run(asked.run / "run.yaml")
    if asked.held_out:
        real = read_split(asked.held_out, "train")[: asked.showers]
    else:
        real = held_out_showers(asked.showers, run)
    generator = load_generator(asked.run / TRAINED)
    with open_shards(dataset_of(asked.run)) as shards:
        others = shards.read("train")
    primaries: dict[str, Any] = draw_primaries(run, others, len(real))
    generated = generator.generate(**primaries, seed=run.validation.seed)
    sampling = float(np.mean(real.ecal_sum_gev / real.energy_gev))
    axes, seed, started = axes_of(run.data), run.validation.seed, time.perf_counter()
    x, y, layers = run.data.shape
    first, second, third = (high_level_features(showers, sampling, axes) for showers in (real, generated, others))
    with threadpool_limits(limits=1):  # small matrices: threads that wait for each other cost more than they bring
        distances = {name: distance(of, first, second, third, seed) for name, of in (("FPD", fpd), ("KPD", kpd))}
    cells = low_level_features(real, sampling), low_level_features(generated, sampling)
    of_features, shape = partial(dense_network, first.shape[1]), (layers, x, y)
    judges: dict[str, tuple[Callable[[], Any], tuple[Floats, Floats], dict[str, Any]]] = {
        "dense network, cells": (partial(dense_network, cells[0].shape[1]), cells, DENSE),
        "dense network, high-level features": (of_features, (first, second), DENSE),
        "residual network, cells": (partial(residual_network, shape), cells, RESIDUAL),
        "small convolutional network, cells": (partial(convolutional_network, shape), cells, SMALL),
        "dense network, high-level features, Geant4 against Geant4": (of_features, (first, third), DENSE),
    }
    judgements = {
        which: judge(*pair, build, seed=seed, label=which, **training)
        for which, (build, pair, training) in judges.items()
    }
    low_gev, high_gev = run.data.energy_gev
    print(
        f"The preset {run.model.preset}, trained {run.train.epochs} epochs on {len(others):,} showers of {low_gev:g} "
        f"to {high_gev:g} GeV ({real.source}), judged by {len(real):,} others and as many generated ones.\n\n"
        f"{tables(judgements, distances)}\n\nFeatures, distances and classifiers took "
        f"{(time.perf_counter() - started) / 60:.0f} minutes. Machine: {machine_text(describe_machine())}."
    )


def tables(judgements: Mapping[str, Judgement], distances: Mapping[str, Distance]) -> str:
    """The classifiers and the distances, Markdown."""
    judges = [
        [
            which,
            f"{found.auc:.4f} ± {found.auc_uncertainty:.4f}",
            f"{found.jsd:.3f}",
            f"{found.parameters:,}",
            f"{found.epochs}, {found.best_epoch}",
            " / ".join(str(count) for count in found.showers),
        ]
        for which, found in judgements.items()
    ]
    spaces = [
        [
            name,
            f"{1e3 * one.found.value:.3g} ± {1e3 * one.found.uncertainty:.2g}",
            f"{1e3 * one.null:.3g} ± {1e3 * one.null_uncertainty:.2g}",
            f"{one.showers} ({one.null_showers})",
        ]
        for name, one in distances.items()
    ]
    return "\n\n".join(
        (
            table(["classifier", "AUC", "JSD", "parameters", "epochs, best", "trained / selected / tested"], judges),
            table(["distance x 1,000", "generated", "Geant4 against Geant4", "showers of each (null)"], spaces),
        )
    )


if __name__ == "__main__":
    main()
