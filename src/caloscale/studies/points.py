"""The points of a study: inputs, as blocks or run configurations, results, and the statements that are drawn."""

import copy
import functools
import glob
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, ValidationError

from caloscale.errors import CaloscaleError, ConfigurationError, InputError, InvalidValueError
from caloscale.spec import Run, build_run
from caloscale.spec.block import Block
from caloscale.spec.problem import list_problems, suggest
from caloscale.spec.values import BUCKETS
from caloscale.storage.objects import locate

_B = TypeVar("_B", bound=Block)


def validated(block: type[_B], inputs: Any, source: str | None = None) -> _B:
    """The inputs as a block; raises ConfigurationError with source, field, value and remedy of the first problem."""
    try:
        return block.model_validate(inputs, by_alias=True, by_name=False)
    except ValidationError as problems:
        first = list_problems(problems, block)[0]
        value, field = first.value if isinstance(first.value, str | int | float) else None, first.field or None
        raise ConfigurationError(first.text, file=source, field=field, value=value, remedy=first.remedy) from problems


def own_inputs(block: type[_B], inputs: Mapping[str, Any]) -> tuple[_B, dict[str, Any]]:
    """The inputs that a measure itself has, as a block, and the others: fields of a run configuration.

    Raises ConfigurationError.
    """
    names = {field.alias for field in block.model_fields.values()}
    own = {name: value for name, value in inputs.items() if name in names}
    return validated(block, own), {name: value for name, value in inputs.items() if name not in names}


def _different(seeds: tuple[int, ...]) -> tuple[int, ...]:
    if len(set(seeds)) < len(seeds):
        raise InvalidValueError("is not a list of different seeds", remedy="write seeds: [1, 2, 3]")
    return seeds


Seeds = Annotated[tuple[int, ...], Field(min_length=1), AfterValidator(_different)]
"""Seeds of several runs, one each."""


def refuse_seed(fields: Mapping[str, Any], field: str) -> None:
    """Raise ConfigurationError where fields of a run configuration have the seed that several seeds replace."""
    block, _, name = field.partition(".")
    given = nested(fields).get(block)
    if isinstance(given, Mapping) and name in given:
        remedy = f"leave out {field}, and write seeds: [{given[name]}]"
        raise ConfigurationError("is given, and seeds, too", field=field, value=given[name], remedy=remedy)


def configured_run(inputs: Mapping[str, Any]) -> Run:
    """The run configuration of dotted inputs; raises ConfigurationError."""
    return build_run(nested(inputs))


def nested(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted inputs as blocks; raises ConfigurationError."""
    raw: dict[str, Any] = {}
    for name, value in sorted(inputs.items(), key=lambda item: item[0].count(".")):  # whole blocks first
        *blocks, field = name.split(".")
        block = raw
        for depth, part in enumerate(blocks, start=1):
            block = block.setdefault(part, {})
            if not isinstance(block, dict):
                above = ".".join(blocks[:depth])
                problem = f"is no block, but {name} is given, too"
                raise ConfigurationError(problem, field=above, value=block, remedy=f"leave out {above}")
        block[field] = copy.deepcopy(value)
    return raw


READ_FIELDS = ("source", "startFrom", "model")
"""Last parts of the names of fields with files or folders of showers, events or networks."""
CLASS_FIELDS = ("environment", "objective", "optimizer")
"""Last parts of the names of fields with an importable class."""


def contents_of(inputs: Any) -> list[str]:
    """Hashes of the files and folders, also in buckets, that a point reads, wherever `READ_FIELDS` are in its inputs,
    and of the user's module or package of each class in `CLASS_FIELDS`.

    Raises InputError and StorageError for what cannot be read.
    """
    held: list[str] = []
    for name, value in inputs.items() if isinstance(inputs, Mapping) else enumerate(inputs):
        field = str(name).rpartition(".")[2]
        if isinstance(value, Mapping | list):
            held += contents_of(value)
        elif isinstance(value, str) and field in READ_FIELDS and (value.startswith(BUCKETS) or _places(value)):
            held.append(_content_of(value))
        elif isinstance(value, str) and field in CLASS_FIELDS:
            held += map(_content_of, _code_of(value))
    return held


def _code_of(name: str) -> list[str]:
    """Patterns of the files with the code of a class, but for those of this package, which has a version."""
    package, _, rest = name.partition(".")
    path = ["", *sys.path]  # as of a rank, which also finds modules in the working directory
    spec = PathFinder.find_spec(package, path) if rest and package != "caloscale" else None
    if spec is None:
        return []
    folders = [f"{glob.escape(folder)}/**/*.py" for folder in spec.submodule_search_locations or ()]
    return folders or [glob.escape(str(spec.origin))]


def _places(source: str) -> list[Path]:
    return [Path(place) for place in sorted(glob.glob(source, recursive=True))]  # noqa: PTH207 (absolute patterns)


@functools.cache
def _content_of(source: str) -> str:
    """Hash of names and contents: another one under the same name makes another point."""
    if source.startswith(BUCKETS):
        store, prefix = locate(source)
        return hashlib.sha256(repr(store.list(prefix)).encode()).hexdigest()
    digest, places = hashlib.sha256(), _places(source)
    for file in (inner for place in places for inner in (sorted(place.rglob("*")) if place.is_dir() else [place])):
        if file.is_file():
            digest.update(f"{file.name}:".encode())
            try:
                with file.open("rb") as opened:
                    digest.update(hashlib.file_digest(opened, "sha256").digest())
            except OSError as error:
                remedy = "make it readable, or move it away"
                raise InputError(f"cannot be read: {error.strerror}", file=file, remedy=remedy) from error
    return digest.hexdigest()


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
        """An input, or what a dotted path names in an input or in the result; None where the path ends in nothing, or
        beyond the end of a list."""
        if path in self.inputs:
            return self.inputs[path]
        first, _, rest = path.partition(".")
        found: Any = self.result
        if rest and first in self.inputs and isinstance(self.inputs[first], dict | None):
            found, path = self.inputs[first], rest
        elif self.error is not None:
            return None
        for name in path.split("."):
            if found is None:
                return None
            if isinstance(found, list) and name.isdigit():
                found = found[int(name)] if int(name) < len(found) else None  # other inputs make a shorter list
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                known = sorted({*self.inputs, *(found if isinstance(found, dict) else ())})
                problem = "is neither an input nor in the result"
                remedy = suggest(name, known) or f"one of {', '.join(known)}"
                raise ConfigurationError(problem, field="columns", value=path, remedy=remedy)
        return found


class Statement(Block):
    """A sentence with its numbers."""

    claim: str
    """What the study said, or what was asked."""
    finding: str
    """What comes out, with dates and assumptions."""
    figures: dict[str, float]
    """The numbers in it, by name."""
