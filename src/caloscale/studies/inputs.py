"""The run configuration that the dotted inputs of a point describe."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from caloscale.errors import ConfigurationError
from caloscale.spec import Run, build_run


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
