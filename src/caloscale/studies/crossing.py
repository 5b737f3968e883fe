"""From when on several ranks have smaller residuals than one rank, at equal wall time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from caloscale.studies.points import Point, Statement

_ALIKE = ("solver.ranks", "solver.groups")
"""Inputs in which a point may differ from the one that it is compared with."""


def statements(points: Mapping[str, Sequence[Point]]) -> list[Statement]:
    """One for each point with several ranks that has a point with one rank and otherwise equal inputs."""
    made = []
    for sweep in points.values():
        alone = {_kind(point): point for point in sweep if point.value("ranks") == 1}
        made += [
            _statement(point, alone[_kind(point)])
            for point in sweep
            if point.value("ranks") > 1 and _kind(point) in alone
        ]
    return made


def _kind(point: Point) -> str:
    return str(sorted((name, str(value)) for name, value in point.inputs.items() if name not in _ALIKE))


def _statement(many: Point, one: Point) -> Statement:
    ranks, rate = many.value("ranks"), many.inputs.get("solver.learningRateScaling", "none")
    seconds = crossing(many.value("history"), one.value("history"))
    until = min(many.value("history")[-1]["seconds"], one.value("history")[-1]["seconds"])
    figures = {"commonSeconds": until, **({} if seconds is None else {"crossing": seconds})}
    when = (
        f"not within the {until:.3g} s that both took"
        if seconds is None
        else f"from {seconds:.3g} s of {until:.3g} s on"
    )
    return Statement(
        claim=f"{ranks} ranks have smaller residuals than one at equal wall time, learning rate scaling {rate}",
        finding=when,
        figures=figures,
    )


def crossing(many: Sequence[Mapping[str, float]], one: Sequence[Mapping[str, float]]) -> float | None:
    """Wall time, s, of the first checkpoint of ``many`` from which on its mean absolute residual is the smaller one.

    Both are histories with `seconds` and `meanAbsolute`; ``one`` is interpolated linearly, and only times at which both
    were trained count. The start, where nothing was trained, does not count.
    """
    times, residuals = ([point[name] for point in one] for name in ("seconds", "meanAbsolute"))
    common = [point for point in many if 0 < point["seconds"] <= times[-1]]
    better = [point["meanAbsolute"] < float(np.interp(point["seconds"], times, residuals)) for point in common]
    behind = max((index for index, smaller in enumerate(better) if not smaller), default=-1)
    return common[behind + 1]["seconds"] if behind + 1 < len(common) else None
