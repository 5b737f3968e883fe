"""What measures bring one after the other, and all together."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from caloscale.studies.points import Point, Statement

SWEEP = "cumulative"
"""Sweep whose points have one measure more each, named by the input `label`."""


def statements(points: Mapping[str, Sequence[Point]]) -> list[Statement]:
    """Showers per second of each point of the sweep over those of the one before, and over the first. Medians."""
    rates: dict[str, list[float]] = {}
    for point in points[SWEEP]:
        rates.setdefault(str(point.inputs["label"]), []).append(point.value("showersPerSecond"))
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
