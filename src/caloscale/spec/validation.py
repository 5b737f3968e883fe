"""How a generator is compared with Monte Carlo, and what is required of it."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from caloscale.errors import InvalidValueError
from caloscale.spec.block import Block
from caloscale.spec.values import Seed32

Quantity = Literal[
    "response", "linearity", "resolution", "weightedResolution", "responseSpread", "showerMaximum", "depthSpread",
    "transverseWidth", "widthSpread", "hits", "hitsSpread", "diversity", "copying", "classifierAuc", "layerAuc",
    "longitudinalProfileSeparation", "transverseProfileXSeparation", "transverseProfileYSeparation",
    "showerMaximumSeparation", "ecalSumSeparation", "samplingFractionSeparation", "cellSpectrumSeparation",
    "hitsSeparation", "sparsitySeparation", "measuredAngleSeparation", "momentsLongitudinalSeparation",
    "momentsTransverseSeparation", "radius90Separation",
]  # fmt: skip
"""Differences of generated from Monte Carlo showers that a gate can limit. Their expectation does not depend on the
number of showers, that of an AUC excepted, whose gate states it. docs/physics.md defines them."""
AUCS = ("classifierAuc", "layerAuc")
"""Quantities that depend on the number of showers which a classifier is trained on."""

MINIMUM_GATES: tuple[Quantity, ...] = (
    "response", "responseSpread", "resolution", "weightedResolution", "showerMaximum", "depthSpread",
    "transverseWidth", "widthSpread", "hits", "hitsSpread", "cellSpectrumSeparation", "classifierAuc",
)  # fmt: skip
"""Quantities without whose gates no model is accepted: what an analysis of showers uses first, each with its
fluctuations."""


class Scale(NamedTuple):
    """Unit of a quantity, and the value that every generator reaches or that a generator of nothing has."""

    unit: str
    limit: float | None
    """A gate that allows this much could not fail; None: it depends on the run."""
    lowest: float = 0.0
    """A gate that allows no more than this could not be passed."""


def scale_of(quantity: str) -> Scale:
    """The scale of a quantity."""
    if quantity in (*AUCS, "copying"):
        return Scale("", 1.0, 0.5)
    if quantity.endswith("Separation"):
        return Scale("", 1.0)
    return Scale("layers", None) if quantity == "showerMaximum" else Scale("%", 100.0)


class Gate(Block):
    """The largest difference from Monte Carlo that is allowed in one quantity."""

    quantity: Quantity
    """The quantity that is limited. Its largest difference in the ranges of energy counts."""
    tolerance: float | None = Field(None, gt=0, allow_inf_nan=False)
    """Largest allowed difference: per cent; layers for showerMaximum; for a separation its excess over the value that
    is expected of equal distributions, 0 to 1; for copying its probability and for classifierAuc and layerAuc the AUC,
    0.5 to 1."""
    showers: int | None = Field(None, ge=100)
    """classifierAuc and layerAuc only: showers of each kind that the classifier is trained on; an AUC rises with
    them."""
    drop: bool = False
    """True: the preset's gate on this quantity does not count. Give no tolerance then."""

    @property
    def name(self) -> str:
        """The quantity, of an AUC with its number of training showers."""
        return self.quantity if self.showers is None else f"{self.quantity} ({self.showers} training showers)"

    @property
    def limit(self) -> float:
        """The tolerance of a gate that is not dropped."""
        assert self.tolerance is not None
        return self.tolerance

    @model_validator(mode="after")
    def _check_that_it_decides(self) -> Self:
        if self.drop != (self.tolerance is None):
            fault = "that is dropped has a tolerance" if self.drop else "without a tolerance"
            remedy = "give either `tolerance`, or `drop: true` to drop the preset's gate"
            raise InvalidValueError(f"a gate on {self.quantity} {fault}", remedy=remedy)
        if (self.showers is not None) != (self.quantity in AUCS):
            problem = "an AUC depends on the number of showers that the classifier is trained on, others do not"
            remedy = f"give `showers` with {' and '.join(AUCS)}, such as 1000, and with no other quantity"
            raise InvalidValueError(problem, remedy=remedy)
        if self.tolerance is None:
            return self
        unit, limit, lowest = scale_of(self.quantity)
        if limit is not None and self.tolerance >= limit:
            problem = f"a gate with tolerance {self.tolerance:g} could not fail: {self.quantity} of a generator that "
            problem += f"makes nothing right is {limit:g}{f' {unit}' if unit else ''}"
            raise InvalidValueError(problem, remedy=f"set a tolerance below {limit:g}")
        if self.tolerance <= lowest:
            problem = f"a gate with tolerance {self.tolerance:g} could not be passed: {self.quantity} of Monte Carlo "
            problem += f"itself is {lowest:g}"
            raise InvalidValueError(problem, remedy=f"set a tolerance above {lowest:g}")
        return self


def merge_gates(below: Any, above: Any) -> Any:
    """The gates of a list over those of another, by quantity and, of the AUC, `showers`: raw values as in a file.

    Those of ``above`` come first. The parser refuses anything but a list of gates.
    """
    if not isinstance(below, Sequence) or not isinstance(above, Sequence) or not above or isinstance(above, str):
        return above
    replaced = [_key(gate) for gate in above]
    return [*above, *(gate for gate in below if _key(gate) not in replaced)]


def _key(gate: Any) -> Any:
    """What two gates must not have in common: (quantity, showers)."""
    return (gate.get("quantity"), gate.get("showers")) if isinstance(gate, Mapping) else None


class Validation(Block):
    """Comparison of generated showers with held-out Monte Carlo showers."""

    showers: int | None = Field(None, ge=1, le=10**8)
    """Showers that are generated for the comparison. Absent: 10,000, but no more than 1 GiB of cells (4,128
    of 51x51x25 cells)."""
    reference_showers: int = Field(10_000, ge=1)
    """Held-out Monte Carlo showers that they are compared with, at most, drawn at random from all. They are held in
    memory: 4 bytes a cell, so 2.6 GB for 10,000 of 51x51x25 cells."""
    energy_bins: int = Field(3, ge=1, le=20)
    """Ranges of primary energy, of equal width, in which observables are compared."""
    bootstraps: int = Field(200, ge=10, le=10**6)
    """Resamplings for each statistical uncertainty."""
    seed: Seed32 = 1
    """Seed of the generated showers, their primaries, the halves and the resamplings."""
    hits_threshold_gev: float = Field(3e-4, gt=0)
    """A cell with more deposited energy than this is a hit, GeV (published: 3e-4, about two minimum-ionising
    particles in 0.5 mm of silicon, whatever the size of the cell)."""
    gates: tuple[Gate, ...] = ()
    """Requirements, over those of the preset: a gate replaces the preset's gate on the same quantity (of an AUC with
    the same number of showers), one with `drop: true` drops it. The model is rejected if a gate is not met
    beyond statistical doubt, accepted if all are met, and not assessed while a quantity of the minimum set
    (docs/physics.md) has no gate."""

    @property
    def judging(self) -> tuple[Gate, ...]:
        """The gates that decide."""
        return tuple(gate for gate in self.gates if not gate.drop)

    @property
    def dropped(self) -> tuple[Gate, ...]:
        """The preset's gates that are dropped."""
        return tuple(gate for gate in self.gates if gate.drop)

    @model_validator(mode="after")
    def _check_that_gates_differ(self) -> Self:
        names = [gate.name for gate in self.gates]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidValueError(f"two gates on {', '.join(twice)}", remedy="keep the stricter one")
        return self
