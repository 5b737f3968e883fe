"""The problems that a pydantic model finds in its input: where, what, and what to write instead."""

import datetime as dt
import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from caloscale.errors import InvalidValueError

Location = tuple[int | str, ...]
_BOUNDS = {"ge": "at least", "gt": "greater than", "le": "at most", "lt": "less than"}
_LONGEST_EXAMPLE = 60
MOST_PROBLEMS = 20
"""Of one input in a message."""


@dataclass(frozen=True)
class Problem:
    """One problem of an input."""

    location: Location
    """Keys and indices from the top to the value."""
    text: str
    value: Any
    """The refused value; None where it is a mapping or absent."""
    remedy: str
    """What to write instead."""
    own_remedy: bool
    """Whether the check that refused the value gives the remedy itself; else it is derived from the field's type."""

    @property
    def field(self) -> str:
        """The location with dots, such as ``data.energyGev.0``."""
        return ".".join(map(str, self.location))


def list_problems(error: ValidationError, block: type[BaseModel]) -> list[Problem]:
    """The first problems of an input of ``block``, with remedies, in the order of the fields; at least one."""
    return [_problem(item, block) for item in error.errors(include_url=False)[:MOST_PROBLEMS]]


def suggest(name: str, names: Iterable[str]) -> str | None:
    """``did you mean 'x'?`` with the nearest name, whatever its case, if one is near."""
    known = {each.lower(): each for each in sorted(names)}
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"did you mean {known[near[0]]!r}?" if near else None


def _problem(item: Any, block: type[BaseModel]) -> Problem:
    location: Location = item["loc"]
    if item["type"] == "extra_forbidden":
        names = _field_names(_walk(block, location[:-1])[0])
        remedy = suggest(str(location[-1]), names) or f"known keys here: {', '.join(names)}"
        return Problem(location, "unknown key", _shown(item["input"]), remedy, own_remedy=False)
    refused = item.get("ctx", {}).get("error")
    if isinstance(refused, InvalidValueError):
        return Problem(location, refused.problem, _shown(item["input"]), refused.remedy, own_remedy=True)
    missing = item["type"] == "missing"
    text = "is missing" if missing else item["msg"].removeprefix("Value error, ")
    value = None if missing else _shown(item["input"])
    return Problem(location, text, value, _accepted(block, location), own_remedy=False)


def _shown(value: Any) -> Any:
    return None if isinstance(value, dict) else value


def _walk(block: type[BaseModel], location: Location) -> tuple[Any, FieldInfo | None]:
    """The type at a location below ``block``, and the field whose type it is (None for an item of a list)."""
    kind: Any = block
    field: FieldInfo | None = None
    for part in location:
        kind = _without_none(kind)
        if isinstance(part, int):
            field, inner = None, [a for a in get_args(kind) if a is not Ellipsis]
            kind = inner[min(part, len(inner) - 1)] if inner else None
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            info = next((f for name, f in kind.model_fields.items() if part in (f.alias, name)), None)
            field, kind = info, info.annotation if info else None
        else:
            return None, None
    return _without_none(kind), field


def _without_none(kind: Any) -> Any:
    inner = [a for a in get_args(kind) if a is not type(None)]
    return inner[0] if len(inner) == 1 and type(None) in get_args(kind) else kind


def _field_names(kind: Any) -> list[str]:
    if not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return []
    return [field.alias or name for name, field in kind.model_fields.items()]


def _accepted(block: type[BaseModel], location: Location) -> str:
    """What may be written at a location: kind, bounds, an example."""
    kind, field = _walk(block, location)
    if kind is None:
        return "see the JSON schema: it lists keys, types and ranges"
    bounds = []
    for constraint in field.metadata if field else ():
        limits = {text: getattr(constraint, name, None) for name, text in _BOUNDS.items()}
        given = {text: limit for text, limit in limits.items() if limit is not None}
        bounds += [f"{text} {limit if isinstance(limit, int) else f'{limit:g}'}" for text, limit in given.items()]
        pattern = getattr(constraint, "pattern", None)
        bounds += [f"that matches {pattern}"] if pattern else []
    example = "" if field is None else _example(field)
    optional = field is not None and not field.is_required() and field.default is None
    words = " ".join(filter(None, [_noun(kind), " and ".join(bounds)]))
    return f"write {words}{example}{', or leave it out' if optional else ''}"


def _noun(kind: Any) -> str:
    names = _field_names(kind)
    if names:
        return f"a mapping with some of the keys {', '.join(names)}"
    if get_origin(kind) is Literal:
        return f"one of: {', '.join(map(str, get_args(kind)))}"
    if get_origin(kind) in (tuple, list):
        inner = [a for a in get_args(kind) if a is not Ellipsis]
        return "a list" if Ellipsis in get_args(kind) else f"a list of {len(inner)}: {', '.join(map(_noun, inner))}"
    nouns = {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}
    nouns |= {dt.date: "a date such as 2026-11-21"}
    return nouns.get(getattr(kind, "__origin__", kind), "a value of the type in the JSON schema")


def _example(field: FieldInfo) -> str:
    default = field.get_default(call_default_factory=False)
    if isinstance(default, bool) or not isinstance(default, int | float | str | tuple) or default == ():
        return ""
    try:
        shown = default if isinstance(default, str) else json.dumps(default)
    except TypeError:  # a tuple of blocks
        return ""
    return f", such as {shown}" if shown and len(shown) <= _LONGEST_EXAMPLE else ""
