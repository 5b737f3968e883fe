"""Distances in many observables at once: classifier, FPD, KPD; and the energy regression."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from caloscale.detector.axes import Floats
from caloscale.physics import classifier
from caloscale.physics.comparison import Comparison
from caloscale.physics.distances import FEWEST_SHOWERS, RECIPE_MINIMUM, Estimate
from caloscale.physics.observables import Observed
from caloscale.physics.resampling import compared, group_by_primary
from caloscale.physics.result import Classifier, Distance, LearningPoint, Measured, Regression, number, numbers
from caloscale.spec.validation import Validation

NULL_REPEATS = 5
"""Divisions of the Monte Carlo showers behind the null of FPD and KPD."""


def compare_with_classifier(comparison: Comparison) -> Classifier:
    """AUC of generated showers against the number of training showers; of untrained and baseline showers, and of Monte
    Carlo against itself."""
    observed, training, validation = comparison.observed, comparison.training, comparison.validation
    reference, seed = observed["reference"], validation.seed
    test = _two_sample_test(training, reference, observed["generated"], seed)
    try:
        curve = classifier.learning_curve(test, seed=seed, also=_asked("classifierAuc", validation))
        roc = classifier.roc_points(*classifier.score(test, test.largest, seed=seed, repeats=1)[0])
    except ValueError as error:
        return Classifier(reason=str(error))
    order = np.random.default_rng(seed).permutation(len(training))
    first, second = np.split(order, [len(order) // 2])
    # The same procedure without a difference to find.
    null = _auc(training[first], reference, training[second], seed)

    def of(name: str) -> float | None:
        return (
            _measured(_auc(training, reference, observed[name], seed, test.largest)).value if name in observed else None
        )

    return Classifier(
        **_on_all(test, curve),
        limit=_measured(classifier.extrapolate(curve)),
        false_positives=numbers(roc[0]),
        true_positives=numbers(roc[1]),
        thresholds=numbers(roc[2]),
        null=_measured(null).value,
        null_uncertainty=_measured(null).uncertainty,
        null_showers=None if null is None else null.showers,
        baseline=of("baseline"),
        untrained=of("untrained"),
    )


def compare_layers(comparison: Comparison) -> Classifier:
    """AUC by the energies of the layers alone, trained on as many showers as the gate states and on all."""
    observed, validation = comparison.observed, comparison.validation
    pair = observed["reference"], observed["generated"]
    test = _two_sample_test(comparison.training, *pair, validation.seed, classifier.layer_features)
    sizes = sorted({test.largest, *(min(size, test.largest) for size in _asked("layerAuc", validation))})
    try:
        curve = [classifier.measure_auc(test, n, seed=validation.seed, repeats=classifier.REPEATS) for n in sizes]
    except ValueError as error:
        return Classifier(reason=str(error))
    return Classifier(**_on_all(test, curve))


def _asked(quantity: str, validation: Validation) -> list[int]:
    """Training showers of the gates on this AUC."""
    return [gate.showers for gate in validation.judging if gate.quantity == quantity and gate.showers is not None]


def _on_all(test: classifier.TwoSampleTest, curve: Sequence[classifier.Point]) -> dict[str, Any]:
    """What `Classifier` says of the largest number of training showers, and the learning curve."""
    points = (
        LearningPoint(showers=p.showers, value=round(p.value, 5), uncertainty=round(p.uncertainty, 5)) for p in curve
    )
    return {
        **dict(_measured(curve[-1])),
        "showers": curve[-1].showers,
        "test_reference": len(test.real_test),
        "test_generated": len(test.fake_test),
        "learning_curve": tuple(points),
    }


def _measured(found: Estimate | None) -> Measured:
    return Measured() if found is None else Measured(value=number(found.value), uncertainty=number(found.uncertainty))


def _two_sample_test(
    real: Observed,
    reference: Observed,
    generated: Observed,
    seed: int,
    features: Callable[[Observed], Floats] = classifier.classifier_features,
) -> classifier.TwoSampleTest:
    observed = (real, reference, generated)
    parts = group_by_primary([o.primaries for o in observed])
    pairs = [(features(o), part) for o, part in zip(observed, parts)]
    return classifier.split_by_primary(pairs[0], pairs[1], pairs[2], seed)


def _auc(
    real: Observed, reference: Observed, generated: Observed, seed: int, showers: int | None = None
) -> classifier.Point | None:
    """The AUC of a classifier that is trained on this number of showers of each kind (None: on all); None for too few
    showers."""
    test = _two_sample_test(real, reference, generated, seed)
    with suppress(ValueError):
        return classifier.measure_auc(test, showers or test.largest, seed=seed)
    return None


def compare_features(comparison: Comparison, distance: Callable[..., Estimate]) -> Distance:
    """FPD or KPD of generated, untrained and baseline showers, and of Monte Carlo against itself.

    The null compares random parts of all Monte Carlo showers, of the size of the compared samples if possible.
    Its scatter is added to the uncertainty, which the recipes take from batches of one set of showers.
    """
    seed = comparison.validation.seed
    features = {name: classifier.distance_features(observed) for name, observed in comparison.observed.items()}
    reference, generated = features["reference"], features["generated"]
    try:
        found = distance(reference, generated, seed=seed)
    except ValueError as error:
        return Distance(reason=str(error))
    pool = np.concatenate([reference, classifier.distance_features(comparison.training)])
    size = min(len(reference), len(generated), len(pool) // 2)
    nulls = []
    for repeat in range(NULL_REPEATS):
        order = np.random.default_rng([seed, repeat]).permutation(len(pool))
        if size >= FEWEST_SHOWERS:
            nulls.append(distance(pool[order[:size]], pool[order[size : 2 * size]], seed=seed).value)
    scatter = float(np.std(nulls, ddof=1)) if len(nulls) > 1 else 0.0
    showers = min(len(reference), len(generated))

    def of(name: str) -> float | None:
        with suppress(ValueError):
            return number(distance(reference, features[name], seed=seed).value) if name in features else None
        return None

    few = (
        f"of {showers} showers of each kind: the published recipe has at least {RECIPE_MINIMUM}, so the value is not "
        "comparable with published ones"
    )
    return Distance(
        value=number(found.value),
        uncertainty=number(np.hypot(found.uncertainty, scatter)),
        showers=showers,
        null=number(np.mean(nulls)) if nulls else None,
        null_uncertainty=number(scatter) if nulls else None,
        null_showers=size if nulls else None,
        baseline=of("baseline"),
        untrained=of("untrained"),
        reason=few if showers < RECIPE_MINIMUM else None,
    )


def compare_regression(comparison: Comparison) -> Regression:
    """Bias and width of the regressed energy."""
    samples = [comparison.weighted[name] for name in ("reference", "generated")]
    try:
        errors = classifier.energy_regression(comparison.training, [sample.observed for sample in samples])
    except ValueError as error:
        return Regression(reason=str(error))
    biases, widths = [], []
    for sample, relative in zip(samples, errors):
        weights = sample.weights
        count = weights.sum(axis=1)
        mean = weights @ relative / count
        biases.append(mean)
        widths.append(np.sqrt((weights @ relative**2 / count - mean**2).clip(min=0)))
    return Regression(bias=compared(*biases), width=compared(*widths))
