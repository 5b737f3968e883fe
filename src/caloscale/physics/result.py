"""The outcome of a comparison as frozen blocks: the content of evaluation.json, in camelCase."""

import html
import math
from collections import Counter
from typing import Any, Literal

from pydantic import PrivateAttr

from caloscale.errors import InputError
from caloscale.physics.worth import Worth
from caloscale.spec.block import Block


def number(value: Any) -> float | None:
    """A float of five significant digits, None where it is not finite."""
    value = float(value)
    return float(f"{value:.5g}") if math.isfinite(value) else None


def numbers(values: Any) -> tuple[Any, ...]:
    """A vector (N,) of such floats."""
    return tuple(map(number, values))


class EnergyRange(Block):
    """A range of primary energy, GeV, and the numbers of Monte Carlo and of generated showers in it."""

    low: float
    high: float
    reference: int
    generated: int

    @property
    def label(self) -> str:
        """Such as "5 to 17 GeV"."""
        return f"{self.low:.3g} to {self.high:.3g} GeV" if self.high > self.low else f"{self.low:.3g} GeV"


class ObservableSummary(Block):
    """How far an observable of the generated showers is from Monte Carlo."""

    separation: float | None
    """Separation power, 0 (equal) to 1 (disjoint); null when it could not be computed."""
    uncertainty: float | None = None
    """Its standard deviation over bootstraps of both samples."""
    expected_null: float | None
    """Separation of two samples of one distribution, of the sizes that are compared: that of halves of the Monte Carlo
    showers, scaled."""
    excess: float | None = None
    """The separation without what fluctuations add, which does not depend on the numbers of showers."""
    excess_uncertainty: float | None = None
    """Standard deviation of the excess; the fluctuations that a bootstrap counts twice are taken off."""
    untrained: float | None = None
    """Separation of the same network before its first step."""
    baseline: float | None = None
    """Separation of the mean training shower scaled by energy."""
    improvement_sigmas: float | None = None
    """Separation of the baseline - that of the generator, in standard deviations of this difference over bootstraps."""


class Separation(ObservableSummary):
    """Separation power of generated showers from Monte Carlo, and what equal distributions are expected to have."""

    separation: float | None = None
    expected_null: float | None = None
    self_separation: float | None = None
    """Separation of two random halves of the Monte Carlo showers, mean over several divisions."""
    self_separation_uncertainty: float | None = None
    """Its standard deviation over the divisions."""
    null_uncertainty: float | None = None
    """Standard deviation of the separation of two samples of one distribution."""
    excess_sigmas: float | None = None
    """Evidence of a difference: separation - expected null, in standard deviations of the null."""
    reason: str | None = None
    """Why a value is absent."""


class ObservableResult(Separation):
    """An observable over all energies, and in each range."""

    title: str
    """What it is, for people."""
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
    depth_x0: Compared
    """Maximum of a gamma distribution fitted to the profile, X0 along the normal of the face."""
    fitted_difference_layers: Measured
    """Generated minus Monte Carlo, from the fits, in layers."""


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
    """sigma/E in a range of energy: width of sum/E (`response.widths`) over its mean."""

    sigma: Compared
    ratio: Measured
    """Generated over Monte Carlo."""


class ParticleResult(Block):
    """The Monte Carlo and generated showers of one primary of a list, their numbers and response, over all energies."""

    particle: str
    reference: int
    generated: int
    shower_maximum: ShowerMaximum
    response: Response
    resolution: ResolutionRange
    """Of the plain sum."""
    weighted_resolution: ResolutionRange
    """Of the sum with layers weighted by their absorber."""


class Resolution(Block):
    """Energy resolution, and how far the generator's is from Monte Carlo's."""

    ranges: tuple[ResolutionRange, ...]
    stochastic: Compared
    """a of sigma/E = a/sqrt(E/GeV) (+) c."""
    constant: Compared
    """c of sigma/E = a/sqrt(E/GeV) (+) c."""
    deviation: Measured
    """Mean over the ranges of |sigma generated / sigma Monte Carlo - 1|."""
    baseline: Measured
    """The deviation of the mean training shower scaled by energy (it has no resolution at all: 1)."""
    improvement_sigmas: float | None = None
    """baseline - deviation, in standard deviations of this difference over bootstraps."""
    reason: str | None = None


class Distance(Measured):
    """A distance in many observables at once, or the reason why it is absent."""

    null: float | None = None
    """Monte Carlo against Monte Carlo by the same procedure."""
    null_uncertainty: float | None = None
    untrained: float | None = None
    baseline: float | None = None
    showers: int | None = None
    """Showers of each kind behind the value; the training showers of a classifier."""
    null_showers: int | None = None
    """The same behind the null."""
    reason: str | None = None
    """Why the value is absent, or what limits it."""


class LearningPoint(Block):
    """The AUC of a classifier that was trained on some number of showers."""

    showers: int
    """Training showers of each kind."""
    value: float
    uncertainty: float
    """Scatter over repeated draws of the training showers, and the statistics of the test showers."""


class Classifier(Distance):
    """Area under the ROC curve of a classifier of generated against Monte Carlo showers."""

    test_reference: int | None = None
    """Held-out Monte Carlo showers that the classifier was tested on."""
    test_generated: int | None = None
    """Generated showers that the classifier was tested on."""
    learning_curve: tuple[LearningPoint, ...] = ()
    """The AUC against the number of training showers."""
    limit: Measured = Measured()
    """The AUC extrapolated to infinitely many training showers."""
    false_positives: tuple[float, ...] = ()
    """Part of the generated showers taken for Monte Carlo, along the ROC curve."""
    true_positives: tuple[float, ...] = ()
    """Part of the Monte Carlo showers recognised, along the ROC curve."""
    thresholds: tuple[float, ...] = ()
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
    self_difference: float | None = None
    """The same between halves of the Monte Carlo."""
    reason: str | None = None


class Difference(Block):
    """A difference of generated from Monte Carlo showers."""

    where: str
    """Range of energy, axis or number of training showers; empty: all."""
    scale: Literal["linear", "ratio", "squared"] = "linear"
    """On which its estimate has the same uncertainty whatever it is: the difference; the logarithm of the ratio of
    which it is the per cent above 1; a squared distance has the variance `nullUncertainty`^2 + `slope` x value."""
    value: float | None = None
    """With its sign, in the unit of its quantity."""
    uncertainty: float | None = None
    """Standard deviation."""
    null_uncertainty: float = 0.0
    """Of a squared distance: standard deviation of its estimate where it is zero."""
    slope: float = 0.0
    """Of a squared distance: increase of the variance of its estimate with it."""
    sigmas: float | None = None
    """Evidence: standard deviations from no difference."""
    reason: str | None = None
    """Why it is not measurable."""


class QuantityResult(Block):
    """A quantity that a gate can limit, measured; or why a value is absent."""

    title: str
    unit: str
    """%, layers or none."""
    differences: tuple[Difference, ...] = ()
    reason: str | None = None


class GateResult(Block):
    """A gate and its result."""

    quantity: str
    title: str
    """What the quantity is, for people."""
    unit: str
    tolerance: float
    """Largest allowed."""
    showers: int | None = None
    """Training showers of each kind, of the AUC."""
    decision: Literal["accepted", "rejected", "undecided"]
    where: str = ""
    """The range of energy or axis that decides."""
    value: float | None = None
    """Size of the difference there."""
    uncertainty: float | None = None
    low: float | None = None
    """Lower end of the 90% interval."""
    high: float | None = None
    """Upper end of the 90% interval."""
    sigmas: float | None = None
    """Evidence: standard deviations from no difference."""
    further_showers: int | None = None
    """Held-out Monte Carlo showers beyond the present ones that would decide, if the difference is what it seems."""
    needed_showers: tuple[int, int] | None = None
    """Generated and held-out Monte Carlo showers that would decide, where more of the latter alone would not."""
    reason: str | None = None
    """Why a value is absent, here or in another range of energy."""

    @property
    def statement(self) -> str:
        """The result in one sentence."""
        unit = f" {self.unit}" if self.unit else ""
        name = self.title if self.showers is None else f"{self.title} with {self.showers} training showers of each kind"
        if self.value is None or self.low is None or self.high is None:
            return f"{name}: {self.decision}: {self.reason}"
        size = f"{self.value:.3g}{unit} ({self.low:.3g} to {self.high:.3g}{unit})"
        where = f" at {self.where}" if self.where and self.showers is None else ""
        text = f"{name}{where}: {size}, tolerance {self.tolerance:g}{unit}: {self.decision}"
        if self.decision != "undecided":
            return text
        if self.further_showers is not None:
            return f"{text}: {self.further_showers} more held-out Monte Carlo showers are needed"
        if self.needed_showers is not None:
            generated, reference = self.needed_showers
            both = f"{generated} generated showers (validation.showers) and {reference} held-out Monte Carlo showers"
            return f"{text}: {both} are needed"
        return f"{text}: {self.reason or 'the difference is too near to the tolerance to decide'}"

    @property
    def picture(self) -> str:
        """SVG of the 90% interval and the value, from 0 to twice the tolerance, which is the line in the middle."""
        if self.value is None or self.low is None or self.high is None:
            return ""
        low, value, high = (60 * min(abs(v) / self.tolerance, 2) for v in (self.low, self.value, self.high))
        return (
            f'<svg width="120" height="12" stroke="currentColor"><line x1="60" x2="60" y2="12"/>'
            f'<line x1="{low:.1f}" x2="{high:.1f}" y1="6" y2="6"/><circle cx="{value:.1f}" cy="6" r="3"/></svg>'
        )


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
    network_sha256: str | None = None
    """Of the networks that were validated, their card and the version (`runtimes.source_sha256`); none: of a file."""
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
    particles: tuple[ParticleResult, ...] = ()
    """By primary, where there are several."""
    classifier: Classifier
    layer_classifier: Classifier
    """By the energies of the layers alone: its AUC and the learning curve."""
    fpd: Distance
    kpd: Distance
    regression: Regression
    correlation: Correlation
    hits_threshold_gev: float
    sparsity_threshold_gev: float
    bootstraps: int
    seed: int
    quantities: dict[str, QuantityResult]
    """What gates can limit."""
    gates: tuple[GateResult, ...]
    decision: Literal["accepted", "rejected", "undecided", "not assessed"]
    """On the model; not assessed: a quantity of the minimum set has no gate."""
    reasons: tuple[str, ...]
    """Why the model is rejected, or the decision open; empty when it is accepted."""
    dropped: tuple[str, ...]
    """Quantities whose gate of the preset the run configuration drops."""
    ungated: tuple[str, ...]
    """Quantities that are measured and have no gate."""
    worth: Worth
    """What generated showers are worth in Monte Carlo showers."""
    warnings: tuple[str, ...]
    """Whether the generator is worse than the untrained network or than the mean shower, was trained on other shards
    than those with the held-out showers, began with a model that may have seen these, or was compared at other
    primaries than theirs."""
    notes: tuple[str, ...]
    """What a reader has to know about the numbers."""

    def __repr__(self) -> str:
        """One line: the decision, gates by their result, showers."""
        gates = Counter(gate.decision for gate in self.gates)
        counted = ", ".join(f"{number} {decision}" for decision, number in gates.items()) or "none"
        showers = f"{self.showers.generated} generated, {self.showers.reference} held-out showers"
        return f"Evaluation({self.decision}; gates: {counted}; {showers})"

    _histograms: dict[str, Any] | None = PrivateAttr(None)

    def with_histograms(self, histograms: dict[str, Any]) -> "Evaluation":
        """The same with the histograms of its comparison."""
        held = self.model_copy()
        held._histograms = histograms
        return held

    @property
    def histograms(self) -> dict[str, Any]:
        """hist histograms of the observables by name, as `Comparison.histograms` describes them.

        Raises InputError for an evaluation that was read from a file, which has none."""
        if self._histograms is None:
            remedy = "call caloscale.evaluate with files or arrays of showers"
            raise InputError("are not kept in the files of a run", field="histograms", remedy=remedy)
        return self._histograms

    def _repr_html_(self) -> str:
        """The decision and the gates as a table with their intervals drawn, for notebooks."""
        rows = "".join(f"<tr><td>{gate.picture}</td><td>{html.escape(gate.statement)}</td></tr>" for gate in self.gates)
        return f"<b>{html.escape(repr(self))}</b><table>{rows}</table>"

    @property
    def largest_maximum_difference(self) -> float | None:
        """Largest |generated - Monte Carlo| position of the fitted maximum over the ranges, layers."""
        # The top of the profile is flat: which layer has most changes by two with a few hundred showers.
        differences = [m.fitted_difference_layers.value for m in self.shower_maximum]
        return None if None in differences else max(abs(difference or 0.0) for difference in differences)

    def metrics(self) -> dict[str, float]:
        """The figures of a metrics page, by name; what is absent is left out."""
        found: dict[str, float | None] = {}
        for name, result in self.observables.items():
            found |= {f"{name}Separation": result.separation, f"{name}SelfSeparation": result.self_separation}
        found |= {
            "classifierAuc": self.classifier.value,
            "fpd": self.fpd.value,
            "kpd": self.kpd.value,
            "linearityDeviation": self.linearity.deviation.generated.value,
            "resolutionDeviation": self.resolution.deviation.value,
            "showerMaximumDifferenceLayers": self.largest_maximum_difference,
            "accepted": float(self.decision == "accepted"),
        }
        return {name: value for name, value in found.items() if value is not None}

    def roc_curve(self) -> tuple[list[float], list[float], list[float]] | None:
        """False positive rates, true positive rates and thresholds of the classifier; absent: no classifier."""
        found = self.classifier
        if found.value is None:
            return None
        return list(found.false_positives), list(found.true_positives), list(found.thresholds)
