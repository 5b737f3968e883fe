"""A point of a sweep: what was put in, what came out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from caloscale.errors import ConfigurationError
from caloscale.planning.machines import nearest


@dataclass(frozen=True)
class Point:
    """A point of a sweep."""

    inputs: dict[str, Any]
    """What was varied and given."""
    result: dict[str, Any]
    """What came out, as in JSON."""

    def value(self, path: str) -> Any:
        """An input, or what lies at a dotted path in the result; None where the path ends in nothing."""
        if path in self.inputs:
            return self.inputs[path]
        found: Any = self.result
        for name in path.split("."):
            if found is None:
                return None
            if isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                known = sorted({*self.inputs, *(found if isinstance(found, dict) else ())})
                near = nearest(name, known)
                raise ConfigurationError(
                    "is neither an input nor in the result",
                    field="columns",
                    value=path,
                    remedy=f"did you mean {near!r}?" if near else f"one of {', '.join(known)}",
                )
        return found
