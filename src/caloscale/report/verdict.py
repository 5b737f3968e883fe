"""The verdict in words: rows of the verdict table, for the report and for Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from caloscale.physics.result import Evaluation


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
                reason=result.reason or "",
            )
        )
    return rows


def headline(evaluation: Evaluation) -> str:
    """Released or held back, in one sentence."""
    return ("Released: " if evaluation.released else "Held back: ") + why(evaluation)


def why(evaluation: Evaluation) -> str:
    """The reasons to hold the model back, or what was asked of it."""
    if not evaluation.released:
        return "; ".join(evaluation.reasons) + "."
    if not evaluation.gates:
        return "the document sets no gates (validation.gates), so nothing was required."
    count = len(evaluation.gates)
    return f"all {count} gates were kept." if count > 1 else "the gate was kept."


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
    """Such as 0.0123 ± 0.0045 or (6.3 ± 2.4)e-5: the uncertainty has two significant digits."""
    if value is None:
        return "absent"
    if not uncertainty:
        return plain(value)
    decimals = max(0, 1 - _exponent(uncertainty))
    if decimals > 5:
        power = _exponent(max(abs(value), uncertainty))
        digits = max(0, 1 - _exponent(uncertainty) + power)
        scale = 10.0**power
        return f"({value / scale:.{digits}f} ± {uncertainty / scale:.{digits}f})e{power}"
    return f"{value:.{decimals}f} ± {uncertainty:.{decimals}f}"


def plain(value: float | None) -> str:
    """Three significant digits."""
    return "absent" if value is None else f"{value:.3g}"


def signed(value: float | None) -> str:
    """Standard deviations with their sign."""
    return "absent" if value is None else f"{value:+.1f} sigma"


def _exponent(value: float) -> int:
    return int(f"{abs(value):e}".partition("e")[2])


def _line(cells: list[str] | tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"
