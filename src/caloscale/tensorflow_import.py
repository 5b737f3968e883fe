"""Import of TensorFlow by programs: quiet, and without packages that nothing here uses."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

KERAS_HOME = Path(__file__).with_name("keras_home")
"""Has the keras.json that Keras reads instead of the user's: float32, channels last, TensorFlow."""
OVERRIDDEN: list[str] = []
"""Variables of the user's environment that would choose another Keras or another arithmetic."""
_NEEDED_BY_KERAS_ALONE = ("matplotlib", "sklearn")
"""Keras imports them for its galleries of images and its wrappers, none of which is used here, and does without them
where they are not installed. They take a quarter of the processor time of TensorFlow's import."""


def set_environment() -> None:
    """Set what Keras reads when it is imported, here and in processes that this one starts.

    Raises ImportError when Keras was imported with another backend: it cannot change any more.
    """
    config = getattr(sys.modules.get("keras"), "config", None)
    if config is not None and (backend := config.backend()) != "tensorflow":
        raise ImportError(
            f"keras was imported with {backend} and cannot change to tensorflow: start Python again and import "
            "caloscale before keras"
        )
    variables = {"KERAS_BACKEND": "tensorflow", "KERAS_HOME": str(KERAS_HOME)}
    for name in ("KERAS_MAX_EPOCHS", "KERAS_MAX_STEPS_PER_EPOCH", "KERAS_NNX_ENABLED", "TF_USE_LEGACY_KERAS"):
        if os.environ.pop(name, None) is not None:
            OVERRIDDEN.append(name)
    OVERRIDDEN.extend(name for name, value in variables.items() if os.environ.get(name, value) != value)
    os.environ.update(variables)


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
