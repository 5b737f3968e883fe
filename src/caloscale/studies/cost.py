"""The statements of the cost study, drawn from its points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from caloscale.studies.points import Point, Statement

HOUR, DAY = 3600.0, 86_400.0
WEEK = 7 * DAY


def statements(points: Mapping[str, Sequence[Point]]) -> list[Statement]:
    """Flat cost, TPU against V100, one accelerator against many, layouts."""
    return [
        *_flat(points["flat"]),
        *_tpu([*points["tpu"], *points["tpu-host"]]),
        *_time(points["time"]),
        *_layouts(points["layouts"]),
    ]


def _flat(points: Sequence[Point]) -> list[Statement]:
    claim = "cost per epoch is flat from 2 to 32 V100"
    groups: dict[tuple[str, str | None], list[Point]] = {}
    for point in points:
        groups.setdefault((point.inputs["asOf"], point.inputs["host"]), []).append(point)
    made = []
    for (day, host), group in groups.items():
        usd = [point.value("usd") for point in group]
        counts = [point.inputs["count"] for point in group]
        first = group[0]
        spread = max(usd) / min(usd) - 1
        hosts = "without hosts" if host is None else f"with an {host} a GPU"
        finding = (
            f"{min(usd):.3f} to {max(usd):.3f} USD, {spread:.1%} apart: {min(counts)} to {max(counts)} V100, "
            f"{first.value('secondsAre')} as measured, {first.value('capacityType')}, {first.value('region')}, "
            f"{hosts}, prices of {day} seen on {first.value('observedOn')}"
        )
        made.append(Statement(claim=claim, finding=finding, figures={"spread": spread}))
    return made


def _tpu(points: Sequence[Point]) -> list[Statement]:
    claim = "a preemptible TPU v3-8 is 2.4 times cheaper than its GPU equivalent"
    made = []
    for day in dict.fromkeys(point.inputs["asOf"] for point in points):
        ratios = [
            f"{point.value('ratio'):.2f} in {point.inputs['region']} ({_epoch(point)})"
            for point in points
            if point.inputs["asOf"] == day
        ]
        here = [point for point in points if point.inputs["asOf"] == day]
        every = [point.value("ratio") for point in here]
        finding = (
            f"{'; '.join(ratios)}; spot, prices of {day} seen on {here[0].value('moreExpensive.observedOn')}: "
            f"from {min(every):.2f} to {max(every):.2f} by region and hosts"
        )
        figures = {"ratio": every[0], "lowest": min(every), "highest": max(every)}
        made.append(Statement(claim=claim, finding=finding, figures=figures))
    return made


def _epoch(point: Point) -> str:
    gpu, tpu = point.value("moreExpensive.host"), point.value("cheaper.host")
    return f"{point.value('moreExpensive.secondsAre')}, V100 {gpu}, TPU {tpu}"


def _time(points: Sequence[Point]) -> list[Statement]:
    claim = "training time falls from about a week to about an hour"
    by_epochs: dict[int, list[Point]] = {}
    for point in points:
        by_epochs.setdefault(point.value("epochs"), []).append(point)
    made, said = [], ""
    for epochs, group in sorted(by_epochs.items()):
        one, many = _ends(group)
        one_seconds, many_seconds = one.value("totalSeconds"), many.value("totalSeconds")
        said = f"{one_seconds / DAY:.1f} days on {one.value('count')} V100, "
        said += f"{many_seconds / HOUR:.2f} h on {many.value('count')}"
        extrapolated = f"; {one.value('count')} V100 is extrapolated" if one.value("extrapolates") else ""
        finding = (
            f"{epochs} epochs: {said}, {one_seconds / many_seconds:.0f} times faster; no interruptions, "
            f"{one.value('batchPerReplica')} showers a GPU{extrapolated}"
        )
        figures = {"epochs": epochs, "oneSeconds": one_seconds, "manySeconds": many_seconds}
        made.append(Statement(claim=claim, finding=finding, figures=figures))
    return [*made, _why(claim, *_ends(points), max(by_epochs), said)]


def _ends(points: Sequence[Point]) -> tuple[Point, Point]:
    """The points with the fewest and the most accelerators."""
    ordered = sorted(points, key=lambda point: point.value("count"))
    return ordered[0], ordered[-1]


def _why(claim: str, one: Point, many: Point, epochs: int, said: str) -> Statement:
    count = many.value("count")
    week = (WEEK - one.value("startUpSeconds")) / one.value("epochSeconds")
    hour = (HOUR - many.value("startUpSeconds")) / many.value("epochSeconds")
    finding = (
        f"why it differs: an epoch takes {one.value('epochSeconds'):.0f} s on {one.value('count')} V100 and "
        f"{many.value('epochSeconds'):.1f} s on {count}, so a week is {week:.0f} epochs on the one and an hour "
        f"{hour:.0f} epochs on the others; both times are given as about a week and about an hour, whose ratio "
        f"is {WEEK / HOUR:.0f}. At {epochs} epochs it is {said}"
    )
    return Statement(claim=claim, finding=finding, figures={"epochsInAWeek": week, "epochsInAnHour": hour})


def _layouts(points: Sequence[Point]) -> list[Statement]:
    claim = "one worker a node with all its GPUs is the best layout of 32 GPUs"
    made = []
    for basis, path in (("predicted", "epochSeconds"), ("measured", "measured.trainSeconds")):
        known = [point for point in points if point.value(path) is not None]
        best = min(known, key=lambda point: point.value(path))
        others = sorted(
            (point for point in known if point.value("workers") != point.value("nodes")),
            key=lambda point: point.value(path),
        )
        aligned = {point.value("nodes"): point.value(path) for point in known if _aligned(point)}
        slower = [(point, point.value(path) / aligned[point.value("nodes")] - 1) for point in others]
        mildest, worst = (choose(slower, key=lambda pair: pair[1]) for choose in (min, max))
        finding = (
            f"{basis} ({len(known)} layouts): best {_layout(best)}, "
            f"{'aligned' if _aligned(best) else 'not aligned'}, {best.value(path):.1f} s; against the aligned layout "
            f"of the same nodes {_layout(mildest[0])} is {mildest[1]:+.1%} and {_layout(worst[0])} {worst[1]:+.1%}"
        )
        figures = {"bestWorkers": best.value("workers"), "bestNodes": best.value("nodes")}
        figures |= {"mildest": mildest[1], "worst": worst[1]}
        made.append(Statement(claim=claim, finding=finding, figures=figures))
    return made


def _aligned(point: Point) -> bool:
    return bool(point.value("workers") == point.value("nodes"))


def _layout(point: Point) -> str:
    workers, part, nodes = (point.value(name) for name in ("workers", "acceleratorsPerWorker", "nodes"))
    return f"{workers} workers x {part} GPUs on {nodes} nodes"
