"""tf_keras (Keras 2): the one module that depends on it.

Only train.loop builtin on several workers needs it, as Keras 3 cannot fit a model there (keras issue 20585). TensorFlow
chooses between the two when it is imported, and cannot change afterwards; so this module does not import it.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Literal

from caloscale.errors import ConfigurationError
from caloscale.installation import install_command
from caloscale.spec import Run

if TYPE_CHECKING:
    import tensorflow as tf

log = logging.getLogger(__name__)

VARIABLE = "TF_USE_LEGACY_KERAS"
"""TensorFlow reads it when it is imported."""


def choose_keras(
    run: Run, environment: MutableMapping[str, str], modules: Mapping[str, object] = sys.modules
) -> Literal["keras", "tf_keras"]:
    """Choose the Keras of a training; sets TF_USE_LEGACY_KERAS in ``environment``.

    Raises ConfigurationError when tf_keras is needed and TensorFlow is already loaded with Keras 3, or it is not
    installed.
    """
    needed = run.train.loop == "builtin" and run.train.strategy in ("auto", "multi-worker") and _several(environment)
    loaded = loaded_keras(modules)
    if loaded == "tf_keras" or (loaded is None and environment.get(VARIABLE) in ("1", "true", "True")):
        return "tf_keras"
    if not needed:
        return "keras"
    problem = "Keras' own loop on several workers needs tf_keras"
    known = {"field": "train.loop", "value": run.train.loop}
    if loaded is not None:
        problem += ", but this process has loaded TensorFlow with Keras 3"
        remedy = "start `caloscale train` in a process of its own, or set train.loop: custom"
        raise ConfigurationError(problem, remedy=remedy, **known)
    if importlib.util.find_spec("tf_keras") is None:
        remedy = f"{install_command('tf-keras')} (with the extra cpu: pip install --no-deps tf_keras, in TensorFlow's "
        remedy += "version), or set train.loop: custom"
        raise ConfigurationError(f"{problem}, which is not installed", remedy=remedy, **known)
    environment[VARIABLE] = "1"
    log.warning("train.loop builtin on several workers: training with tf_keras, as Keras 3 cannot")
    return "tf_keras"


def is_active() -> bool:
    """Whether the Keras of this process is tf_keras. Loads TensorFlow."""
    import tensorflow as tf

    return str(tf.keras.Model.__module__).startswith("tf_keras")


def loaded_keras(modules: Mapping[str, object]) -> Literal["keras", "tf_keras"] | None:
    """The Keras that TensorFlow was loaded with; None when it was not loaded."""
    if "tensorflow" not in modules:
        return None
    return "tf_keras" if "tf_keras" in modules else "keras"


def without_synchronized_reads(layer: type[tf.keras.layers.Layer]) -> type[tf.keras.layers.Layer]:
    """The layer class ``layer`` of the loaded Keras, with weights that one worker alone can read.

    tf_keras' batch normalisation keeps variables that are averaged over all workers whenever they are read, so worker 0
    could not save them by itself. Keras 3 has none: there ``layer`` is returned as it is.
    """
    if not layer.__module__.startswith("tf_keras"):
        return layer

    def add_weight(self: tf.keras.layers.Layer, *args: object, **options: object) -> tf.Variable:
        options.pop("synchronization", None)
        options.pop("aggregation", None)
        return layer.add_weight(self, *args, **options)

    return type(f"Local{layer.__name__}", (layer,), {"add_weight": add_weight})


def _several(environment: Mapping[str, str]) -> bool:
    try:
        return len(json.loads(environment.get("TF_CONFIG") or "{}")["cluster"]["worker"]) > 1
    except (ValueError, KeyError, TypeError):
        return False
