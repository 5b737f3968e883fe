"""Import of TensorFlow by programs: quiet, and without packages that nothing here uses."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any

_NEEDED_BY_KERAS_ALONE = ("matplotlib", "sklearn")
"""Keras imports them for its galleries of images and its wrappers, none of which is used here, and does without them
where they are not installed. They take a quarter of the processor time of TensorFlow's import."""


def load_tensorflow_quietly() -> None:
    """Import TensorFlow without its greeting, which goes to the standard error stream whatever its log level says, and
    without importing matplotlib and scikit-learn. Both can be imported afterwards.
    """
    if "tensorflow" in sys.modules:
        return
    modules: dict[str, Any] = sys.modules
    hidden = [name for name in _NEEDED_BY_KERAS_ALONE if name not in modules]
    stream, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    modules.update(dict.fromkeys(hidden))  # None: an import raises ModuleNotFoundError
    try:
        import_module("tensorflow")
    finally:
        for name in hidden:
            del modules[name]
        os.dup2(stream, 2)
        os.close(stream)
        os.close(nothing)
