"""Families of generators that are installed: the entry points of the group `caloscale.families`.

A package that declares ``[project.entry-points."caloscale.families"]`` in its pyproject.toml adds a family, by the name
that `model.family` then takes. The interface is `caloscale.models.families.family.Family`. TensorFlow is not loaded
here: the class of an entry point imports it in its methods only.
"""

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from caloscale.errors import ConfigurationError
from caloscale.spec.problem import suggest

GROUP = "caloscale.families"
OWN = ("compact", "fixed-angle", "flow", "variable-angle")
"""Families of this package, which are registered like any other."""

OPTIONAL_FIELDS = (
    "model.latentSize", "model.dropout", "model.filters", "model.binCounts", "train.discriminatorLearningRate",
    "train.generatorUpdates", "train.primaries", "train.ecalSumFit", "train.labelFlip", "train.lossWeights",
    "train.energyScoreWeight", "train.precision",
)  # fmt: skip
"""Fields of the run configuration that only some families use (`Family.fields`); the others refuse them."""


@functools.cache
def installed() -> dict[str, EntryPoint]:
    """Entry points by the name of the family. Raises ConfigurationError for a name that two packages give."""
    found: dict[str, EntryPoint] = {}
    for point in entry_points(group=GROUP):
        other = found.setdefault(point.name, point)
        if other.value != point.value:
            problem = f"is given by two packages: {other.value} and {point.value}"
            raise ConfigurationError(problem, field="model.family", value=point.name, remedy="uninstall one of them")
    return dict(sorted(found.items()))


@functools.cache
def find_family(name: str) -> Any:
    """The `Family` of a name. Raises ConfigurationError where it is not installed or cannot be loaded."""
    known = installed()
    if name not in known:
        others = f"one of: {', '.join(known)}; or install the package that has it, on every machine of the run"
        problem, remedy = "is not a family of generators that is installed here", suggest(name, known) or others
        raise ConfigurationError(problem, field="model.family", value=name, remedy=remedy)
    try:
        family = known[name].load()()
    except Exception as error:  # the package of a user may raise anything
        problem = f"cannot be loaded from {known[name].value}: {type(error).__name__}: {error}"
        remedy = "correct or reinstall the package that has it"
        raise ConfigurationError(problem, field="model.family", value=name, remedy=remedy) from error
    family.name = name
    return family
