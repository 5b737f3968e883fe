"""The plan before a run, and what a run leaves for its bill and for later plans."""

import datetime as dt
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import platformdirs

from caloscale.cluster.names import CPU
from caloscale.errors import InputError
from caloscale.planning.billing.bill import Bill, bill, rates_of_use
from caloscale.planning.billing.calibration import Calibration, calibrate
from caloscale.planning.billing.usage import RunUse, measurement_of
from caloscale.planning.catalogue.hardware import find_machine
from caloscale.planning.catalogue.measurements import Measurement, load_measurements
from caloscale.planning.catalogue.prices import Prices, load_prices, node_rate, today
from caloscale.planning.catalogue.rows import read_rows, rows_csv
from caloscale.planning.search.own_machine import MachineSpeed, cells_of, detector_of, name_of_network
from caloscale.planning.search.plan import Plan
from caloscale.planning.search.plan import plan as make_plan
from caloscale.report.blocks import markdown
from caloscale.report.plan import plan_blocks
from caloscale.spec import Run, load_any_run, load_run
from caloscale.spec.block import read_block
from caloscale.spec.workspace_layout import PLAN_FILE, USAGE_FILE
from caloscale.stages.record import StageRecord, read_earlier, read_records
from caloscale.stages.usage import node_as, own_use
from caloscale.stages.workspace import keep_configuration, named, open_workspace, refuse_another
from caloscale.storage.atomic import write_text
from caloscale.storage.lock import one_at_a_time

IN_THE_CONFIGURATION = "to the catalogue, or choose another budget.pricedAs"
"""Where a missing price is added if the command takes no file of prices."""
NO_HARDWARE = (
    "The run configuration has no `hardware` block: the run trains where this step runs, and there is nothing to plan. "
    "With `hardware: {}` the planner chooses machines.\n"
)
ON_PROCESSORS = (
    "The run trains on the processors of a cluster. Training on processors was not measured: there is no estimate of "
    "time and money.\n"
)


def plan(run: Run, workspace: str | Path) -> str:
    """The plan of a run as Markdown, kept in its folder for the bill, or why there is none. Raises as `plan_of`."""
    with open_workspace(workspace, shared=True) as folder:
        refuse_another(run, folder)
        planned = plan_of(run)
        keep_configuration(run, folder)
        if planned is None:
            (folder / PLAN_FILE).unlink(missing_ok=True)
            return NO_HARDWARE if run.hardware is None else ON_PROCESSORS
        write_text(folder / PLAN_FILE, planned.as_json())
        return markdown(*plan_blocks(planned))


def plan_of(run: Run) -> Plan | None:
    """The plan of a run at today's prices; None without hardware, and on processors, which were not measured.

    Raises ConfigurationError, InputError and PriceError for machines that do not exist or have no price.
    """
    need_price(run, today())
    if run.hardware is None or run.hardware.accelerator == CPU:
        return None
    return make_plan(run, load_prices(), load_measurements(), today())


def need_price(run: Run, day: dt.date) -> None:
    """Raise InputError when budget.pricedAs has no price on a day: the run would end without a bill."""
    priced = run.budget.priced_as
    try:
        machine = find_machine(priced.machine_type)
        node_rate(load_prices(added=IN_THE_CONFIGURATION), machine, priced.region, priced.capacity_type, day)
    except InputError as missing:
        asked = f"{priced.machine_type}, {priced.region}, {priced.capacity_type}"
        raise InputError(missing.problem, field="budget.pricedAs", value=asked, remedy=missing.remedy) from None


def read_plan(folder: Path) -> Plan | None:
    """The plan in a run's folder; None where there is none. Raises InputError when it is damaged."""
    path = folder / PLAN_FILE
    if not path.is_file():
        return None
    return read_block(Plan, path, remedy="delete it, or make it with caloscale plan FILE --json")


def read_use(path: Path) -> RunUse:
    """What a run used, from its folder or the file itself. Raises InputError: there is none, or it is nonsense."""
    file = path / USAGE_FILE if path.is_dir() else path
    if not file.is_file():
        remedy = f"give the folder of a run (caloscale report writes {USAGE_FILE} there), or such a file"
        raise InputError(f"holds no {USAGE_FILE}" if path.is_dir() else "does not exist", file=path, remedy=remedy)
    return read_block(RunUse, file, remedy="see docs/bill.md for what a usage file holds")


def bill_of(folder: Path, prices: Prices | None = None) -> Bill:
    """The bill of a run, compared with its plan where the folder has one. prices: absent: the catalogue's.

    That of a run on a machine at hand has the stages since its report, too.
    """
    use, prices = read_use(folder), prices or load_prices()
    where = folder if folder.is_dir() else folder.parent
    if use.own_machine and where == folder and (configuration := folder / "run.yaml").is_file():
        with suppress(InputError):  # of a damaged record, which is no reason to have no bill
            use = own_use(named(folder), load_any_run(configuration).budget.priced_as) or use
    return bill(use, prices, plan=read_plan(where), **_speeds(where, use, prices))


def _speeds(folder: Path, use: RunUse, prices: Prices) -> dict[str, Any]:
    """Speeds of generator and Monte Carlo, each on the machine that it is priced as, where that is known; and showers
    that came from the cache. Measured at hand: on `budget.pricedAs`. Measured by workers: the generator's on a node of
    the run, if all are alike; the Monte Carlo's, which needs no GPU, is converted to as many processors as
    `budget.pricedAs` has."""
    one = {"nodes": 1, "seconds": 0.0, "control_plane_seconds": 0.0}
    nodes = {node.model_copy(update=one) for attempt in use.attempts for node in attempt.nodes}
    configuration, own = folder / "run.yaml", use.own_machine
    if not configuration.is_file() or (len(nodes) != 1 and not own):
        return {}
    priced, node = load_any_run(configuration).budget.priced_as, nodes.pop()
    records: dict[str, StageRecord] = {}
    earlier: list[StageRecord] = []
    with suppress(InputError):  # a record that cannot be read is no reason to have no bill
        records = {
            stage: record
            for stage, record in read_records(folder).items()
            if record.outcome == "succeeded" and (own or record.attempt) and record.figures.get("showersPerSecond")
            if record.figures.get("source") != "parametrised"  # no Monte Carlo
        }
        earlier = [record for attempt in read_earlier(folder) for record in attempt.stages]
    generated, simulated = records.get("validate"), records.get("simulate")
    known: dict[str, Any] = {}
    if generated is not None and (own or node.topology is None):
        known["generation"] = (node_as(priced) if own else node, generated.figures["showersPerSecond"])
    if simulated is not None:
        figures, cores = simulated.figures, simulated.machine.cores
        with nullcontext() if own else suppress(InputError):  # rented nodes are billed without a price of this machine
            rates_of_use(node_as(priced), prices, use.day)
            processors = 1.0 if own else find_machine(priced.machine_type).vcpus / cores
            if simulated.machine.has_simulated(figures):
                known["monte_carlo"] = (node_as(priced), rate_on(cores, figures) * processors)
        billed = any(record.stage == "simulate" and not record.figures.get("reused") for record in earlier)
        known["reused_showers"] = figures["showers"] if figures.get("reused") and not billed else 0
    return known


def rate_on(cores: int, figures: Mapping[str, Any]) -> float:
    """Showers per second of a stage on all of these cores, by its figures; a simulation may have had fewer processes,
    as `data.simulation.processes` or the number of files limits them."""
    rate: float = figures["showersPerSecond"] * cores / min(figures.get("processes", cores), cores)
    return rate


def speeds_file() -> Path:
    """Where the speeds of machines at hand are kept: a CSV in the user's data folder."""
    return Path(platformdirs.user_data_dir("caloscale")) / "machines.csv"


def load_speeds(file: Path | None = None) -> tuple[MachineSpeed, ...]:
    """The measured machines at hand; raises InputError for a file that is nonsense, or that was named and is absent."""
    path = file or speeds_file()
    if file is None and not path.exists():
        return ()
    return tuple(row for _, row in read_rows(path, MachineSpeed, InputError))


def keep_speeds(new: Sequence[MachineSpeed], file: Path | None = None) -> Path:
    """Add measurements to the file of machines at hand; returns its path."""
    path = file or speeds_file()
    keys = {row.key for row in new}
    with one_at_a_time(path.parent):
        held = load_speeds(path) if path.exists() else ()
        rows = [*(row for row in held if row.key not in keys), *new]
        write_text(path, rows_csv(MachineSpeed, rows))
    return path


def calibrate_runs(
    runs: Sequence[Path], file: Path | None, measurements: Sequence[str | Path] = (), *, speeds: Path | None = None
) -> Calibration:
    """Add what runs measured to the files that plans read: those on rented machines to ``file``, those on machines at
    hand to ``speeds`` (absent: `speeds_file`). The rows of other runs stay. Raises InputError for files that are
    nonsense, and for one that would not be written; nothing is written then.
    """
    uses = {path: read_use(path) for path in runs}
    names = [use.name for use in uses.values()]
    if len(set(names)) != len(runs):
        raise InputError("two runs have the same name", value=names, remedy="give each run once, under its own name")
    own = [local_speed(path if path.is_dir() else path.parent, use) for path, use in uses.items() if use.own_machine]
    rented = [use for use in uses.values() if not use.own_machine]
    options = ("--output", file, rented, "rented machines"), ("--speeds", speeds, own, "machines at hand")
    for option, given, there, kind in options:
        if given is not None and not there:
            problem = f"would not be written: it is for runs on {kind}, and none of these is"
            raise InputError(problem, field=option, value=str(given), remedy="leave it out")
    if own and (kept := speeds or speeds_file()).exists():
        load_speeds(kept)
    calibration = Calibration()
    if rented:
        if file is None:
            remedy = "name a CSV, such as -o mine.csv"
            raise InputError("is needed for runs on rented machines", field="--output", remedy=remedy)
        new = {(f"run {use.name}", use.day) for use in rented}  # a run of another day is another one
        with one_at_a_time(file.parent):
            held = [row for _, row in read_rows(file, Measurement, InputError)] if file.exists() else []
            others = [row for row in held if (row.source, row.observed_on) not in new]
            known = dict.fromkeys((*load_measurements(measurements), *others))
            calibration = calibrate(rented, [row for row in known if (row.source, row.observed_on) not in new])
            rows = [row for row in map(measurement_of, rented) if row is not None]
            write_text(file, rows_csv(Measurement, [*others, *rows]))
    if own:
        keep_speeds(own, speeds)
    return calibration.model_copy(update={"own_machines": tuple(own)})


def local_speed(folder: Path, use: RunUse) -> MachineSpeed:
    """The speeds that a run on a machine at hand measured, all stages on that of its training; Geant4 showers that came
    from the cache are no measurement of it. Raises InputError when its training did not succeed.
    """
    records = {stage: record for stage, record in read_records(folder).items() if record.outcome == "succeeded"}
    attempts = [*(one for attempt in read_earlier(folder) for one in attempt.stages), *records.values()]
    trainings = [one for one in attempts if one.stage == "train"]
    made = [one for one in trainings if one.figures.get("steps") != one.figures.get("resumedFromStep")]
    if made and "train" in records:
        records["train"] = made[-1]  # a later one made no step, perhaps on another machine
    trained = records.get("train")
    file = folder / "run.yaml"
    if trained is None or not trained.figures.get("showersPerSecond") or not file.is_file():
        remedy = "give the folder of a run whose training succeeded"
        raise InputError("measured no training", file=folder, remedy=remedy)
    run = load_run(file)

    def speed(stage: str) -> float | None:
        record = records.get(stage)
        if record is None or record.machine != trained.machine or not record.figures.get("showersPerSecond"):
            return None
        return rate_on(record.machine.cores, record.figures)

    simulated = records.get("simulate")
    fresh = simulated is not None and simulated.figures.get("source") == "geant4" and not simulated.figures["reused"]
    return MachineSpeed(
        machine_type=run.budget.priced_as.machine_type,
        processor=trained.machine.processor,
        cores=trained.machine.cores,
        network=name_of_network(run),
        cells=cells_of(run.data),
        detector=detector_of(run.data),
        batch=trained.figures.get("globalBatchSize", run.train.replica_batch(1)),
        trained_per_second=speed("train"),
        generated_per_second=speed("validate"),
        simulated_per_second=speed("simulate") if fresh else None,
        source=f"run {use.name}",
        observed_on=trained.started.date(),
    )
