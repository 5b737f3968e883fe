"""Packages of the extra `infer`, which may be absent."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any

from caloscale.errors import InputError
from caloscale.installation import install_command


def load(package: str) -> Any:
    """Import a package of the extra `infer`. Raises InputError when it is not installed."""
    if package == "nncf":
        os.environ.setdefault("NNCF_CI", "1")  # otherwise it reports its use over the network
    try:
        return import_module(package)
    except ImportError as error:
        raise InputError(
            f"cannot be imported: {error}",
            field=package,
            remedy=f"{install_command('infer')}; generate does without it with --runtime tensorflow",
        ) from error


def openvino_core() -> Any:
    """OpenVINO, loaded once for the process; raises as `load`.

    Its CPU plugin gives the thread a stack of its own for signals, and puts the one before back when it goes away. Of
    two plugins that go in the order they came, the second puts back what the first has unmapped, and the next signal
    kills the process.
    """
    return _core(load("openvino"))


@cache
def _core(openvino: Any) -> Any:
    return openvino.Core()
