"""Distances between two samples of showers: separation power, Fréchet (FPD), kernel (KPD)."""

from dataclasses import dataclass

import numpy as np
import scipy  # loads stats and others when they are used: a second that a report does not need

from caloscale.detector.axes import Floats

RECIPE_MINIMUM = 5000
"""Showers of each kind from which FPD and KPD follow the published recipes: the extrapolation of the FPD in 1/N is a
straight line only where the covariances of the features are well known, and ten batches of the KPD have 500 showers
without repetition. (The published recipe starts at 20000.)"""
FEWEST_SHOWERS = 200
"""Fewest showers of each kind for a value at all: some ten for each feature."""
FPD_POINTS = 10
FPD_BATCHES = 20
FPD_LARGEST = 50_000
KPD_BATCHES = 10
KPD_BATCH = 5000
"""Largest batch of the KPD, as published."""


@dataclass(frozen=True)
class Estimate:
    """A value and its statistical uncertainty (one standard deviation)."""

    value: float
    uncertainty: float


def separation(first: Floats, second: Floats) -> Floats:
    """Separation power S = 1/2 sum (h1 - h2)^2 / (h1 + h2) of histograms (..., B), each scaled to unit sum.

    0: equal, 1: no common bin (Diefenbacher et al., arXiv:2009.03796; CaloChallenge, arXiv:2410.21611).
    A profile is taken as a histogram. An empty histogram shares no bin with a filled one, so S is 1; of two
    empty ones S is NaN. For two samples of n and m independent showers of one distribution the mean of S is
    close to (B - 1)/4 (1/n + 1/m) in B well-filled bins: never zero.
    """
    first, second = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    sum1, sum2 = first.sum(axis=-1, keepdims=True), second.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        h1, h2 = first / sum1, second / sum2
        terms = np.where(h1 + h2 > 0, (h1 - h2) ** 2 / (h1 + h2), 0.0)
    result = terms.sum(axis=-1) / 2
    empty1, empty2 = sum1[..., 0] <= 0, sum2[..., 0] <= 0
    return np.where(empty1 & empty2, np.nan, np.where(empty1 | empty2, 1.0, result))


def frechet(mean1: Floats, covariance1: Floats, mean2: Floats, covariance2: Floats) -> float:
    """Squared Fréchet (2-Wasserstein) distance of two Gaussians (Dowson and Landau, 1982):

    |m1 - m2|^2 + tr(C1 + C2 - 2 (C1 C2)^(1/2)).

    The trace of the root is the sum of the roots of the eigenvalues of the symmetric matrix
    C1^(1/2) C2 C1^(1/2), which stays real where a covariance is singular.
    """
    values, vectors = scipy.linalg.eigh(covariance1)
    root = (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
    inner = scipy.linalg.eigvalsh(root @ covariance2 @ root)
    trace = np.trace(covariance1) + np.trace(covariance2) - 2 * np.sqrt(np.clip(inner, 0, None)).sum()
    difference = mean1 - mean2
    return float(difference @ difference + trace)


def fpd(reference: Floats, generated: Floats, *, seed: int) -> Estimate:
    """Fréchet physics distance of features (N, D), (M, D): Kansal et al., arXiv:2211.10295.

    Features are divided by max|reference|. The distance, whose bias falls with 1/N, is computed at 10 sizes regular in
    1/N (20 random batches each, without repetition), a + b/N is fitted and a reported, with the uncertainty of the fit
    (the scatter from one set of showers to another comes on top). With fewer than `RECIPE_MINIMUM` showers the line is
    an approximation. Raises ValueError for fewer than `FEWEST_SHOWERS` showers of a kind.
    """
    missing = "the extrapolation to an infinite number is not reliable"
    largest = min(_smaller("FPD", reference, generated, missing), FPD_LARGEST)
    reference, generated = scale_features(reference, generated)
    inverse = np.linspace(1 / largest, 2.5 / largest, FPD_POINTS)
    sizes = np.round(1 / inverse).astype(int)
    rng = np.random.default_rng(seed)
    means = []
    for size in sizes:
        pairs = ((_draw(reference, size, rng), _draw(generated, size, rng)) for _ in range(FPD_BATCHES))
        moments = (
            [m for sample in pair for m in (sample.mean(axis=0), np.cov(sample, rowvar=False))] for pair in pairs
        )
        means.append(np.mean([frechet(*each) for each in moments]))
    (intercept, _), covariance = scipy.optimize.curve_fit(lambda n, a, b: a + b * n, 1 / sizes, means)
    return Estimate(float(intercept), float(np.sqrt(covariance[0, 0])))


def kpd(reference: Floats, generated: Floats, *, seed: int) -> Estimate:
    """Kernel physics distance of features (N, D), (M, D): Kansal et al., arXiv:2211.10295.

    Features are divided by max|reference|; the unbiased MMD^2 with the kernel (x.y/D + 1)^4 on 10 random batches
    of at most 5000: median, and half of the range between their 16% and 84% quantiles as uncertainty. No shower is
    in two batches, so the batches scatter as independent samples do. It may be negative. Fewer than `RECIPE_MINIMUM`
    showers are one batch, whose uncertainty is not known (0).
    Raises ValueError for fewer than `FEWEST_SHOWERS` showers of a kind.
    """
    count = _smaller("KPD", reference, generated, "its scatter hides all but gross differences")
    reference, generated = scale_features(reference, generated)
    if count < RECIPE_MINIMUM:
        return Estimate(mmd2(reference, generated[:RECIPE_MINIMUM]), 0.0)
    batch = min(KPD_BATCH, count // KPD_BATCHES)
    rng = np.random.default_rng(seed)
    first = _draw(reference, batch * KPD_BATCHES, rng).reshape(KPD_BATCHES, batch, -1)
    second = _draw(generated, batch * KPD_BATCHES, rng).reshape(KPD_BATCHES, batch, -1)
    low, median, high = np.quantile([mmd2(x, y) for x, y in zip(first, second)], [0.16, 0.5, 0.84])
    return Estimate(float(median), float(high - low) / 2)


def _smaller(name: str, reference: Floats, generated: Floats, missing: str) -> int:
    """Showers of the smaller sample; ValueError for too few."""
    count = min(len(reference), len(generated))
    if count < FEWEST_SHOWERS:
        raise ValueError(f"{name} needs {FEWEST_SHOWERS} showers of each kind, there are {count}: from fewer {missing}")
    return count


def mmd2(first: Floats, second: Floats) -> float:
    """Unbiased squared maximum mean discrepancy (Gretton et al., JMLR 13 (2012), eq. 3) of samples (N, D), (M, D)
    with the polynomial kernel (x.y/D + 1)^4."""

    def within(sample: Floats) -> float:
        diagonal = (np.einsum("nd,nd->n", sample, sample) / sample.shape[1] + 1) ** 4
        return float(_kernel_sum(sample, sample) - diagonal.sum()) / (len(sample) * (len(sample) - 1))

    across = _kernel_sum(first, second) / (len(first) * len(second))
    return within(first) + within(second) - 2 * across


def scale_features(reference: Floats, generated: Floats) -> tuple[Floats, Floats]:
    """Both samples divided by the largest |reference| of each feature (features that are zero stay)."""
    largest = np.abs(reference).max(axis=0)
    largest = np.where(largest > 0, largest, 1.0)
    return reference / largest, generated / largest


def _draw(sample: Floats, size: int, rng: np.random.Generator) -> Floats:
    """Without repetition: a shower that occurs twice would bias the distance."""
    return sample[rng.permutation(len(sample))[:size]]


def _kernel_sum(first: Floats, second: Floats) -> float:
    total, rows = 0.0, 1000
    for start in range(0, len(first), rows):
        block = first[start : start + rows] @ second.T / first.shape[1] + 1
        np.square(block, out=block)
        total += float(np.einsum("ij,ij->", block, block))
    return total
