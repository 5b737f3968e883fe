"""A search for hyper-parameters of the classifier of digits by Optuna (Akiba et al. 2019, arXiv:1907.10902)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from pydantic import Field, model_validator
from threadpoolctl import threadpool_limits

from caloscale.errors import InvalidValueError, TrainingError
from caloscale.installation import install_command
from caloscale.spec.block import Block
from caloscale.studies.digits import DIGITS_FILE, DigitsInputs, Network, train_network, write_digits
from caloscale.studies.inputs import validated

ENSEMBLE = 3
"""Networks of the ensemble: those of the best trials."""


class SearchInputs(Block):
    """Which hyper-parameters are tried, and how they are proposed."""

    sampler: Literal["random", "tpe"] = "tpe"
    """random: each trial is independent. tpe: a tree-structured Parzen estimator of the trials before (Bergstra et al.,
    NeurIPS 2011)."""
    trials: int = Field(30, ge=ENSEMBLE)
    """Networks that are trained."""
    seed: int = Field(1, ge=0)
    """Seed of the sampler and of all networks."""
    epochs: int = Field(20, ge=1)
    """Passes over the training images."""
    learning_rate: tuple[float, float] = (0.003, 1.0)
    """Lowest and highest learning rate, searched in its logarithm."""
    hidden: tuple[int, int] = (8, 128)
    """Fewest and most units of the hidden layer, searched in their logarithm."""
    momentum: tuple[float, float] = (0.0, 0.95)
    """Lowest and highest momentum."""
    batch: tuple[int, int] = (8, 128)
    """Smallest and largest batch, searched in its logarithm."""

    @model_validator(mode="after")
    def _ordered(self) -> SearchInputs:
        for name in ("learning_rate", "hidden", "momentum", "batch"):
            low, high = getattr(self, name)
            if low > high or low < 0 or (low == 0 and name != "momentum"):
                raise InvalidValueError(
                    f"{name}: {low} to {high} is no range", remedy="write [0.01, 0.1], lowest first"
                )
        return self


def search_digits(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Train networks with proposed hyper-parameters, and test the best of them.

    A trial is judged by its cross-entropy on the first half of the images that are not for training (validation); the
    accuracies are of the other half (test), which no choice depends on. Result: ``accuracyOfTrials`` (median),
    ``accuracySelected`` (of the best trial), ``accuracyAveraged`` (of the mean probabilities of the three best trials),
    ``validationLoss`` and ``best`` (hyper-parameters) of the best trial, ``bestTrial`` (from 1), ``failed`` (trials
    whose loss is not finite), ``seconds``. Raises ConfigurationError; TrainingError without Optuna.
    """
    asked = validated(SearchInputs, inputs)
    try:
        import optuna
    except ImportError as error:
        raise TrainingError("Optuna is missing", remedy=install_command("studies")) from error
    with TemporaryDirectory(prefix="caloscale-study-") as temporary:
        write_digits(Path(temporary) / DIGITS_FILE)
        with np.load(Path(temporary) / DIGITS_FILE) as file:
            data = dict(file)
    half = len(data["test_labels"]) // 2
    images, labels = data["test_images"], data["test_labels"]
    finished: list[tuple[float, int, Network]] = []
    accuracies = []

    def objective(trial: optuna.Trial) -> float:
        chosen = DigitsInputs(
            learning_rate=trial.suggest_float("learningRate", *asked.learning_rate, log=True),
            hidden=trial.suggest_int("hidden", *asked.hidden, log=True),
            momentum=trial.suggest_float("momentum", *asked.momentum),
            batch=trial.suggest_int("batch", *asked.batch, log=True),
            epochs=asked.epochs,
            seed=asked.seed,
        )
        with np.errstate(all="ignore"):  # a rate that is too high overflows
            network = train_network(chosen, data, chosen.seed)
            loss = network.loss(images[:half], labels[:half])
        accuracies.append(_accuracy(network.probabilities(images[half:]), labels[half:]))
        if not np.isfinite(loss):
            raise optuna.TrialPruned
        finished.append((loss, trial.number, network))
        return loss

    kinds = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=kinds[asked.sampler](seed=asked.seed))
    clock = time.perf_counter()
    with threadpool_limits(limits=1):  # small matrices: threads that wait for each other cost more than they bring
        study.optimize(objective, n_trials=asked.trials)
    seconds = time.perf_counter() - clock
    failed = asked.trials - len(finished)
    if len(finished) < ENSEMBLE:
        raise TrainingError(f"{failed} of {asked.trials} trials diverged", remedy="lower the learning rates")
    each = [network.probabilities(images[half:]) for _, _, network in sorted(finished)[:ENSEMBLE]]
    return {
        "accuracyOfTrials": float(np.median(accuracies)),
        "accuracySelected": _accuracy(each[0], labels[half:]),
        "accuracyAveraged": _accuracy(np.mean(each, axis=0), labels[half:]),
        "validationLoss": study.best_value,
        "best": study.best_params,
        "bestTrial": study.best_trial.number + 1,
        "failed": failed,
        "seconds": seconds,
    }


def _accuracy(probabilities: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
    return float((probabilities.argmax(axis=1) == labels).mean())
