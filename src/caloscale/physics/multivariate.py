"""Distances in many observables at once: classifier, FPD, KPD; and the energy regression."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from caloscale.detector.axes import Floats
from caloscale.physics.classifier import classifier_features, distance_features, energy_regression, tell_apart
from caloscale.physics.comparison import Weighted
from caloscale.physics.distances import Estimate
from caloscale.physics.resampling import measured
from caloscale.physics.result import Classifier, Compared, Distance, Measured, Regression, number, numbers
from caloscale.physics.samples import Samples
from caloscale.spec.validation import Validation


def compare_with_classifier(samples: Samples, validation: Validation) -> Classifier:
    """AUC of generated, untrained and baseline showers, and of Monte Carlo against itself."""
    options = {"seed": validation.seed, "bootstraps": validation.bootstraps}
    real, test = classifier_features(samples.training), classifier_features(samples.reference)
    try:
        verdict = tell_apart(real, test, classifier_features(samples.generated), **options)
    except ValueError as error:
        return Classifier(reason=str(error))
    floor = _optional(lambda: _monte_carlo_auc(real, test, options))
    baseline = _optional(lambda: tell_apart(real, test, classifier_features(samples.baseline), **options).auc)
    untrained = None
    if samples.untrained is not None:
        features = classifier_features(samples.untrained)
        untrained = _optional(lambda: tell_apart(real, test, features, **options).auc)
    return Classifier(
        value=number(verdict.auc.value),
        uncertainty=number(verdict.auc.uncertainty),
        jsd=number(verdict.jsd),
        false_positives=numbers(verdict.roc[0]),
        true_positives=numbers(verdict.roc[1]),
        thresholds=numbers(verdict.roc[2]),
        floor=None if floor is None else number(floor.value),
        floor_uncertainty=None if floor is None else number(floor.uncertainty),
        baseline=None if baseline is None else number(baseline.value),
        untrained=None if untrained is None else number(untrained.value),
    )


def _monte_carlo_auc(real: Floats, test: Floats, options: dict[str, int]) -> Estimate:
    """The classifier between two halves of the training showers: the same procedure where nothing is to be found."""
    order = np.random.default_rng(options["seed"]).permutation(len(real))
    half = len(real) // 2
    return tell_apart(real[order[:half]], test, real[order[half:]], **options).auc


def _optional(compute: Callable[[], Estimate]) -> Estimate | None:
    try:
        return compute()
    except ValueError:
        return None


def compare_features(samples: Samples, distance: Callable[..., Estimate], seed: int) -> Distance:
    """FPD or KPD of generated, untrained and baseline showers, and of two halves of the Monte Carlo."""
    reference = distance_features(samples.reference)
    try:
        value = distance(reference, distance_features(samples.generated), seed=seed)
    except ValueError as error:
        return Distance(reason=str(error))
    half = len(reference) // 2
    order = np.random.default_rng(seed).permutation(len(reference))
    floor = _optional(lambda: distance(reference[order[:half]], reference[order[half:]], seed=seed))
    baseline = _optional(lambda: distance(reference, distance_features(samples.baseline), seed=seed))
    untrained = None
    if samples.untrained is not None:
        features = distance_features(samples.untrained)
        untrained = _optional(lambda: distance(reference, features, seed=seed))
    return Distance(
        value=number(value.value),
        uncertainty=number(value.uncertainty),
        floor=None if floor is None else number(floor.value),
        floor_uncertainty=None if floor is None else number(floor.uncertainty),
        baseline=None if baseline is None else number(baseline.value),
        untrained=None if untrained is None else number(untrained.value),
    )


def compare_regression(samples: Samples, weighted: Mapping[str, Weighted]) -> Regression:
    """Bias and width of the regressed energy."""
    try:
        errors = energy_regression(samples.training, [samples.reference, samples.generated])
    except ValueError as error:
        return Regression(reason=str(error))
    biases: list[Measured] = []
    widths: list[Measured] = []
    for name, relative in zip(("reference", "generated"), errors):
        weights = weighted[name].weights
        count = weights.sum(axis=1)
        mean = weights @ relative / count
        biases.append(measured(mean))
        widths.append(measured(np.sqrt((weights @ relative**2 / count - mean**2).clip(min=0))))
    return Regression(
        bias=Compared(reference=biases[0], generated=biases[1]),
        width=Compared(reference=widths[0], generated=widths[1]),
    )
