"""Keras 3 or tf_keras (Keras 2): chosen before TensorFlow is imported, as it cannot be changed afterwards.

Keras 3 cannot fit a model on several workers (keras issue 20585); tf_keras can. Everything else uses Keras 3.
This module imports neither.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
from collections.abc import Mapping, MutableMapping
from typing import Literal

from caloscale.errors import ConfigurationError
from caloscale.spec import Run

log = logging.getLogger(__name__)

VARIABLE = "TF_USE_LEGACY_KERAS"
"""TensorFlow reads it when it is imported."""


def choose_keras(
    run: Run, environment: MutableMapping[str, str], modules: Mapping[str, object] = sys.modules
) -> Literal["keras", "tf_keras"]:
    """Choose the Keras of a training; sets TF_USE_LEGACY_KERAS in ``environment``.

    Raises ConfigurationError when tf_keras is needed and TensorFlow is already loaded with Keras 3, or tf_keras is not
    installed.
    """
    needed = run.train.loop == "builtin" and run.train.strategy in ("auto", "multi-worker") and _several(environment)
    loaded = loaded_keras(modules)
    if loaded == "tf_keras" or (loaded is None and environment.get(VARIABLE) in ("1", "true", "True")):
        return "tf_keras"
    if not needed:
        return "keras"
    if loaded is not None:
        raise ConfigurationError(
            "several workers with Keras' own loop need tf_keras, but TensorFlow is loaded with Keras 3 already",
            field="train.loop",
            value=run.train.loop,
            remedy=f"start `caloscale train` in a process of its own, or with {VARIABLE}=1, or set train.loop: custom",
        )
    if importlib.util.find_spec("tf_keras") is None:
        raise ConfigurationError(
            "several workers with Keras' own loop need tf_keras, which is not installed",
            field="train.loop",
            value=run.train.loop,
            remedy="pip install --no-deps tf_keras (in TensorFlow's version), or set train.loop: custom",
        )
    environment[VARIABLE] = "1"
    log.warning("train.loop builtin on several workers: training with tf_keras, as Keras 3 cannot")
    return "tf_keras"


def loaded_keras(modules: Mapping[str, object]) -> Literal["keras", "tf_keras"] | None:
    """The Keras that TensorFlow was loaded with; None when it was not loaded."""
    if "tensorflow" not in modules:
        return None
    return "tf_keras" if "tf_keras" in modules else "keras"


def _several(environment: Mapping[str, str]) -> bool:
    try:
        return len(json.loads(environment.get("TF_CONFIG") or "{}")["cluster"]["worker"]) > 1
    except (ValueError, KeyError, TypeError):
        return False
