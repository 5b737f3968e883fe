"""The solution of an inverse problem: a configuration and a folder in; summary, bill, report and checkpoints out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from caloscale.errors import CaloscaleError, ConfigurationError, InputError
from caloscale.planning.bill import Bill, bill
from caloscale.planning.prices import load_prices, today
from caloscale.report.blocks import Notice
from caloscale.report.solution import solution_page
from caloscale.sagips.analysis import Residuals, residuals_over_time
from caloscale.sagips.launch import solve_with_ranks
from caloscale.sagips.saves import Progress, list_checkpoints, rank_folder, read_problem, read_record
from caloscale.spec import SolverRun, dump_run, load_solver_run
from caloscale.spec.block import Block
from caloscale.stages.record import read_earlier, read_records, recorded
from caloscale.stages.reporting import FOR_THE_BILL, NOTHING_RAN, OWN_MACHINE
from caloscale.stages.sequence import folder_name, point_latest_at
from caloscale.stages.usage import own_use
from caloscale.storage.atomic import atomic_writer, storage_error

MAY_DIFFER = ("max_minutes", "save_every", "threads")
"""Fields of the solver that a resumed run may change: what it computes does not depend on them."""


class ResidualSummary(Block):
    """Residuals (p - p^) / p of the normalised parameters at the end; empty where the truth is not known."""

    mean: tuple[float, ...]
    """Mean over the ranks' generators and the noise, a number for each parameter."""
    std: tuple[float, ...]
    """Standard deviation over the generators at equal noise, averaged over the noise."""


class SolverSummary(Block):
    """summary.json of a solver run."""

    ranks: int
    """Ranks."""
    exchange: str
    """How they averaged gradients."""
    groups: int
    """Groups of ranks that exchange in every epoch; with exchange none, each rank is one."""
    epochs: int
    """Epochs done."""
    seconds_per_epoch: float
    """Wall time of an epoch, s, without the first of an attempt and without saves; mean over the ranks."""
    exchange_seconds_per_epoch: float
    """Time that a rank spends in the exchange of an epoch, s; mean over the ranks."""
    analysis_rate: float
    """Events that all ranks analyse in a second: ranks x batch / secondsPerEpoch."""
    residuals: ResidualSummary
    """Distance from the truth."""
    stale: int
    """Gradients of an earlier epoch that were used, all ranks together."""
    dropped: int
    """Gradients that were not finite and left out of averages, all ranks together."""


def new_solver_folder(run: SolverRun, runs: Path, name: str | None = None) -> Path:
    """Make ``runs/<name>`` with run.yaml; without a name, preset and time are the name.

    Raises ConfigurationError for a name that is no folder name, or when the folder holds another run; StorageError.
    """
    name = folder_name(name, run.solver.preset)
    folder = runs / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_error(error, folder) from error
    file = folder / "run.yaml"
    if file.is_file():
        _refuse_other_run(run, load_solver_run(file), file)
    with atomic_writer(file) as temporary:
        temporary.write_text(dump_run(run), encoding="utf-8")
    return folder


def _refuse_other_run(run: SolverRun, kept: SolverRun, file: Path) -> None:
    wanted, held = run.solver.model_dump(mode="json"), kept.solver.model_dump(mode="json")
    for name, value in wanted.items():
        if name not in MAY_DIFFER and held[name] != value:
            alias = type(run.solver).model_fields[name].alias
            raise ConfigurationError(
                "this folder holds a run of another configuration",
                file=file,
                field=f"solver.{alias}",
                value=value,
                remedy="choose another --name, or the value in this file",
            )


def solve(run: SolverRun, folder: Path) -> SolverSummary:
    """Solve on all ranks, then write summary.json, bill.json, report.html and figures.

    An interrupted run resumes from the newest epoch that all ranks have saved. The report is written also when a rank
    fails, and the failure is raised then.
    """
    try:
        with recorded("solve", folder) as figures:
            solve_with_ranks(run, folder)
            summary, records = _summarise(run, folder)
            figures.update(summary.model_dump(mode="json", by_alias=True))
    except CaloscaleError as error:
        _report(run, folder, None, [], error)
        raise
    point_latest_at(folder)
    _write(folder / "summary.json", summary.model_dump_json(by_alias=True, indent=2))
    _report(run, folder, summary, records, None)
    return summary


def _summarise(run: SolverRun, folder: Path) -> tuple[SolverSummary, list[Progress]]:
    solver = run.solver
    records = [read_record(rank_folder(folder, rank)) for rank in range(solver.ranks)]
    last = _residuals(folder, solver.ranks)[-1:]
    seconds = float(np.mean([r.timed_seconds / max(r.timed_epochs, 1) for r in records]))
    exchange = float(np.mean([r.exchange_seconds / max(r.timed_epochs, 1) for r in records]))
    events = solver.ranks * solver.events_per_rank * len(solver.data_sets)
    summary = SolverSummary(
        ranks=solver.ranks,
        exchange=solver.exchange,
        groups=records[0].groups,
        epochs=min(record.epoch for record in records),
        seconds_per_epoch=seconds,
        exchange_seconds_per_epoch=exchange,
        analysis_rate=events / seconds if seconds else 0.0,
        residuals=ResidualSummary(
            mean=tuple(last[0].mean.tolist()) if last else (), std=tuple(last[0].spread.tolist()) if last else ()
        ),
        stale=sum(record.stale for record in records),
        dropped=sum(record.dropped for record in records),
    )
    return summary, records


def _residuals(folder: Path, ranks: int) -> list[Residuals]:
    problem = read_problem(folder)
    return [] if problem.truth is None else residuals_over_time(folder, problem.truth, ranks)


def _report(
    run: SolverRun,
    folder: Path,
    summary: SolverSummary | None,
    records: Sequence[Progress],
    error: CaloscaleError | None,
) -> None:
    """Bill and page. What a failed run has left is shown as far as it can be read."""
    money = _billed(run, folder)
    text = json.dumps({"noPrice": money}) if isinstance(money, str) else money.model_dump_json(by_alias=True, indent=2)
    _write(folder / "bill.json", text)
    over_time: list[Residuals] = []
    if list_checkpoints(folder):
        over_time = _residuals(folder, run.solver.ranks)
    notices = () if error is None else (Notice("This run failed.", failed=True, detail=str(error)),)
    _write(
        folder / "report.html",
        solution_page(
            run,
            folder,
            {} if summary is None else summary.model_dump(mode="json", by_alias=True),
            over_time,
            records,
            money,
            note=OWN_MACHINE,
            notices=notices,
        ),
    )


def _billed(run: SolverRun, folder: Path) -> Bill | str:
    """The bill of all attempts, or why there is none."""
    records = [record for stage, record in read_records(folder).items() if stage != "report"]
    use = own_use(folder.name, today(), run.budget.priced_as, records, read_earlier(folder))
    if use is None:
        return NOTHING_RAN
    try:
        return bill(use, load_prices(added=FOR_THE_BILL))
    except InputError as missing:
        return str(missing)


def _write(file: Path, text: str) -> None:
    with atomic_writer(file) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def print_solution(folder: Path) -> None:
    """Print the summary of a solver run and the path of its report."""
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    table = Table(title=f"run {folder.name}", title_justify="left", show_header=False)
    groups = f", {summary['groups']} groups" if summary["groups"] > 1 else ""
    table.add_row("ranks", f"{summary['ranks']}, exchange {summary['exchange']}{groups}")
    table.add_row("epochs", f"{summary['epochs']}, {1000 * summary['secondsPerEpoch']:.3g} ms each")
    table.add_row("exchange", f"{1000 * summary['exchangeSecondsPerEpoch']:.3g} ms of them, a rank")
    table.add_row("analysis rate", f"{summary['analysisRate']:.4g} events/s")
    if mean := summary["residuals"]["mean"]:
        parts = (f"{m:+.3f} ± {s:.3f}" for m, s in zip(mean, summary["residuals"]["std"]))
        table.add_row("residuals", "  ".join(parts))
        table.add_row("mean absolute residual", f"{np.abs(mean).mean():.4f}")
    if summary["stale"] or summary["dropped"]:
        table.add_row("gradients", f"{summary['stale']} stale, {summary['dropped']} dropped")
    Console().print(table)
    print(f"report: {folder / 'report.html'}")
