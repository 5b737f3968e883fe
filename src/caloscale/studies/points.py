"""The points of a study, and the statements that are drawn from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from caloscale.errors import CaloscaleError, ConfigurationError
from caloscale.spec.block import Block
from caloscale.spec.problem import suggest


@dataclass(frozen=True)
class Point:
    """A point of a sweep."""

    inputs: dict[str, Any]
    """What was varied and given."""
    result: dict[str, Any]
    """What came out, as in JSON; empty when the point failed."""
    repetition: int = 0
    """Number of the repetition, from 0."""
    error: CaloscaleError | None = None
    """Why the point failed; None: it did not."""

    def value(self, path: str) -> Any:
        """An input, or what a dotted path names in an input or in the result; None where the path ends in nothing."""
        if path in self.inputs:
            return self.inputs[path]
        first, _, rest = path.partition(".")
        found: Any = self.result
        if rest and isinstance(self.inputs.get(first), dict):
            found, path = self.inputs[first], rest
        elif self.error is not None:
            return None
        for name in path.split("."):
            if found is None:
                return None
            if isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                known = sorted({*self.inputs, *(found if isinstance(found, dict) else ())})
                raise ConfigurationError(
                    "is neither an input nor in the result",
                    field="columns",
                    value=path,
                    remedy=suggest(name, known) or f"one of {', '.join(known)}",
                )
        return found


class Statement(Block):
    """A sentence with its numbers."""

    claim: str
    """What the study said, or what was asked."""
    finding: str
    """What comes out, with dates and assumptions."""
    figures: dict[str, float]
    """The numbers in it, by name."""
