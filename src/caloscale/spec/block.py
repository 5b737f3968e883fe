"""What every block of the run configuration has in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from caloscale.errors import InputError
from caloscale.spec.problem import list_problems


class Block(BaseModel):
    """A frozen block of the run configuration: camelCase in files, unknown keys refused."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        strict=False,
    )


_B = TypeVar("_B", bound=BaseModel)


def read_block(kind: type[_B], file: Path, *, remedy: str) -> _B:
    """What a JSON file that caloscale wrote holds.

    Raises InputError with file, field and value when it is damaged or cannot be read.
    """
    try:
        return kind.model_validate_json(_content(file, remedy))
    except ValidationError as problems:
        first = list_problems(problems, kind)[0]
        raise InputError(
            first.text,
            file=file,
            field=first.field or None,
            value=first.value if isinstance(first.value, str | int | float) else None,
            remedy=first.remedy if first.own_remedy else remedy,
        ) from None


def read_json(file: Path, *, remedy: str) -> Any:
    """What a JSON file holds that caloscale wrote only for people's pages and has no block for.

    Raises InputError when it is damaged or cannot be read.
    """
    try:
        return json.loads(_content(file, remedy))
    except ValueError as error:
        raise InputError(f"is not JSON: {error}", file=file, remedy=remedy) from None


def _content(file: Path, remedy: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=file, remedy=remedy) from error
