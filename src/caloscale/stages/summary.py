"""summary.json: the figures of a run that scripts read. Its schema is docs/schema/summary.schema.json."""

from typing import Literal

from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel

from caloscale.physics.result import GateResult, ObservableSummary
from caloscale.physics.worth import Worth
from caloscale.planning.billing.bill import Bill
from caloscale.report.blocks import Fact
from caloscale.report.run import StageSummary
from caloscale.simulation.record import SimulationSummary
from caloscale.spec.block import Block
from caloscale.spec.data import Particles
from caloscale.training.record import TrainSummary


class DataSummary(Block):
    """The showers that were trained on."""

    source: Literal["geant4", "parametrised", "generated", "file"]
    """Where the showers came from: geant4, parametrised, generated, or file (own data whose origin is not stated)."""
    particle: Particles = "e-"
    """The primary."""
    showers: int
    """Training showers."""
    validation_showers: int
    """Showers held out for validation."""


class GenerateSummary(Block):
    """The generator at work."""

    showers_per_second: float
    """Showers generated per second of wall time on this machine."""
    speedup_over_geant4: float | None
    """Generated over simulated showers per second, same machine, all cores each; null when no Geant4
    simulation was measured there (own data, parametrised showers, showers of a cache from another machine)."""


class PhysicsSummary(Block):
    """Physics: one entry per observable, and the figures of the whole."""

    model_config = ConfigDict(extra="allow", alias_generator=to_camel, validate_by_name=True, frozen=True)
    __pydantic_extra__: dict[str, ObservableSummary]

    classifier_auc: float | None
    """Area under the ROC curve of a classifier of generated against Monte Carlo showers; 0.5 is perfect. It rises with
    `classifierShowers`: compare runs at equal numbers."""
    classifier_showers: int | None = None
    """Training showers of each kind of the classifier."""
    linearity_deviation: float | None
    """Largest deviation of the generated mean ECAL sum from a straight line in energy, relative."""
    resolution_deviation: float | None
    """Mean over energy ranges of |sigma/E generated over Monte Carlo - 1|."""
    resolution_improvement_sigmas: float | None
    """Improvement over the baseline (which has no fluctuations): how much nearer the generator's resolution is, in
    standard deviations of a bootstrap."""
    shower_maximum_difference_layers: float | None
    """Largest difference of the shower maximum (fitted to the mean profile) from Monte Carlo over the energy ranges, in
    layers."""
    decision: Literal["accepted", "rejected", "undecided", "not assessed"]
    """On the model: accepted when all gates are met, rejected when one is not, undecided when the showers are too few
    to decide, not assessed when a quantity of the minimum set has no gate. Only an accepted model is released."""
    gates: tuple[GateResult, ...] = ()
    """Each gate with its result."""
    reasons: tuple[str, ...] = ()
    """Why the model is rejected, or the decision open."""
    dropped: tuple[str, ...] = ()
    """Quantities whose gate of the preset the run configuration drops."""
    ungated: tuple[str, ...] = ()
    """Quantities that are measured and have no gate."""
    warnings: tuple[str, ...] = ()
    """Whether the generator is worse than the untrained network or than the mean shower, was trained on other shards
    than those with the held-out showers, began with a model that may have seen these, or was compared at other
    primaries than theirs."""


class Summary(Block):
    """What a run did; blocks of stages that did not get that far are null."""

    run: str = Field(description="Name of the run.")
    outcome: Literal["succeeded", "failed"]
    """failed when a stage failed; `error` states why."""
    error: str | None = None
    """Why the run failed."""
    data: DataSummary | None = None
    """The showers."""
    simulation: SimulationSummary | None = None
    """The Monte Carlo."""
    train: TrainSummary | None = None
    """The training."""
    generate: GenerateSummary | None = None
    """The generator."""
    physics: PhysicsSummary | None = None
    """The physics."""
    amplification: Worth | None = None
    """What generated showers are worth in Monte Carlo showers, by the validation, or by a later `caloscale
    amplification`; null: nothing was validated."""
    stages: dict[str, StageSummary]
    """The stages that ran."""
    bill: Bill | None
    """What the run cost, on rented machines or priced as `budget.pricedAs`; null: see `noPrice`."""
    no_price: str | None = None
    """Why there is no bill, with what can be done."""


def speeds(summary: Summary) -> list[Fact]:
    """The measured speeds, for the report and the terminal."""
    facts = []
    if simulation := summary.simulation:
        reused = ", from the cache" if simulation.reused else ""
        detail = f"{simulation.core_seconds_per_shower:.3g} core seconds per shower{reused}"
        facts.append(Fact("simulation", f"{simulation.showers_per_second:.3g} showers/s", detail))
    if train := summary.train:
        ended = "; ended by train.maxMinutes" if train.stopped == "maxMinutes" else ""
        detail = f"{train.steps} steps, {train.epochs} epochs{ended}"
        facts.append(Fact("training", f"{train.showers_per_second:.3g} showers/s", detail))
    if generate := summary.generate:
        facts.append(Fact("generation", f"{generate.showers_per_second:.4g} showers/s"))
        if generate.speedup_over_geant4:
            detail = "generated over simulated showers per second, all cores of this machine"
            facts.append(Fact("speed-up over Geant4", f"{generate.speedup_over_geant4:.3g} times", detail))
    return facts
