"""The verdict in words: rows of the verdict table, for the report and for Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from caloscale.physics.result import Evaluation, Verdict


@dataclass(frozen=True)
class Row:
    """An observable with everything that a reader compares; texts, ready to print."""

    name: str
    title: str
    separation: str
    floor: str
    in_floors: str
    untrained: str
    baseline: str
    better: str
    limit: str
    verdict: str
    passed: bool | None
    reason: str


def verdict_rows(evaluation: Evaluation) -> list[Row]:
    """A row for each observable, with its gate if it has one."""
    gates = {gate.observable: gate for gate in evaluation.gates}
    rows = []
    for name, result in evaluation.observables.items():
        gate = gates.get(name)
        rows.append(
            Row(
                name=name,
                title=result.title,
                separation=with_uncertainty(result.separation, result.uncertainty),
                floor=with_uncertainty(result.floor, result.floor_uncertainty),
                in_floors=with_uncertainty(result.in_floors, result.in_floors_uncertainty),
                untrained=plain(result.untrained),
                baseline=plain(result.baseline),
                better=signed(result.sigmas_better_than_baseline),
                limit="" if gate is None else plain(gate.limit),
                verdict="" if gate is None else ("kept" if gate.passed else "not kept"),
                passed=None if gate is None else gate.passed,
                reason=_reason(gate, result.reason),
            )
        )
    return rows


def headline(evaluation: Evaluation) -> str:
    """Released or held back, in one sentence."""
    if not evaluation.released:
        return "Held back: " + "; ".join(evaluation.reasons) + "."
    if not evaluation.gates:
        return "Released. The document sets no gates (validation.gates), so nothing was required."
    many = len(evaluation.gates) > 1
    return f"Released: {'all ' + str(len(evaluation.gates)) + ' gates were' if many else 'the gate was'} kept."


def verdict_markdown(evaluation: Evaluation) -> str:
    """The verdict table, Markdown."""
    titles = (
        "observable",
        "separation",
        "floor",
        "in floors",
        "untrained",
        "baseline",
        "better by",
        "allowed",
        "verdict",
    )
    lines = [f"**{headline(evaluation)}**", "", _line(titles), _line(["---"] * len(titles))]
    for row in verdict_rows(evaluation):
        cells = (row.title, row.separation, row.floor, row.in_floors, row.untrained, row.baseline, row.better)
        lines.append(_line([*cells, row.limit, row.verdict or row.reason]))
    lines += ["", "Separation power from Monte Carlo, 0 to 1. Floor: two halves of the Monte Carlo. Better by: "]
    lines[-1] += "standard deviations by which the generator is nearer than the mean shower scaled by energy."
    return "\n".join(lines)


def with_uncertainty(value: float | None, uncertainty: float | None) -> str:
    """Such as 0.0123 ± 0.0004: the uncertainty has two significant digits, the value as many decimals."""
    if value is None:
        return "absent"
    if not uncertainty:
        return plain(value)
    decimals = max(0, 1 - _exponent(uncertainty))
    if decimals > 6:
        return f"{value:.2e} ± {uncertainty:.1e}"
    return f"{value:.{decimals}f} ± {uncertainty:.{decimals}f}"


def plain(value: float | None) -> str:
    """Three significant digits."""
    return "absent" if value is None else f"{value:.3g}"


def signed(value: float | None) -> str:
    """Standard deviations with their sign."""
    return "absent" if value is None else f"{value:+.1f} sigma"


def _exponent(value: float) -> int:
    return int(f"{abs(value):e}".partition("e")[2])


def _reason(gate: Verdict | None, reason: str | None) -> str:
    return (gate.reason if gate is not None and gate.reason else reason) or ""


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
