"""How TensorFlow uses the processor: threads and oneDNN. Both are read once, when TensorFlow is loaded and begins."""

import sys
from collections.abc import Mapping, MutableMapping

from caloscale.errors import ConfigurationError
from caloscale.models import family_of
from caloscale.processor import available_cores
from caloscale.spec import Run, Train

_INTRA = "TF_NUM_INTRAOP_THREADS"


def processor_variables(train: Train) -> dict[str, str]:
    """Environment variables of TensorFlow for what the run configuration sets."""
    settings = {
        "TF_NUM_INTEROP_THREADS": train.threads.inter,
        _INTRA: train.threads.intra,
        "TF_ENABLE_ONEDNN_OPTS": None if train.one_dnn is None else int(train.one_dnn),
    }
    return {name: str(value) for name, value in settings.items() if value is not None}


def set_processor(run: Run, environment: MutableMapping[str, str], modules: Mapping[str, object] = sys.modules) -> None:
    """Set the variables in ``environment``. Raises ConfigurationError when TensorFlow is loaded with others."""
    settings = processor_variables(run.train)
    differing = {name: value for name, value in settings.items() if environment.get(name) != value}
    if differing and "tensorflow" in modules:
        problem = "are read when TensorFlow is loaded, and this process has loaded it"
        remedy = "start `caloscale train` in another process, or set these variables before TensorFlow is loaded"
        raise ConfigurationError(problem, field="train.threads, train.oneDnn", value=differing, remedy=remedy)
    environment.update(settings)
    set_suitable_threads(run, environment)


def set_suitable_threads(run: Run, environment: MutableMapping[str, str], cores: int | None = None) -> None:
    """Set how many threads an operation has, where neither the run configuration nor the environment does.

    On two cores a network with short operations (`Family.short_operations`) computes two of them at the same time, with
    a thread each: threads that share one wait for each other. On more cores it was not measured. Without an effect once
    TensorFlow has begun. cores: absent: those that this process may use.
    """
    cores = len(available_cores()) if cores is None else cores
    if family_of(run.model).short_operations and cores == 2:
        environment.setdefault(_INTRA, "1")
