"""What generated showers are worth, as frozen blocks: the content of amplification.json, in camelCase."""

from typing import Self

from caloscale.spec.block import Block

WORTH_OF = 1_000_000
"""Generated showers whose worth is stated, unless another number is asked for."""


def count(showers: float) -> str:
    """A number of showers as text; two digits below ten, where it may be a fraction of a shower."""
    return f"{showers:,.0f}" if showers >= 9.5 else f"{showers:.2g}"


class Number(Block):
    """A number of showers with its 95% interval."""

    value: float | None
    """The number; null where no systematic error is seen: then there is only the lower bound."""
    low: float
    """Lower end of the interval."""
    high: float | None
    """Upper end; null: no bound."""

    def __str__(self) -> str:
        if self.value is None:
            return f"at least {count(self.low)}"
        high = "no bound" if self.high is None else count(self.high)
        return f"{count(self.value)} ({count(self.low)} to {high})"


class Amplification(Block):
    """What generated showers are worth for one quantity."""

    quantity: str
    """Name of the quantity, as in `validation.gates`."""
    title: str
    """Its title."""
    where: str
    """The range of energy."""
    unit: str
    """Unit of `perShower`."""
    members: int
    """Number of generators."""
    per_shower: float
    """Standard deviation of the quantity for one Monte Carlo shower."""
    predicted: Number | None
    """Equivalent number from the scatter of the generators; null with one generator."""
    observed: Number
    """Equivalent number from the deviation of the generators from held-out Monte Carlo showers."""
    training: Number | None = None
    """Equivalent number of the training showers in the place of generated ones, for comparison; null: they were not
    compared."""
    worth: Number
    """Monte Carlo showers that `worthOf` generated ones are worth, by the deviation."""
    usd_per_effective_shower: float | None
    """Bill of the runs over `worth` (over its lower end where that is all there is); null: a run has no bill."""

    @property
    def name(self) -> str:
        """Title and range of energy."""
        return f"{self.title}, {self.where}" if self.where else self.title


class Worth(Block):
    """What the showers of generators that differ in the seed of the training alone are worth."""

    runs: tuple[str, ...]
    """Names of the runs."""
    source: str
    """Origin of the Monte Carlo showers: geant4, parametrised, generated or file."""
    reference: int
    """Held-out Monte Carlo showers that the generators are compared with."""
    generated: int
    """Showers of each generator that are compared."""
    worth_of: int
    """Generated showers whose worth is stated."""
    usd: float | None
    """Bills of all runs, USD; null: a run has none."""
    worst: Amplification | None
    """The quantity for which the generated showers are worth least, of those with a gate where there are any; null: the
    showers are too few for any number."""
    gated: tuple[Amplification, ...]
    """Quantities that have a gate."""
    others: tuple[Amplification, ...]
    """All others."""

    def of_runs(self, runs: tuple[str, ...], usd: float | None) -> Self:
        """The same with the names of the runs and what all of them cost, USD."""

        def price(one: Amplification) -> Amplification:
            each = None if usd is None else usd / (one.worth.value or one.worth.low)
            return one.model_copy(update={"usd_per_effective_shower": each})

        priced = {
            "worst": self.worst and price(self.worst),
            "gated": tuple(map(price, self.gated)),
            "others": tuple(map(price, self.others)),
        }
        return self.model_copy(update={"runs": runs, "usd": usd, **priced})


def equivalent(generated: float, limit: float) -> float:
    """n(N): Monte Carlo showers that N generated ones are worth, limit: n of any number of them."""
    return 1 / (1 / generated + 1 / limit) if limit > 0 else 0.0


def worth_of(limit: Number, generated: float) -> Number:
    """n(N) with its interval. N generated showers are never worth more than N."""
    return Number(
        value=None if limit.value is None else equivalent(generated, limit.value),
        low=equivalent(generated, limit.low),
        high=generated if limit.high is None else equivalent(generated, limit.high),
    )
