"""Decisions: is a difference below its tolerance, above it, or can so few showers not say?

Acceptance is an equivalence test (two one-sided tests, Schuirmann 1987): the upper end of the 90% interval lies
below the tolerance, in every range of energy. All gates accepted needs no correction for their number (intersection-
union). Rejection is a test of the opposite: the difference exceeds the tolerance significantly, with Bonferroni's
correction over the ranges of energy and Holm's over the gates, so that a model within all tolerances is rejected with
a probability of at most 5%.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from scipy.special import ndtr, ndtri

from caloscale.physics.result import Counts, Difference, GateResult, QuantityResult
from caloscale.spec.validation import AUCS, MINIMUM_GATES, Gate

Decision = Literal["accepted", "rejected", "undecided", "not assessed"]

ERROR = 0.05
"""Probability of a wrong acceptance by a gate, and of a wrong rejection by all gates together."""
Z = float(ndtri(1 - ERROR))
"""Half width of the interval in standard deviations."""


def decide(
    gates: Sequence[Gate], quantities: Mapping[str, QuantityResult], showers: Counts, faults: Sequence[str]
) -> tuple[tuple[GateResult, ...], Decision, tuple[str, ...]]:
    """The result of each gate, the decision on the model, and its reasons.

    A model that no gate rejects is not assessed where a quantity of the minimum set has no gate.

    faults: what no generator may do whatever the gates are, such as cells that are not finite: they reject it.
    """
    chosen = [_differences(gate, quantities[gate.quantity]) for gate in gates]
    exceeding = [_exceeding_probability(gate, found) for gate, found in zip(gates, chosen)]
    rejected = holm(exceeding, ERROR)
    results = tuple(
        _result(gate, quantities[gate.quantity], found, is_rejected, len(gates), showers)
        for gate, found, is_rejected in zip(gates, chosen, rejected)
    )
    decisions = {result.decision for result in results}
    missing = [quantity for quantity in MINIMUM_GATES if quantity not in {gate.quantity for gate in gates}]
    if faults or "rejected" in decisions:
        decision: Decision = "rejected"
    elif missing:
        reason = f"no gate on {', '.join(missing)} (validation.gates): a model is not accepted without them"
        return results, "not assessed", (reason,)
    else:
        decision = "undecided" if "undecided" in decisions else "accepted"
    reasons = [r.statement for r in results if r.decision == decision != "accepted"]
    return results, decision, (*faults, *reasons)


def holm(probabilities: Sequence[float], error: float) -> list[bool]:
    """Which hypotheses are rejected when none of them may be rejected wrongly with more than this probability
    (Holm 1979)."""
    rejected = [False] * len(probabilities)
    for rank, index in enumerate(sorted(range(len(probabilities)), key=lambda k: probabilities[k])):
        if probabilities[index] > error / (len(probabilities) - rank):
            break
        rejected[index] = True
    return rejected


def _differences(gate: Gate, quantity: QuantityResult) -> list[Difference]:
    """Those that the gate limits; of the AUCs the one at the gate's number of showers."""
    at = "" if gate.showers is None else f"{gate.showers} "
    return [difference for difference in quantity.differences if difference.where.startswith(at)]


def _is_one_sided(gate: Gate) -> bool:
    """Separations, AUCs and the probability of copies have one bad side, the others two."""
    return gate.quantity in (*AUCS, "copying") or gate.quantity.endswith("Separation")


def exceeding_sigmas(gate: Gate, difference: Difference) -> float | None:
    """Standard deviations by which a difference exceeds the tolerance, negative where it is within; None: it is not
    measurable.

    The uncertainty of a difference at the tolerance is used: the observed one is too small where the difference is too
    small by chance, which would accept too often. Without any uncertainty only a difference beyond the tolerance
    decides.
    """
    if difference.value is None or difference.uncertainty is None:
        return None
    sides = (1.0,) if _is_one_sided(gate) else (1.0, -1.0)
    return max((s for side in sides if (s := _beyond(difference, gate.limit, side)) is not None), default=None)


def _beyond(difference: Difference, tolerance: float, side: float) -> float | None:
    """`exceeding_sigmas` on the side of larger (1) or smaller (-1) values."""
    value, sigma = difference.value or 0.0, difference.uncertainty or 0.0
    if difference.scale == "ratio":
        if value <= -100:  # nothing is generated: no uncertainty is needed
            return -side * math.inf
        excess, sigma = side * math.log((100 + value) / (100 + side * tolerance)), sigma / (100 + value)
    else:
        excess = side * value - tolerance
        if difference.scale == "squared":
            sigma = math.sqrt(difference.null_uncertainty**2 + difference.slope * tolerance)
    if not sigma:
        return math.inf if excess > 0 else None
    return excess / sigma


def interval(difference: Difference) -> tuple[float, float]:
    """Ends of the 90% interval of a measured difference: the values that the test does not exclude on either side."""
    value, sigma = difference.value or 0.0, difference.uncertainty or 0.0
    if difference.scale == "ratio" and value > -100:
        width = Z * sigma / (100 + value)
        return (100 + value) * math.exp(-width) - 100, (100 + value) * math.exp(width) - 100
    if difference.scale == "squared":  # (value - t)^2 = Z^2 (null variance + slope t), solved for t
        middle = value + Z**2 * difference.slope / 2
        square = difference.slope * value + difference.null_uncertainty**2 + (Z * difference.slope / 2) ** 2
        half = Z * math.sqrt(max(square, 0.0))
        return middle - half, middle + half
    return value - Z * sigma, value + Z * sigma


def _exceeding_probability(gate: Gate, differences: Sequence[Difference]) -> float:
    """p of the hypothesis that all differences are within the tolerance."""
    sigmas = [s for d in differences if (s := exceeding_sigmas(gate, d)) is not None]
    return min(1.0, len(sigmas) * float(ndtr(-max(sigmas)))) if sigmas else 1.0


def _result(
    gate: Gate,
    quantity: QuantityResult,
    differences: Sequence[Difference],
    is_rejected: bool,
    gates: int,
    showers: Counts,
) -> GateResult:
    measured = [(s, d) for d in differences if (s := exceeding_sigmas(gate, d)) is not None]
    reason = next((_missing(d) for d in differences if exceeding_sigmas(gate, d) is None), quantity.reason)
    if not differences and not reason:
        reason = (
            f"there are too few showers to train a classifier on {gate.showers} of each kind: it has "
            f"{', '.join(d.where.split()[0] for d in quantity.differences)}"
        )
    result = GateResult(
        quantity=gate.quantity,
        title=quantity.title,
        unit=quantity.unit,
        showers=gate.showers,
        tolerance=gate.limit,
        decision="rejected" if is_rejected else "undecided",
        reason=reason,
    )
    if not measured:
        return result
    sigmas, decisive = max(measured, key=lambda pair: pair[0])
    value, (low, high) = decisive.value, interval(decisive)
    if not _is_one_sided(gate):
        value, ends = abs(value or 0.0), (abs(low), abs(high))
        low, high = 0.0 if low <= 0 <= high else min(ends), max(ends)
    found = {**decisive.values_of("where", "uncertainty", "sigmas"), "value": value, "low": low, "high": high}
    if len(measured) == len(differences):
        found["reason"] = None
        if not is_rejected and sigmas <= -Z:
            found["decision"] = "accepted"
        elif not is_rejected:
            found |= _lacking(sigmas, gates * len(measured), showers)
    return result.model_copy(update=found)


def _missing(difference: Difference) -> str:
    where = f"at {difference.where}: " if difference.where else ""
    return where + (difference.reason or "not measurable here: the uncertainty is zero")


def _lacking(sigmas: float, tests: int, showers: Counts) -> dict[str, Any]:
    """Showers that would decide if the difference is what it seems: a number of further held-out Monte Carlo showers,
    or numbers of both where generated ones are too few as well. Empty where it would take about a million.

    sigmas: standard deviations by which it exceeds the tolerance now.
    """
    needed = float(ndtri(1 - ERROR / tests)) if sigmas > 0 else Z
    # Both samples contribute to the variance in proportion to the inverse of their size.
    decides = (1 / showers.reference + 1 / showers.generated) * (sigmas / needed) ** 2
    of_reference = decides - 1 / showers.generated
    if of_reference > 1e-6:
        return {"further_showers": max(1, math.ceil(1 / of_reference) - showers.reference)}
    each = math.ceil(2 / decides) if decides > 1e-6 else 0
    return {"needed_showers": (each, max(each, showers.reference))} if each else {}
