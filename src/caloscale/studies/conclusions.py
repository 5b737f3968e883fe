"""Which statements are drawn from which study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from caloscale.errors import ConfigurationError
from caloscale.studies import cost
from caloscale.studies.points import Point
from caloscale.studies.statement import Statement
from caloscale.studies.sweep import Study

CONCLUSIONS: dict[str, Callable[[Mapping[str, Sequence[Point]]], list[Statement]]] = {"cost": cost.statements}
"""By the name in a study's document."""


def conclude(study: Study, points: Mapping[str, Sequence[Point]]) -> list[Statement]:
    """The statements of a study; raises ConfigurationError when its conclusions are not known or miss a sweep."""
    if study.conclusions is None:
        return []
    if study.conclusions not in CONCLUSIONS:
        raise ConfigurationError(
            "are not known", field="conclusions", value=study.conclusions, remedy=f"one of {', '.join(CONCLUSIONS)}"
        )
    try:
        return CONCLUSIONS[study.conclusions](points)
    except KeyError as missing:
        raise ConfigurationError(
            f"need a sweep or value {missing}", field="conclusions", value=study.conclusions, remedy="leave them out"
        ) from missing
