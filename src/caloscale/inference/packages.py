"""Packages of the extra `infer`, which may be absent."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from caloscale.errors import InputError


def load(package: str) -> Any:
    """Import a package of the extra `infer`. Raises InputError when it is not installed."""
    try:
        return import_module(package)
    except ImportError as error:
        raise InputError(
            f"cannot be imported: {error}",
            field=package,
            remedy="pip install 'caloscale[infer]', or use --runtime tensorflow",
        ) from error
