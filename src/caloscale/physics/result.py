"""The outcome of a comparison as frozen blocks: what evaluation.json holds, in camelCase."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from caloscale.spec.block import Block

Numbers = tuple[float | None, ...]
"""A vector; None for what is absent."""


def number(value: Any) -> float | None:
    """A float of five significant digits, None where it is not finite."""
    value = float(value)
    return float(f"{value:.5g}") if math.isfinite(value) else None


def numbers(values: Any) -> Numbers:
    """A vector (N,) of such floats."""
    return tuple(number(v) for v in np.asarray(values, dtype=np.float64))


class EnergyRange(Block):
    """A range of primary energy and the showers in it."""

    low: float
    """Lower edge, GeV."""
    high: float
    """Upper edge, GeV."""
    reference: int
    """Monte Carlo showers in the range."""
    generated: int
    """Generated showers in the range."""

    @property
    def label(self) -> str:
        """Such as "5 to 17 GeV"."""
        return f"{self.low:.3g} to {self.high:.3g} GeV" if self.high > self.low else f"{self.low:.3g} GeV"


class Separation(Block):
    """Separation power from Monte Carlo, beside what Monte Carlo against itself gives."""

    separation: float | None = None
    """Separation power of generated from Monte Carlo showers, 0 to 1."""
    uncertainty: float | None = None
    """Its standard deviation over bootstraps of both samples."""
    floor: float | None = None
    """Separation of two random halves of the Monte Carlo showers, mean over several divisions."""
    floor_uncertainty: float | None = None
    """Scatter of the floor over the divisions."""
    perfect: float | None = None
    """What a perfect generator would have: the floor scaled from halves to the sizes of the two samples."""
    in_floors: float | None = None
    """separation / floor."""
    in_floors_uncertainty: float | None = None
    """uncertainty / floor."""
    untrained: float | None = None
    """Separation of the same network before its first step."""
    untrained_uncertainty: float | None = None
    """Its standard deviation over bootstraps."""
    baseline: float | None = None
    """Separation of the mean training shower scaled by energy."""
    baseline_uncertainty: float | None = None
    """Its standard deviation over bootstraps."""
    sigmas_better_than_baseline: float | None = None
    """baseline - separation, in standard deviations of this difference over bootstraps."""
    reason: str | None = None
    """Why a value is absent."""


class ObservableResult(Separation):
    """An observable over all energies, and in each range."""

    title: str
    """What it is, for people."""
    wasserstein: float | None = None
    """Wasserstein-1 distance from Monte Carlo, in standard deviations of the Monte Carlo; scalars only."""
    wasserstein_floor: float | None = None
    """The same between halves of the Monte Carlo, mean over the divisions."""
    ranges: tuple[Separation, ...] = ()
    """In the ranges of energy."""


class Measured(Block):
    """A number and its statistical uncertainty."""

    value: float | None = None
    uncertainty: float | None = None


class Compared(Block):
    """The same number of Monte Carlo and of generated showers."""

    reference: Measured
    generated: Measured


class ShowerMaximum(Block):
    """Where the mean longitudinal profile of a range of energy has its maximum."""

    layer: Compared
    """Layer with the most energy, 0 = front."""
    difference_layers: float | None = None
    """Generated minus Monte Carlo, layers."""
    depth_x0: Compared
    """Maximum of a gamma distribution fitted to the profile, X0 along the normal of the face."""
    fitted_difference_layers: Measured
    """Generated minus Monte Carlo, from the fits, in layers: not rounded to a layer as the one above."""


class Response(Block):
    """ECAL sum over energy in a range of energy."""

    mev_per_gev: Compared
    """Mean of sum/E, MeV/GeV."""
    ratio: Measured
    """Generated over Monte Carlo."""


class Linearity(Block):
    """Largest |mean sum / straight line - 1| over bins of energy."""

    deviation: Compared
    line_mev: Compared
    """Offset of the line at E = 0, MeV."""
    slope_mev_per_gev: Compared
    reason: str | None = None


class ResolutionRange(Block):
    """sigma/E in a range of energy: standard deviation of sum/E over its mean."""

    sigma: Compared
    ratio: Measured
    """Generated over Monte Carlo."""


class Resolution(Block):
    """Energy resolution, and how far the generator's is from Monte Carlo's."""

    ranges: tuple[ResolutionRange, ...]
    stochastic: Compared
    """a of sigma/E = a/sqrt(E/GeV) (+) c."""
    constant: Compared
    """c of sigma/E = a/sqrt(E/GeV) (+) c."""
    deviation: Measured
    """Mean over the ranges of |sigma generated / sigma Monte Carlo - 1|."""
    floor: Measured
    """The same between halves of the Monte Carlo."""
    untrained: Measured
    """The deviation of the network before its first step."""
    baseline: Measured
    """The deviation of the mean training shower scaled by energy (it has no resolution at all: 1)."""
    sigmas_better_than_baseline: float | None = None
    """baseline - deviation, in standard deviations of this difference over bootstraps."""
    reason: str | None = None


class Distance(Block):
    """A distance in many observables at once, or the reason why it is absent."""

    value: float | None = None
    uncertainty: float | None = None
    floor: float | None = None
    """Monte Carlo against Monte Carlo."""
    floor_uncertainty: float | None = None
    untrained: float | None = None
    baseline: float | None = None
    reason: str | None = None
    """Why the value is absent."""


class Classifier(Distance):
    """Area under the ROC curve of a classifier of generated against Monte Carlo showers."""

    jsd: float | None = None
    """Jensen-Shannon divergence from the calibrated probabilities, bits."""
    false_positives: Numbers = ()
    """Part of the generated showers taken for Monte Carlo, along the ROC curve."""
    true_positives: Numbers = ()
    """Part of the Monte Carlo showers recognised, along the ROC curve."""
    thresholds: Numbers = ()
    """Probabilities at which the curve was evaluated, falling."""


class Regression(Block):
    """Error of the primary's energy by a regression that was trained on Monte Carlo."""

    bias: Compared | None = None
    """Mean of estimate/E - 1."""
    width: Compared | None = None
    """Standard deviation of estimate/E - 1."""
    reason: str | None = None


class Correlation(Block):
    """Pearson correlations of per-shower observables."""

    mean_difference: float | None = None
    """Mean |generated - Monte Carlo| over the pairs."""
    uncertainty: float | None = None
    floor: float | None = None
    """The same between halves of the Monte Carlo."""
    reason: str | None = None


class Verdict(Block):
    """A gate and whether it was kept."""

    observable: str
    in_floors: float | None
    """Separation in units of the floor; absent: could not be computed."""
    uncertainty: float | None
    limit: float
    """Largest allowed."""
    passed: bool
    reason: str | None = None


class Counts(Block):
    """Showers that were compared."""

    reference: int
    generated: int
    training: int
    untrained: int
    empty: int
    """Generated showers without any energy."""
    unusable: int
    """Generated showers with a cell that is not finite or negative; counted as empty."""


class Evaluation(Block):
    """Generated against Monte Carlo showers."""

    reference_source: str
    """geant4, parametrised or file: what is called Monte Carlo here."""
    training_source: str
    showers: Counts
    energy_ranges: tuple[EnergyRange, ...]
    observables: dict[str, ObservableResult]
    shower_maximum: tuple[ShowerMaximum, ...]
    response: tuple[Response, ...]
    linearity: Linearity
    resolution: Resolution
    """Of the plain sum."""
    weighted_resolution: Resolution
    """Of the sum with layers weighted by their absorber."""
    classifier: Classifier
    fpd: Distance
    kpd: Distance
    regression: Regression
    correlation: Correlation
    hits_threshold_gev: float
    sparsity_threshold_gev: float
    bootstraps: int
    seed: int
    gates: tuple[Verdict, ...]
    released: bool
    reasons: tuple[str, ...]
    """Why the model is held back; empty when it is released."""
    notes: tuple[str, ...]
    """What a reader has to know about the numbers."""

    @property
    def classifier_auc(self) -> float | None:
        """AUC of the classifier; absent: see `classifier.reason`."""
        return self.classifier.value

    @property
    def linearity_deviation(self) -> float | None:
        """Largest deviation of the generator's mean sum from a straight line."""
        return self.linearity.deviation.generated.value

    @property
    def largest_maximum_difference(self) -> float | None:
        """Largest |generated - Monte Carlo| position of the fitted maximum over the ranges, layers."""
        # The top of the profile is flat: which layer has most changes by two with a few hundred showers.
        differences = [m.fitted_difference_layers.value for m in self.shower_maximum]
        found = [abs(difference) for difference in differences if difference is not None]
        return max(found) if len(found) == len(self.shower_maximum) and found else None

    def metrics(self) -> dict[str, float]:
        """The figures of a metrics page, by name; what is absent is left out."""
        found: dict[str, float | None] = {}
        for name, result in self.observables.items():
            found |= {f"{name}Separation": result.separation, f"{name}Floor": result.floor}
        found |= {
            "classifierAuc": self.classifier_auc,
            "fpd": self.fpd.value,
            "kpd": self.kpd.value,
            "linearityDeviation": self.linearity_deviation,
            "resolutionDeviation": self.resolution.deviation.value,
            "showerMaximumDifferenceLayers": self.largest_maximum_difference,
            "released": float(self.released),
        }
        return {name: value for name, value in found.items() if value is not None}

    def roc_curve(self) -> tuple[list[float], list[float], list[float]] | None:
        """False positive rates, true positive rates and thresholds of the classifier; absent: no classifier."""
        if self.classifier.value is None:
            return None
        columns = (self.classifier.false_positives, self.classifier.true_positives, self.classifier.thresholds)
        false_positives, true_positives, thresholds = ([float(v or 0.0) for v in column] for column in columns)
        return false_positives, true_positives, thresholds
