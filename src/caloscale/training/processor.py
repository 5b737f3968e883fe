"""How TensorFlow uses the processor: threads and oneDNN. Both are read once, when TensorFlow is loaded and begins."""

from __future__ import annotations

import sys
from collections.abc import Mapping, MutableMapping

from caloscale.errors import ConfigurationError
from caloscale.spec import Train


def processor_variables(train: Train) -> dict[str, str]:
    """Environment variables of TensorFlow for what the run configuration sets."""
    wanted = {
        "TF_NUM_INTEROP_THREADS": train.threads.inter,
        "TF_NUM_INTRAOP_THREADS": train.threads.intra,
        "TF_ENABLE_ONEDNN_OPTS": None if train.one_dnn is None else int(train.one_dnn),
    }
    return {name: str(value) for name, value in wanted.items() if value is not None}


def set_processor(
    train: Train, environment: MutableMapping[str, str], modules: Mapping[str, object] = sys.modules
) -> None:
    """Set the variables in ``environment``. Raises ConfigurationError when TensorFlow is loaded with others."""
    wanted = processor_variables(train)
    differing = {name: value for name, value in wanted.items() if environment.get(name) != value}
    if differing and "tensorflow" in modules:
        raise ConfigurationError(
            "are read when TensorFlow is loaded, and this process has loaded it",
            field="train.threads, train.oneDnn",
            value=differing,
            remedy="start `caloscale train` in a process of its own, or set these variables before",
        )
    environment.update(wanted)
