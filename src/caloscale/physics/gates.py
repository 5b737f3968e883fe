"""Whether the model is released: the gates of the document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caloscale.physics.result import ObservableResult, Verdict
from caloscale.spec.validation import Gate


def decide(
    gates: Sequence[Gate], observables: Mapping[str, ObservableResult], unusable: int, *, all_empty: bool
) -> tuple[tuple[Verdict, ...], tuple[str, ...]]:
    """A verdict for each gate, and the reasons to hold the model back (none: released).

    A gate limits the separation in floors. It is not kept when the observable could not be computed. A generator
    that makes nothing, or cells that are not finite or negative, is held back without any gate: with few showers
    the floor is so high that even nothing may lie below it.
    """
    verdicts = tuple(_judge(gate, observables.get(gate.observable)) for gate in gates)
    reasons = [v.reason for v in verdicts if v.reason is not None]
    if all_empty:
        reasons.append("all generated showers are empty")
    if unusable:
        reasons.append(f"{unusable} generated showers have cells that are not finite or negative")
    return verdicts, tuple(reasons)


def _judge(gate: Gate, result: ObservableResult | None) -> Verdict:
    value = None if result is None else result.in_floors
    if result is None or value is None:
        why = "it was not computed" if result is None else result.reason
        passed = False
        reason: str | None = f"{gate.observable}: no value to judge: {why}"
    else:
        passed = value <= gate.max_floors
        reason = None if passed else f"{gate.observable}: {value:.3g} floors, allowed {gate.max_floors:.3g}"
    return Verdict(
        observable=gate.observable,
        in_floors=value,
        uncertainty=None if result is None else result.in_floors_uncertainty,
        limit=gate.max_floors,
        passed=passed,
        reason=reason,
    )
