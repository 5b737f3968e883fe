"""Machines at hand: how fast they train, generate and simulate, as measured, and what a run takes on them."""

import datetime as dt
import hashlib
import json
import math
import shlex
from collections.abc import Sequence
from functools import cache

from pydantic import Field

from caloscale.errors import InputError
from caloscale.planning.catalogue.hardware import Machine, find_machine
from caloscale.planning.catalogue.prices import SECONDS_PER_HOUR, CapacityType, Rate, node_rate, usd_of
from caloscale.planning.catalogue.rows import SourcedRow, builtin_rows
from caloscale.planning.search.candidates import Basis
from caloscale.spec import Data, Run, load_run
from caloscale.spec.block import Block

_TIMED = ("precision", "deterministic", "convolutions")
"""Fields of `train` that change the time of a step, in addition to the network and its updates."""
METHODS = GENERATOR, MONTE_CARLO = "generator", "Monte Carlo"


class MachineSpeed(SourcedRow):
    """How fast a machine at hand works, with all its processors and its GPU; empty speeds were not measured."""

    machine_type: str = Field(min_length=1)
    """Machine type of the catalogue that its seconds are priced as (``budget.pricedAs.machineType``)."""
    processor: str
    cores: int = Field(ge=1)
    network: str = Field(min_length=1)
    """`name_of_network` of the run."""
    cells: str = Field(pattern=r"^\d+x\d+x\d+$")
    """`cells_of` the showers."""
    detector: str = ""
    """`detector_of` the showers."""
    batch: int = Field(ge=1)
    """Showers of a training step."""
    trained_per_second: float | None = Field(default=None, gt=0)
    """Showers that are trained on per second of wall time, start-up not counted."""
    generated_per_second: float | None = Field(default=None, gt=0)
    """Showers that are generated per second of wall time."""
    simulated_per_second: float | None = Field(default=None, gt=0)
    """Showers of this detector that Geant4 simulates per second of wall time."""

    @property
    def key(self) -> tuple[str, str, str, str, str, int]:
        """Rows with the same key replace each other: the same source measured the same work again."""
        return self.source, self.machine_type, self.network, self.cells, self.detector, self.batch


class OwnTraining(Block):
    """The training of a run on a machine at hand."""

    machine_type: str
    """What its seconds are priced as."""
    processor: str
    epochs: float
    """Epochs that are trained: those of the run configuration, or as many as train.maxMinutes allows."""
    seconds: float
    """Steps of these epochs, s; start-up, test passes and the calibration of a flow are not in it."""
    usd: float | None
    """US dollars at the rate of the machine type; null: it has no price."""
    batch: int
    """Showers of the step that was measured."""
    meets_limits: bool
    """Whether it meets budget.maxUsd (unknown money does not) and budget.deadline."""
    source: str
    """Measurement that it rests on."""


class MakingOffer(Block):
    """Making a number of showers in one way on one kind of machine; nulls: not measured there, or without a price."""

    method: str
    machine_type: str
    showers_per_second: float | None = None
    """Showers per second of wall time on one machine."""
    machines: int | None = None
    """Machines that meet budget.deadline, one without a deadline."""
    hours: float | None = None
    """Hours with this number of machines."""
    usd: float | None = None
    """US dollars of all machines."""
    basis: str
    """Measurement that it rests on, or the command that makes one."""
    reference: bool = False
    """Not measured on machines at hand: the speed of the package's reference machine is taken for it."""


class Making(Block):
    """What it takes to make a number of showers of a detector."""

    showers: int
    region: str
    """Region of the prices."""
    capacity_type: CapacityType
    as_of: dt.date
    break_even_showers: int | None = None
    """From so many showers on the generator is cheaper, its training and the Monte Carlo that it needs included; null:
    never, or a price or speed is missing."""
    training_usd: float | None = None
    """The training of the plan, or on the reference machine where nothing is planned, US dollars."""
    training_reference: OwnTraining | None = None
    """The training on the reference machine, where no other is planned."""
    training_showers_usd: float | None = None
    """Monte Carlo showers for training and validation, US dollars; 0: the run configuration names finished ones."""
    offers: tuple[MakingOffer, ...]
    """By generator and by Monte Carlo on each machine; the cheapest first, those that were not measured last."""


def name_of_network(run: Run) -> str:
    """The preset or family, and six digits where other settings than the preset's change the time of a shower."""
    preset = _run_of_preset(run.model.preset)
    own, usual = (
        [one.model.model_dump(exclude={"preset", "family"}), one.train.generator_updates] for one in (run, preset)
    )
    own += [{name: value} for name in _TIMED if (value := getattr(run.train, name)) != getattr(preset.train, name)]
    if own == usual:
        return run.model.network
    return f"{run.model.network} {hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:6]}"


@cache
def _run_of_preset(preset: str) -> Run:
    return load_run(preset=preset)


def cells_of(data: Data) -> str:
    """Cells of a shower as the network sees it, such as 25x25x25."""
    return "x".join(map(str, data.shape))


def detector_of(data: Data) -> str:
    """Twelve digits that differ for another geometry or primary, other energies, angles, cuts or plates in front:
    Geant4 has another speed then."""
    described: tuple[object, ...] = (data.geometry, data.energy_gev, data.angle_deg, data.simulation.cut_mm)
    if data.particle != "e-":  # without what is usual: measurements that were made before stay known
        described += (data.particle,)
    if data.azimuth_deg or data.entry_mm:
        described += (data.azimuth_deg, data.entry_mm)
    if data.front or data.pair_distance_mm:
        described += (data.front, data.pair_distance_mm)
    return hashlib.sha256(repr(described).encode()).hexdigest()[:12]


def priced_machine(run: Run) -> Machine:
    """The machine type that measured seconds are priced as; raises InputError where the catalogue does not have it."""
    try:
        return find_machine(run.budget.priced_as.machine_type)
    except InputError as error:
        error.field = "budget.pricedAs.machineType"
        raise


def plan_training(basis: Basis, speeds: Sequence[MachineSpeed]) -> OwnTraining | None:
    """The training on the machine that ``budget.pricedAs`` names; None where it was not measured with this network and
    these cells. Of several measurements the one with the nearest batch counts, and of those the newest.
    """
    run, budget = basis.run, basis.run.budget
    batch = run.train.replica_batch(1)
    own = [s for s in _measured(run, speeds) if s.machine_type == budget.priced_as.machine_type]
    newest_first = sorted((s for s in own if s.trained_per_second), key=lambda s: s.observed_on, reverse=True)
    speed = min(newest_first, key=lambda s: abs(s.batch - batch), default=None)
    if speed is None or speed.trained_per_second is None or run.data.showers is None:
        return None
    epoch = run.data.showers / speed.trained_per_second
    most = math.inf if run.train.max_minutes is None else 60 * run.train.max_minutes
    seconds = min(run.train.epochs * epoch, most)
    rate = _rate(basis, speed.machine_type)
    usd = None if rate is None else usd_of(rate.usd_per_hour, seconds)
    return OwnTraining(
        **speed.values_of("machine_type", "processor", "batch", "source"),
        epochs=min(seconds / epoch, run.train.epochs),
        seconds=seconds,
        usd=usd,
        meets_limits=(budget.deadline_seconds is None or seconds <= budget.deadline_seconds)
        and (budget.max_usd is None or (usd is not None and usd <= budget.max_usd)),
    )


def plan_making(
    basis: Basis,
    showers: int,
    speeds: Sequence[MachineSpeed],
    *,
    rented: Sequence[str] = (),
    training_usd: float | None = None,
    is_planned: bool = False,
) -> Making:
    """What it takes to make ``showers`` showers by the generator and by Monte Carlo, on each measured machine.

    seconds = showers / speed, divided among as many machines as meet ``budget.deadline``; money does not depend on
    their number. Of several measurements of a machine the fastest counts; a machine without one is listed with the
    command that makes it. Where no machine was measured with a method, the package's reference speed counts, if there
    is one of these showers. ``rented``: other machine types to list. ``training_usd``: of the training that is planned,
    None where it has no price; that on the reference machine counts where none ``is_planned``.
    """
    run, priced = basis.run, basis.run.budget.priced_as
    measured, references = _measured(run, speeds), _measured(run, reference_speeds())
    offers = []
    for machine_type in dict.fromkeys([*(row.machine_type for row in measured), priced.machine_type, *rented]):
        rows = [row for row in measured if row.machine_type == machine_type]
        both = [_offer(basis, showers, method, machine_type, rows) for method in METHODS]
        offers += [o for o in both if o.showers_per_second or o.method == GENERATOR or machine_type not in rented]
    for method in METHODS:
        if any(o.method == method and o.showers_per_second for o in offers):
            continue
        for row in references:
            known = _offer(basis, showers, method, row.machine_type, [row])
            if known.showers_per_second:
                offers = [o for o in offers if (o.method, o.machine_type) != (method, row.machine_type)]
                offers.append(known.model_copy(update={"reference": True}))
    offers.sort(key=lambda o: (o.hours is None, o.usd is None, o.usd or 0, o.hours or 0, o.method != GENERATOR))
    reference = None if is_planned else plan_training(basis, references)
    training_usd = training_usd if reference is None else reference.usd
    needed_usd, break_even = _break_even(run, showers, offers, training_usd)
    return Making(
        showers=showers,
        region=priced.region,
        capacity_type=priced.capacity_type,
        as_of=basis.as_of,
        break_even_showers=break_even,
        training_usd=training_usd,
        training_reference=reference,
        training_showers_usd=needed_usd,
        offers=tuple(offers),
    )


def rates_used(basis: Basis, training: OwnTraining | None, making: Making | None) -> list[Rate]:
    """The rates of the dollars of a training on the machine at hand and of making showers, each once."""
    priced = [training, *(() if making is None else (making.training_reference, *making.offers))]
    types = dict.fromkeys(one.machine_type for one in priced if one is not None and one.usd is not None)
    rates = (_rate(basis, machine_type) for machine_type in types)
    return [rate for rate in rates if rate is not None]


@cache
def reference_speeds() -> tuple[MachineSpeed, ...]:
    """Speeds of the machine that the package was measured on, by preset; each row has date and command."""
    return builtin_rows("speeds.csv", MachineSpeed)


def _break_even(
    run: Run, showers: int, offers: Sequence[MakingOffer], training_usd: float | None
) -> tuple[float | None, int | None]:
    """Dollars of the Monte Carlo that the training needs, and the showers from which on the generator is cheaper. n
    showers cost n g + T + M m by the generator (g and m: of a shower; M: showers of Monte Carlo for training and
    validation) and n m by Monte Carlo: n = (T + M m) / (m - g)."""
    cheapest = [
        min((o.usd for o in offers if o.method == method and o.usd is not None), default=None) for method in METHODS
    ]
    if cheapest[0] is None or cheapest[1] is None:
        return None, None
    generated, simulated = (usd / showers for usd in cheapest if usd is not None)
    needed = 0.0
    if run.data.source == "simulate":
        needed = (run.data.showers or 0) / (1 - run.data.validation_fraction) * simulated
    if training_usd is None or simulated <= generated:
        return needed, None
    return needed, math.ceil((training_usd + needed) / (simulated - generated))


def _measured(run: Run, speeds: Sequence[MachineSpeed]) -> list[MachineSpeed]:
    """Measurements of this network on showers of these cells; with other settings of its training than the preset's the
    generator of the preset's training is as fast, with other settings of the network Geant4's speed alone counts."""
    usual = run.model_copy(update={"train": _run_of_preset(run.model.preset).train})
    name, of_usual, network, cells = name_of_network(run), name_of_network(usual), run.model.network, cells_of(run.data)

    def without_others(speed: MachineSpeed) -> MachineSpeed:
        if speed.network == name:
            return speed
        others = ["trained_per_second"] if speed.network == of_usual else ["trained_per_second", "generated_per_second"]
        return speed.model_copy(update=dict.fromkeys(others))

    return [without_others(s) for s in speeds if (s.network.split()[0], s.cells) == (network, cells)]


def _speed(run: Run, row: MachineSpeed, method: str) -> float | None:
    """Showers per second; Monte Carlo's is known of the same detector only."""
    if method == GENERATOR:
        return row.generated_per_second
    return row.simulated_per_second if row.detector == detector_of(run.data) else None


def _rate(basis: Basis, machine_type: str) -> Rate | None:
    """The rate of a machine type where ``budget.pricedAs`` is priced; None where there is none."""
    priced = basis.run.budget.priced_as
    try:
        return node_rate(basis.prices, find_machine(machine_type), priced.region, priced.capacity_type, basis.as_of)
    except InputError:
        return None


def _offer(basis: Basis, showers: int, method: str, machine_type: str, rows: Sequence[MachineSpeed]) -> MakingOffer:
    """Making showers on a machine type by its fastest measurement, or the command that measures it."""
    speeds = [(speed, f"{row.source}, {row.observed_on}") for row in rows if (speed := _speed(basis.run, row, method))]
    if not speeds:
        setting = shlex.quote(f"budget.pricedAs.machineType={machine_type}")
        command = f"caloscale plan ... --measure --set {setting}"
        extra = " (with the extra simulate)" if method == MONTE_CARLO else ""
        advice = f"not measured; on such a machine: {command}{extra}"
        return MakingOffer(method=method, machine_type=machine_type, basis=advice)
    speed, source = max(speeds)
    rate, deadline = _rate(basis, machine_type), basis.run.budget.deadline_seconds
    seconds = showers / speed
    machines = 1 if deadline is None else max(1, math.ceil(seconds / deadline))
    return MakingOffer(
        method=method,
        machine_type=machine_type,
        showers_per_second=speed,
        machines=machines,
        hours=seconds / machines / SECONDS_PER_HOUR,
        usd=None if rate is None else usd_of(rate.usd_per_hour, seconds),
        basis=source,
    )
