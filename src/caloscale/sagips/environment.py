"""What an inverse problem is: a pipeline of modules from parameters to events."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

import tensorflow as tf

from caloscale.errors import ConfigurationError
from caloscale.random import EventDraws

Values = dict[str, tf.Tensor]
"""Tensors by name, as they pass through a pipeline."""
PARAMETERS, EVENTS, NORMS = "parameters", "events", "norms"
"""Names that the solver reads and writes: normalised parameters (samples, parameters) in (0, 1), events (samples,
events, observables), and, where a pipeline has them, norms (samples, norms), which a loss may add
(`solver.normTerms`)."""


class Module(Protocol):
    """A differentiable part of a pipeline."""

    def __call__(self, values: Values, draws: EventDraws) -> Values:
        """The tensors that it adds or replaces, computed from those before it.

        draws: random numbers; a row of a draw belongs to a row of the parameters.
        """
        ...


class Environment(Module, Protocol):
    """A pipeline from `PARAMETERS` to `EVENTS`.

    It is constructed with events_per_sample, the events to make from each parameter vector, and the options of its data
    set.
    """

    parameters: Sequence[str]
    """Names of the parameters."""
    observables: Sequence[str]
    """Names of the columns of the events."""
    truth: Sequence[float] | None
    """True parameters, normalised; None where they are not known."""


class Chain:
    """Modules one after the other."""

    def __init__(self, *modules: Module) -> None:
        self.modules = modules

    def __call__(self, values: Values, draws: EventDraws) -> Values:
        """All tensors: the given ones and those of the modules."""
        for module in self.modules:
            values = {**values, **module(values, draws)}
        return values


def load_class(name: str, field: str) -> Any:
    """The class of a name such as ``mypackage.detector.Smeared``. Raises ConfigurationError naming the field."""
    path, _, attribute = name.rpartition(".")
    try:
        module = import_module(path)
        if hasattr(module, attribute):
            return getattr(module, attribute)
    except ImportError as error:
        remedy = "install the package on all ranks, or add its folder to PYTHONPATH"
        raise ConfigurationError(f"cannot be imported: {error}", field=field, value=name, remedy=remedy) from error
    problem = f"the module {path} has no class {attribute}"
    remedy = "write the module and the class as package.module.Class"
    raise ConfigurationError(problem, field=field, value=name, remedy=remedy)


def make_environment(name: str, options: dict[str, Any], events_per_sample: int, field: str) -> Environment:
    """An environment of a run configuration. Raises ConfigurationError for options or a truth that cannot be."""
    kind = load_class(name, field)
    try:
        environment: Environment = kind(events_per_sample=events_per_sample, **options)
    except TypeError as error:
        problem = f"cannot be constructed with these options: {error}"
        remedy = "write the options that its constructor takes in addition to events_per_sample"
        raise ConfigurationError(problem, field=field, value=name, remedy=remedy) from error
    missing = [a for a in ("parameters", "observables", "truth") if not hasattr(environment, a)]
    if missing or not callable(environment):
        problem = f"is not an environment: it has no {', '.join(missing) or '__call__'}"
        remedy = "see caloscale.sagips.environment.Environment"
        raise ConfigurationError(problem, field=field, value=name, remedy=remedy)
    truth, parameters = environment.truth, environment.parameters
    if truth is not None and (len(truth) != len(parameters) or not all(0 < value < 1 for value in truth)):
        problem = f"its truth {tuple(truth)} is not one number between 0 and 1 for each of {', '.join(parameters)}"
        remedy = "normalise the true parameters: proposals are between 0 and 1"
        raise ConfigurationError(problem, field=field, value=name, remedy=remedy)
    return environment
