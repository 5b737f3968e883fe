"""The inputs of a point as the block that a measure takes, or as the run configuration that dotted ones describe."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from caloscale.errors import ConfigurationError
from caloscale.spec import Run, build_run
from caloscale.spec.block import Block
from caloscale.spec.problem import list_problems

_B = TypeVar("_B", bound=Block)


def validated(block: type[_B], inputs: Mapping[str, Any]) -> _B:
    """The inputs as a block; raises ConfigurationError with field and remedy of the first problem."""
    try:
        return block.model_validate(inputs, by_alias=True, by_name=False)
    except ValidationError as problems:
        first = list_problems(problems, block)[0]
        raise ConfigurationError(first.text, field=first.field or None, remedy=first.remedy) from problems


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
                raise ConfigurationError(
                    f"is no block, but {name} is given, too", field=above, value=block, remedy=f"leave out {above}"
                )
        block[field] = copy.deepcopy(value)
    return raw
