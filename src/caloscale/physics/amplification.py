"""How many Geant4 showers generated ones are worth: the averaging amplification of arXiv 2509.08048, per quantity.

The definition is that of Bahl, Diefenbacher, Elmer, Plehn, Spinner (arXiv 2509.08048, section on averaging
amplification), in the line of Butter et al. (arXiv 2008.06545) and Bieringer et al. (arXiv 2202.07352): the equivalent
number n is the size of a true sample whose statistical variance equals the squared error of the generated sample. The
squared error of N generated showers is the model's squared error plus the statistical one, so that
1/n(N) = 1/N + 1/n, n being the limit of many generated showers. The papers' quantities are integrals over regions of
phase space; ours are the quantities of gates, whose variance for one shower comes from the bootstrap.

The scatter of an ensemble of generators predicts the model's squared error without truth. It does not contain what all
members have in common: the bias of the architecture, and of the training showers where members share them. The
deviation from held-out Geant4 showers contains both.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
from scipy.stats import chi2, norm

from caloscale.detector.axes import Floats
from caloscale.physics.comparison import Weighted
from caloscale.physics.quantities import ROUNDING, TITLES, measure_differences, names_of_differences
from caloscale.physics.resampling import draw_weights, summarise
from caloscale.physics.worth import WORTH_OF, Amplification, Number, Worth, worth_of
from caloscale.spec.validation import scale_of

CONFIDENCE = 0.95


def of_scatter(values: Floats, sampling: Floats, per_shower: float) -> Number:
    """The equivalent number that the scatter of an ensemble predicts.

    values (M,): the quantity by member; sampling (M,): standard deviation of each by its finite sample; per_shower:
    standard deviation for one shower. The interval of a variance of Gaussian numbers is used (chi-squared, M - 1).
    Where the lower end of the systematic variance is not positive there is a lower bound only. M is at least 2.
    """
    freedom = len(values) - 1
    total, noise = float(np.var(values, ddof=1)), float(np.mean(np.square(sampling)))
    low, high = (total * freedom / float(chi2.ppf(q, freedom)) for q in ((1 + CONFIDENCE) / 2, (1 - CONFIDENCE) / 2))
    # An ensemble that scatters less than its sampling: the whole scatter bounds the systematic one; of equal members
    # their sampling does.
    return _number(total - noise, low - noise, high - noise if high > noise else high or noise, per_shower)


def of_deviation(deviations: Floats, sigma: Floats, per_shower: float) -> Number:
    """The equivalent number by the mean squared deviation of the members from Monte Carlo.

    deviations (M,): the quantity by member, relative to Monte Carlo; sigma (M,): standard deviation of each by the
    finite samples of both. The interval takes the errors of the members for fully correlated, as all contain the
    error of Monte Carlo, so it is too wide rather than too narrow. It holds for these generators, not for further ones.
    """
    z = float(norm.ppf((1 + CONFIDENCE) / 2))
    size = np.abs(deviations)
    low, high = np.mean(np.clip(size - z * sigma, 0, None) ** 2), np.mean((size + z * sigma) ** 2)
    return _number(float(np.mean(size**2 - sigma**2)), float(low), float(high), per_shower)


def _number(square: float, low: float, high: float, per_shower: float) -> Number:
    """From a squared systematic error and its interval: the largest error is the smallest number."""
    value, largest = (per_shower**2 / s if s > 0 else None for s in (square, low))
    return Number(value=value, low=per_shower**2 / high, high=largest)


def measure_worth(
    pairs: Sequence[tuple[Weighted, Weighted]],
    labels: Sequence[str],
    depth_x0: Floats,
    *,
    gated: Collection[str],
    source: str,
    generated: int = WORTH_OF,
    training: tuple[Weighted, Weighted] | None = None,
) -> Worth:
    """By quantity and range of energy, those with a gate before the others; without the names of runs, and bills.

    Quantities with too few showers, or without a statistical error, are left out. Numbers are of showers over all
    energies, also where the quantity is that of one range.

    pairs: held-out Monte Carlo, the same showers each time, and the showers of a generator; samples that share
    primaries are weighted together. training: the same with the training showers. labels: of the ranges of energy.
    gated: names of the quantities that have a gate. source: origin of the Monte Carlo showers. generated: number of
    generated showers whose worth is stated.
    """
    reference = pairs[0][0]
    fixed = replace(reference, weights=np.broadcast_to(1.0, reference.weights.shape))
    by_itself = measure_differences(fixed, reference, depth_x0)
    by_member = [measure_differences(*pair, depth_x0) for pair in pairs]
    sampled = [measure_differences(fixed, _alone(one), depth_x0) for _, one in pairs] if len(pairs) > 1 else []
    by_training = [measure_differences(*training, depth_x0)] if training else []
    results = []
    for name, wheres in names_of_differences(by_itself, labels, tuple(reference.particles)).items():
        for k, where in enumerate(wheres):
            error = summarise(by_itself[name][:, k])[1]
            found = np.array([summarise(one[name][:, k]) for one in by_member])
            # No number follows of a quantity that is the same for all showers, nor of the reference as a generator.
            if not (ROUNDING < error < math.inf and np.isfinite(found).all() and found.any()):
                continue
            values, sigma = found.T
            per_shower = error * math.sqrt(len(reference.observed))
            sampling = np.array([summarise(one[name][:, k])[1] for one in sampled])
            observed = of_deviation(values, sigma, per_shower)
            learnt = np.array([summarise(one[name][:, k]) for one in by_training])
            is_learnt_known = learnt.any() and np.isfinite(learnt).all()
            results.append(
                Amplification(
                    quantity=name,
                    title=TITLES[name],
                    where=where,
                    unit=scale_of(name).unit,
                    members=len(pairs),
                    per_shower=per_shower,
                    predicted=of_scatter(values, sampling, per_shower) if sampled else None,
                    observed=observed,
                    training=of_deviation(learnt[:, 0], learnt[:, 1], per_shower) if is_learnt_known else None,
                    worth=worth_of(observed, generated),
                    usd_per_effective_shower=None,
                )
            )
    with_gate = tuple(one for one in results if one.quantity in gated)
    return Worth(
        runs=(),
        source=source,
        reference=len(reference.observed),
        generated=len(pairs[0][1].observed),
        worth_of=generated,
        usd=None,
        worst=min(with_gate or results, key=lambda one: one.worth.value or one.worth.low, default=None),
        gated=with_gate,
        others=tuple(one for one in results if one.quantity not in gated),
    )


def _alone(sample: Weighted) -> Weighted:
    """The sample with bootstraps of its showers, each for itself: members that draw their primaries from the same
    held-out showers have the fluctuation of these in common, which does not scatter them."""
    count, bootstraps = len(sample.observed), len(sample.weights) - 1
    return replace(sample, weights=draw_weights(count, bootstraps, np.random.default_rng(count)))
