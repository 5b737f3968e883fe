"""The measures `search` and `ensemble`: whole runs whose hyper-parameters are proposed, or whose seeds differ.

A run is judged by its lowest deviation from Monte Carlo on the validation showers, which also selects its epoch; AUC
and resolution are of showers that nothing was selected by.
"""

import hashlib
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from caloscale.errors import CaloscaleError, ConfigurationError, InvalidValueError, TrainingError
from caloscale.installation import install_command
from caloscale.spec.block import Block
from caloscale.spec.workspace_layout import DATASET, TRAINED
from caloscale.studies.points import Seeds, own_inputs, refuse_seed
from caloscale.studies.whole_run import run_of, whole_run


class SearchInputs(Block):
    """Which fields are tried, and how values are proposed."""

    sampler: Literal["random", "tpe"] = "tpe"
    """random: each trial is independent. tpe: a third of the trials as with random, then a tree-structured Parzen
    estimator of the trials before (Bergstra et al., NeurIPS 2011)."""
    trials: int = Field(12, ge=1)
    """Whole runs."""
    sampler_seed: int = Field(1, ge=0)
    stop_early: bool = False
    """After a third of its epochs, end a trial whose lowest deviation so far is above the median of those that the
    trials before had at the same epoch. The first third of the trials is not ended."""
    ranges: dict[str, tuple[float, float]] = Field(min_length=1)
    """Lowest and highest value of fields of the run configuration, searched in their logarithm; two whole numbers: only
    whole numbers."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        for name, (low, high) in self.ranges.items():
            if not 0 < low <= high:
                remedy = "write [0.01, 0.1], lowest first"
                raise InvalidValueError(f"{name}: {low} to {high} is no range", remedy=remedy)
        return self


def search(inputs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Whole runs with proposed values of some fields; finished ones are kept in the folder and not made again.

    Result: ``best`` (values), ``bestTrial`` (from 1), ``deviation`` of the best run and ``deviationOfTrials`` (median
    of those that ended), ``classifierAuc`` and ``resolution`` of the best run, ``stopped`` (trials that were ended
    early), ``failed`` (runs that did not end or have no deviation), ``seconds`` (null of a search that resumed).
    Raises ConfigurationError; TrainingError without Optuna or when no run ended.
    """
    asked, fields = own_inputs(SearchInputs, inputs)
    try:
        import optuna
    except ImportError as error:
        raise TrainingError("Optuna is missing", remedy=install_command("studies")) from error
    whole = {name for name in asked.ranges if all(isinstance(value, int) for value in inputs["ranges"][name])}
    runs: dict[int, dict[str, Any]] = {}
    stopped: set[int] = set()

    def objective(trial: optuna.Trial) -> float:
        values = {
            name: trial.suggest_int(name, int(low), int(high), log=True)
            if name in whole
            else trial.suggest_float(name, low, high, log=True)
            for name, (low, high) in asked.ranges.items()
        }
        reported: set[float] = set()

        def watch(validations: Mapping[str, Any]) -> None:
            for epoch, deviation in zip(validations["epoch"], validations.get("deviation", ())):
                if epoch not in reported and deviation is not None:
                    reported.add(epoch)
                    trial.report(deviation, math.ceil(epoch))
                    if trial.should_prune():
                        stopped.add(trial.number)
                        raise optuna.TrialPruned

        # Other values than those of an earlier attempt, in which a trial before failed, make another run.
        key = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
        try:
            run = whole_run({**fields, **values}, folder / f"trial-{trial.number:03d}-{key}", watch)
        except ConfigurationError:
            raise
        except CaloscaleError as error:
            raise optuna.TrialPruned from error
        if run["quality"]["lowest"] is None:
            raise optuna.TrialPruned
        runs[trial.number] = run
        return float(run["quality"]["lowest"])

    third = -(-asked.trials // 3)
    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=asked.sampler_seed)
    if asked.sampler == "tpe":
        sampler = optuna.samplers.TPESampler(seed=asked.sampler_seed, n_startup_trials=third)
    pruner: optuna.pruners.BasePruner = optuna.pruners.NopPruner()
    if asked.stop_early:
        pruner = optuna.pruners.MedianPruner(third, n_warmup_steps=run_of(fields).train.epochs // 3)
    optuna.logging.set_verbosity(optuna.logging.ERROR)  # a trial that Ctrl-C ends is no warning
    study = optuna.create_study(sampler=sampler, pruner=pruner)
    resumed, clock = any(folder.glob("trial-*")), time.perf_counter()
    study.optimize(objective, n_trials=asked.trials)
    if not runs:
        raise TrainingError(f"all {asked.trials} runs failed", remedy=f"read the logs in {folder}, change the ranges")
    physics = runs[study.best_trial.number]["physics"]
    return {
        "best": study.best_params,
        "bestTrial": study.best_trial.number + 1,
        "deviation": study.best_value,
        "deviationOfTrials": float(np.median([run["quality"]["lowest"] for run in runs.values()])),
        "classifierAuc": physics["classifierAuc"],
        "resolution": physics["resolutionDeviation"],
        "stopped": len(stopped),
        "failed": asked.trials - len(runs) - len(stopped),
        "seconds": None if resumed else time.perf_counter() - clock,
    }


class EnsembleInputs(Block):
    """Members of an ensemble."""

    seeds: Seeds = (1, 2, 3)


def ensemble(inputs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Runs that differ in the seed of the training, the best of them, and showers of all of them together.

    inputs: fields of the run configuration, and ``seeds``. Result: ``classifierAuc`` and ``resolution``, each of the
    ``members`` (mean), of the one ``selected`` by the lowest deviation, and of the ``mixture``, to which every member
    contributes as many showers. Raises ConfigurationError, and what a run raises.
    """
    asked, fields = own_inputs(EnsembleInputs, inputs)
    refuse_seed(fields, "train.seed")
    folders = [folder / f"seed-{seed}" for seed in asked.seeds]
    runs = [whole_run({**fields, "train.seed": seed}, place) for seed, place in zip(asked.seeds, folders)]
    deviations = [run["quality"]["lowest"] for run in runs]
    best = runs[min(range(len(runs)), key=lambda i: np.inf if deviations[i] is None else deviations[i])]
    mixed = judge_mixture(fields, folders)

    def figures(name: str) -> dict[str, float | None]:
        members = [run["physics"][name] for run in runs]
        # A mean of fewer runs would be compared with one of all.
        mean = None if None in members else float(np.mean(members))
        return {"members": mean, "selected": best["physics"][name], "mixture": mixed.get(name)}

    return {
        "deviations": deviations,
        "classifierAuc": figures("classifierAuc"),
        "resolution": figures("resolutionDeviation"),
    }


def judge_mixture(fields: Mapping[str, Any], folders: Sequence[Path]) -> dict[str, float]:
    """Figures of showers of which each run's generator makes an equal part, compared as `caloscale validate` does."""
    from caloscale.inference.generator import load_generator
    from caloscale.inference.stream import generate_table
    from caloscale.physics import compare, evaluate
    from caloscale.showers.arrays import Showers
    from caloscale.showers.primaries import joined, rows
    from caloscale.showers.tfrecord.shard_folder import open_shards
    from caloscale.stages.validation import draw_primaries, generated_showers, monte_carlo

    run = run_of(fields)
    with open_shards(folders[0] / DATASET) as shards:
        reference, training = monte_carlo(run, shards)
    primaries = draw_primaries(run, training, generated_showers(run))
    parts = []
    for index, folder in enumerate(folders):
        share = rows(primaries, slice(index, None, len(folders)))
        parts.append(generate_table(load_generator(folder / TRAINED), share, seed=run.validation.seed + index))
    columns = joined([part.primaries for part in parts])
    cells_gev = np.concatenate([part.cells_gev for part in parts])
    generated = Showers.of(cells_gev, columns, "generated", run.data.geometry.cell_shape)
    compared = compare(
        reference, generated, training=training, untrained=None, data=run.data, validation=run.validation
    )
    return evaluate(compared).metrics()
