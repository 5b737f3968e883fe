"""Statements that are drawn from the points of studies: cost, crossings of several ranks with one, gains by measure."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from caloscale.studies.points import Point, Statement

HOUR, DAY = 3600.0, 86_400.0


def cost_statements(points: Mapping[str, Sequence[Point]]) -> list[Statement]:
    """Flat cost, TPU against V100, one accelerator against many."""
    return [*_flat(points["flat"]), *_tpu([*points["tpu"], *points["tpu-host"]]), *_time(points["time"])]


def _flat(points: Sequence[Point]) -> Iterator[Statement]:
    groups: dict[tuple[str, str | None], list[Point]] = {}
    for point in points:
        groups.setdefault((point.inputs["asOf"], point.inputs["host"]), []).append(point)
    for (day, host), group in groups.items():
        usd = [point.value("usd") for point in group]
        counts = [point.inputs["count"] for point in group]
        if len(set(counts)) == 1:
            continue  # one number of accelerators is no comparison
        first, accelerator = group[0], group[0].inputs["accelerator"]
        claim = f"cost per epoch is flat from {min(counts)} to {max(counts)} {accelerator}"
        spread = max(usd) / min(usd) - 1
        hosts = "without hosts" if host is None else f"with an {host} a GPU"
        finding = (
            f"{min(usd):.3f} to {max(usd):.3f} USD, {spread:.1%} apart: "
            f"{first.value('secondsAre')} as measured, {first.value('capacityType')}, {first.value('region')}, "
            f"{hosts}, prices of {day} seen on {first.value('observedOn')}"
        )
        yield Statement(claim=claim, finding=finding, figures={"spread": spread})


def _tpu(points: Sequence[Point]) -> Iterator[Statement]:
    claim = "a preemptible TPU v3-8 is 2.4 times cheaper than its GPU equivalent"
    for day in dict.fromkeys(point.inputs["asOf"] for point in points):
        here = [point for point in points if point.inputs["asOf"] == day]
        ratios = [
            f"{point.value('ratio'):.2f} in {point.inputs['region']} ({point.value('oneCost.secondsAre')}, "
            f"{point.value('oneCost.title')} {point.value('oneCost.host')}, {point.value('otherCost.title')} "
            f"{point.value('otherCost.host')})"
            for point in here
        ]
        every = [point.value("ratio") for point in here]
        seen = min(point.value("observedOn") for point in here)
        finding = (
            f"{'; '.join(ratios)}; {here[0].inputs['capacityType']}, prices of {day} seen on {seen}: "
            f"from {min(every):.2f} to {max(every):.2f} by region and hosts"
        )
        figures = {"ratio": every[0], "lowest": min(every), "highest": max(every)}
        yield Statement(claim=claim, finding=finding, figures=figures)


def _time(points: Sequence[Point]) -> Iterator[Statement]:
    claim = "training time falls from about a week to about an hour"
    by_epochs: dict[int, list[Point]] = {}
    for point in points:
        by_epochs.setdefault(point.value("epochs"), []).append(point)
    for epochs, group in sorted(by_epochs.items()):
        one, many = (choose(group, key=lambda point: point.value("count")) for choose in (min, max))
        if one.value("count") == many.value("count"):
            continue
        one_seconds, many_seconds = one.value("totalSeconds"), many.value("totalSeconds")
        single = f"{one.value('count')} x {one.value('accelerator')}"
        extrapolated = f"; {single} is extrapolated" if one.value("extrapolates") else ""
        finding = (
            f"{epochs} epochs: {one_seconds / DAY:.1f} days on {single}, "
            f"{many_seconds / HOUR:.2f} h on {many.value('count')}, {one_seconds / many_seconds:.0f} times faster; "
            f"{one.value('capacityType')}, {one.value('batchPerReplica')} showers a GPU{extrapolated}"
        )
        figures = {"epochs": epochs, "oneSeconds": one_seconds, "manySeconds": many_seconds}
        yield Statement(claim=claim, finding=finding, figures=figures)


def crossing_statements(points: Mapping[str, Sequence[Point]]) -> list[Statement]:
    """One for each point with several ranks that has a point with one rank and otherwise equal inputs, of those with
    residuals."""
    statements = []
    for every in points.values():
        sweep = [point for point in every if point.value("history") is not None]
        alone = {_kind(point): point for point in sweep if point.value("ranks") == 1}
        several = (point for point in sweep if point.value("ranks") > 1 and _kind(point) in alone)
        statements += [_crossing_statement(point, alone[_kind(point)]) for point in several]
    return statements


def _kind(point: Point) -> str:
    """The inputs but for those in which a point may differ from the one that it is compared with."""
    return str({k: str(v) for k, v in sorted(point.inputs.items()) if k not in ("solver.ranks", "solver.groups")})


def _crossing_statement(many: Point, one: Point) -> Statement:
    rate = many.inputs.get("solver.learningRateScaling", "none")
    claim = (
        f"{many.value('ranks')} ranks have smaller residuals than one at equal wall time, learning rate scaling {rate}"
    )
    seconds = crossing(many.value("history"), one.value("history"))
    until = min(point.value("history")[-1]["seconds"] for point in (many, one))
    if seconds is None:
        when = f"not within the {until:.3g} s that both took"
        return Statement(claim=claim, finding=when, figures={"commonSeconds": until})
    when = f"from {seconds:.3g} s of {until:.3g} s on"
    return Statement(claim=claim, finding=when, figures={"commonSeconds": until, "crossing": seconds})


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


SWEEP = "cumulative"
"""Sweep whose points have one measure more each, named by the input `label`."""


def waterfall_statements(points: Mapping[str, Sequence[Point]]) -> list[Statement]:
    """The median rate of showers of each point, over the rate of the point before it and over the rate of the first."""
    rates: dict[str, list[float]] = {}
    for point in points[SWEEP]:
        rates.setdefault(str(point.value("label")), []).append(point.value("showersPerSecond"))
    labels, medians = list(rates), [statistics.median(values) for values in rates.values()]
    return [
        Statement(
            claim=f"{label} after {before}",
            finding=f"{now / was:.2f} times as many showers per second, "
            f"{now / medians[0]:.2f} times as many as {labels[0]}",
            figures={"step": now / was, "together": now / medians[0]},
        )
        for before, label, was, now in zip(labels, labels[1:], medians, medians[1:])
    ]
