"""Decisions: is a difference below its tolerance, above it, or can so few showers not say?

Acceptance is an equivalence test (two one-sided tests, Schuirmann 1987): the upper end of the 90% interval lies
below the tolerance, in every range of energy. All gates accepted needs no correction for their number (intersection-
union). Rejection is a test of the opposite: the difference exceeds the tolerance significantly, with Bonferroni's
correction over the ranges of energy and Holm's over the gates, so that a model within all tolerances is rejected with
a probability of at most 5%.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from scipy.special import ndtr, ndtri

from caloscale.physics.result import Difference, GateResult, QuantityResult
from caloscale.spec.validation import Gate

Decision = Literal["accepted", "rejected", "undecided", "not assessed"]

ERROR = 0.05
"""Probability of a wrong acceptance by a gate, and of a wrong rejection by all gates together."""
Z = float(ndtri(1 - ERROR))
"""Half width of the interval in standard deviations."""


@dataclass(frozen=True)
class Sizes:
    """Showers that were compared."""

    reference: int
    generated: int


def decide(
    gates: Sequence[Gate], quantities: Mapping[str, QuantityResult], sizes: Sizes, faults: Sequence[str]
) -> tuple[tuple[GateResult, ...], Decision, tuple[str, ...]]:
    """The result of each gate, the decision on the model, and its reasons.

    faults: what no generator may do whatever the gates are, such as cells that are not finite: they reject it.
    """
    chosen = [_differences(gate, quantities[gate.quantity]) for gate in gates]
    exceeding = [_exceeding_probability(gate, found) for gate, found in zip(gates, chosen)]
    rejected = holm(exceeding, ERROR)
    results = tuple(
        _result(gate, quantities[gate.quantity], found, is_rejected, len(gates), sizes)
        for gate, found, is_rejected in zip(gates, chosen, rejected)
    )
    decisions = {result.decision for result in results}
    decision: Decision = "not assessed"
    if faults or "rejected" in decisions:
        decision = "rejected"
    elif results:
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
    if gate.showers is not None:
        return [d for d in quantity.differences if d.where.startswith(f"{gate.showers} ")]
    return list(quantity.differences)


def _size(gate: Gate, difference: Difference) -> float:
    """What is compared with the tolerance: separations and AUCs have one bad side, the others two."""
    assert difference.value is not None
    return difference.value if _is_one_sided(gate) else abs(difference.value)


def _is_one_sided(gate: Gate) -> bool:
    return gate.quantity == "classifierAuc" or gate.quantity.endswith("Separation")


def _is_measured(difference: Difference) -> bool:
    return difference.value is not None and difference.uncertainty is not None


def _exceeding_probability(gate: Gate, differences: Sequence[Difference]) -> float:
    """p of the hypothesis that all differences are within the tolerance."""
    p = [
        float(ndtr((gate.tolerance - _size(gate, d)) / max(d.uncertainty or 0.0, 1e-12)))
        for d in differences
        if _is_measured(d)
    ]
    return min(1.0, len(p) * min(p)) if p else 1.0


def _result(
    gate: Gate,
    quantity: QuantityResult,
    differences: Sequence[Difference],
    is_rejected: bool,
    gates: int,
    sizes: Sizes,
) -> GateResult:
    measured = [d for d in differences if _is_measured(d)]
    if not measured:
        reason = quantity.reason or (
            f"there are too few showers to train a classifier on {gate.showers} of each kind: it has "
            f"{', '.join(d.where.split()[0] for d in quantity.differences)}"
        )
        return _named(gate, quantity, decision="undecided", reason=reason)

    def low(d: Difference) -> float:
        return _size(gate, d) - Z * (d.uncertainty or 0.0)

    def high(d: Difference) -> float:
        return _size(gate, d) + Z * (d.uncertainty or 0.0)

    decisive = max(measured, key=low if is_rejected else high)
    decision: Decision = "rejected" if is_rejected else "undecided"
    if not is_rejected and len(measured) == len(differences) and high(decisive) <= gate.tolerance:
        decision = "accepted"
    further = None
    if decision == "undecided" and len(measured) == len(differences):
        further = _further_showers(gate, decisive, gates * len(measured), sizes)
    return _named(
        gate,
        quantity,
        decision=decision,
        where=decisive.where,
        value=_size(gate, decisive),
        uncertainty=decisive.uncertainty,
        low=low(decisive) if _is_one_sided(gate) else max(low(decisive), 0.0),
        high=high(decisive),
        sigmas=decisive.sigmas,
        further_showers=further,
        reason=quantity.reason if len(measured) < len(differences) else None,
    )


def _further_showers(gate: Gate, difference: Difference, tests: int, sizes: Sizes) -> int | None:
    """Held-out Monte Carlo showers that would decide if the difference is what it seems; None: it is so near the
    tolerance that no number is foreseen, or it is generated showers that lack."""
    distance = abs(_size(gate, difference) - gate.tolerance)
    above = _size(gate, difference) > gate.tolerance
    needed = distance / (float(ndtri(1 - ERROR / tests)) if above else Z)
    uncertainty = difference.uncertainty or 0.0
    if needed <= 0 or not uncertainty:
        return None
    # Both samples contribute to the variance in proportion to the inverse of their size.
    scaled = (1 / sizes.reference + 1 / sizes.generated) * (needed / uncertainty) ** 2 - 1 / sizes.generated
    if scaled <= 0:
        return None
    further = math.ceil(1 / scaled) - sizes.reference
    return max(1, further) if further < 1_000_000 else None


def _named(gate: Gate, quantity: QuantityResult, **found: object) -> GateResult:
    return GateResult.model_validate(
        {
            "quantity": gate.quantity,
            "title": quantity.title,
            "unit": quantity.unit,
            "tolerance": gate.tolerance,
            "showers": gate.showers,
            **found,
        },
        by_name=True,
    )
