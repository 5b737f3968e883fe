"""The solution of an inverse problem: a configuration and a folder in; summary, bill, report and checkpoints out."""

import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import CaloscaleError, InputError
from caloscale.report.bill import bill_markdown
from caloscale.report.blocks import Notice, markdown
from caloscale.report.solution import residual_table, solution_facts, solution_page
from caloscale.sagips.ensemble import parameters_of, residuals_over_time
from caloscale.sagips.launch import Progressed, solve_with_ranks
from caloscale.sagips.saves import (
    CHECKPOINTS,
    common_epoch,
    list_checkpoints,
    mean_per_epoch,
    rank_folder,
    read_problem,
    read_record,
    saved_epochs,
)
from caloscale.spec import Run, SolverRun
from caloscale.spec.block import Block, read_json
from caloscale.spec.workspace_layout import USAGE_FILE
from caloscale.stages import reporting
from caloscale.stages.record import FAILURE, StageRecord, finished, known_failure, read_records, recorded
from caloscale.stages.sequence import folder_name, print_rows
from caloscale.stages.workspace import hold, keep_configuration, open_workspace, refuse_another
from caloscale.storage.atomic import make_folder, write_text
from caloscale.training.progress_file import ProgressFile

SUMMARY_FILE = "summary.json"
ON_A_CLUSTER = "its nodes are counted by the TrainingRun: caloscale status shows their cost, caloscale fetch the usage"
"""Why a run on a cluster has no bill before it is fetched: the launcher knows neither machines nor attempts."""


class ResidualSummary(Block):
    """Residuals (p - p^) / p of the normalised parameters at the end; empty where the truth is not known."""

    mean: tuple[float, ...]
    """Mean over the ranks' generators and the noise, a number for each parameter."""
    std: tuple[float, ...] | None
    """Standard deviation over the generators at equal noise, averaged over the noise; null where all ranks have one
    generator in common."""


class ParameterSummary(Block):
    """Normalised parameters at the end, between 0 and 1."""

    names: tuple[str, ...]
    """Their names."""
    mean: tuple[float, ...]
    """Mean over the ranks' generators and the noise, a number for each parameter."""
    std: tuple[float, ...] | None
    """Standard deviation over the generators at equal noise, averaged over the noise; null as in residuals."""


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
    stopped: str
    """What ended the run: epochs or maxMinutes."""
    seconds_per_epoch: float | None
    """Wall time of an epoch, s, without the first of an attempt and without saves; mean over the ranks. Null, with all
    that is of it, where there was no other epoch."""
    exchange_seconds_per_epoch: float | None
    """Time that a rank spends in the exchange of an epoch, s; mean over the ranks."""
    transfer_seconds_per_epoch: float | None
    """Time in which a rank copies its gradient into host memory, where it is exchanged, s; mean over the ranks."""
    device_memory_bytes: int | None
    """Largest memory of a rank's accelerator in use; null without accelerators."""
    analysis_rate: float | None
    """Events that all ranks analyse in a second: ranks x batch / secondsPerEpoch."""
    parameters: ParameterSummary
    """The solution."""
    residuals: ResidualSummary
    """Distance from the truth."""
    stale: int
    """Gradients of an earlier epoch that were used, all ranks together."""
    dropped: int
    """Gradients that were not finite and left out of averages, all ranks together."""

    @property
    def metrics(self) -> dict[str, float]:
        """Figures of speed and exchange, by name as in files."""
        shown = {"epochs", "seconds_per_epoch", "exchange_seconds_per_epoch", "analysis_rate", "stale", "dropped"}
        values = self.model_dump(by_alias=True, include=shown, exclude_none=True)
        return {name: float(value) for name, value in values.items()}


@dataclass(frozen=True)
class SolutionReport:
    """Page and bill of a solver run."""

    html: str
    bill: str
    """The bill, Markdown."""
    metrics: Mapping[str, float | str]
    """Dollars, where they are known."""


def new_solver_folder(run: SolverRun, runs: Path, name: str | None = None) -> Path:
    """Make ``runs/<name>`` with run.yaml; without a name, preset and time are the name.

    Raises ConfigurationError for a name that is no folder name, or when the folder holds another run; StorageError; and
    as `refuse_another_problem`.
    """
    folder = runs / folder_name(name, run.solver.preset)
    refuse_another_problem(run, folder)
    with hold(make_folder(folder)):
        keep_configuration(run, folder)
    return folder


def refuse_another_problem(run: SolverRun, workspace: str | Path) -> None:
    """Raise what a rank of a finished run would raise when it resumes, such as InputError for other measured events:
    before anything changes, so that its records and its report stay."""
    with open_workspace(workspace) as folder:
        records: dict[str, StageRecord] = {}
        with suppress(InputError):  # of a damaged record, which the stage replaces
            records = read_records(folder)
        if refuse_another(run, folder) and "solve" in records and records["solve"].outcome == "succeeded":
            solve_with_ranks(run, folder, check=True)


def solve_and_report(run: SolverRun, folder: Path) -> SolverSummary:
    """Solve and report in a folder; the report is written also when a rank fails, and the failure is raised then."""
    with hold(folder):
        try:
            summary = solve(run, folder)
        except CaloscaleError as error:
            report_solution(run, folder, failure=str(error))
            raise
        report_solution(run, folder)
        return summary


def solve(run: SolverRun, workspace: str | Path, generators: Path | None = None) -> SolverSummary:
    """Solve on all ranks, then write summary.json; copy the checkpoints into ``generators`` too, if it is given.

    An interrupted run resumes from the newest epoch that all ranks have saved.
    """
    with ExitStack() as opened:
        folder = opened.enter_context(open_workspace(workspace, run))
        figures = opened.enter_context(recorded("solve", folder))
        progress = ProgressFile(steps=run.solver.epochs, steps_per_epoch=1, batch=None)
        solve_with_ranks(run, folder, _writer(progress, run, folder))
        summary = _summarise(run, folder)
        progress.saved(summary.epochs)
        progress.step(summary.epochs, now=True)
        write_text(folder / SUMMARY_FILE, summary.as_json())
        figures.update(summary.as_values())
        if generators is not None:
            shutil.copytree(folder / CHECKPOINTS, generators / CHECKPOINTS, dirs_exist_ok=True)
        return summary


def _writer(file: ProgressFile, run: SolverRun, folder: Path) -> Progressed:
    """What writes the progress of the ranks into the file that the environment names, a step being an epoch."""
    started, begun = time.perf_counter(), False

    def progressed(epoch: int, losses: Mapping[str, float]) -> None:
        nonlocal begun
        if epoch and not begun:
            begun = True
            file.begin(epoch, time.perf_counter() - started)
        file.losses(losses)
        if file.is_due():
            file.saved(common_epoch(saved_epochs(folder, run.solver.ranks)) or 0)
            file.step(epoch)

    return progressed


def validate_solution(run: SolverRun, workspace: str | Path, generators: Path) -> tuple[dict[str, float], str]:
    """Residuals of the solved parameters, or where the truth is not known the parameters: metrics by name, and a
    Markdown table with the spread of the generators.

    generators: the folder that `solve` has copied checkpoints into.
    """
    with open_workspace(workspace) as folder, recorded("validate", folder) as figures:
        problem = read_problem(folder)
        last, names = residuals_over_time(generators, problem.truth, run.solver)[-1], problem.parameters
        kind = "parameter" if problem.truth is None else "residual"
        metrics = {f"{kind}-{name}": float(value) for name, value in zip(names, last.mean)}
        if problem.truth is not None:
            metrics["mean-absolute-residual"] = last.mean_absolute
        figures.update(metrics)
        return metrics, markdown(residual_table(last, problem))


def report_any(
    run: Run | SolverRun, workspace: str | Path, *, failure: str | None = None
) -> SolutionReport | reporting.Report:
    """The report of a run of either workload."""
    if isinstance(run, SolverRun):
        return report_solution(run, workspace, failure=failure)
    return reporting.report(run, workspace, failure=failure)


def report_solution(run: SolverRun, workspace: str | Path, *, failure: str | None = None) -> SolutionReport:
    """Write bill.json, report.html and figures, also of a run that failed. failure: see `known_failure`."""
    with open_workspace(workspace, shared=True) as folder:
        records, error = finished(folder)
        error = error or known_failure(folder, failure)
        with recorded("report", folder) as figures:
            figures[FAILURE] = error
            on_a_cluster = any(record.attempt for record in records.values())
            if not on_a_cluster:
                reporting.keep_use(run, folder)
            counted = (folder / USAGE_FILE).is_file() or not on_a_cluster
            money = reporting.billed(folder) if counted else ON_A_CLUSTER
            file = folder / SUMMARY_FILE
            summary = {} if error or not file.is_file() else read_json(file, remedy="solve again")
            html = solution_page(
                run,
                folder,
                summary,
                residuals_over_time(folder, read_problem(folder).truth, run.solver) if list_checkpoints(folder) else [],
                [read_record(rank_folder(folder, rank)) for rank in range(run.solver.ranks)] if summary else [],
                money,
                notices=(Notice("This run failed.", failed=True, detail=error),) if error else (),
            )
            write_text(folder / "bill.json", reporting.bill_json(money))
            write_text(folder / "report.html", html)
    metrics = {} if isinstance(money, str) else {"usd": money.usd}
    return SolutionReport(html, bill_markdown(money), metrics)


def _summarise(run: SolverRun, folder: Path) -> SolverSummary:
    solver = run.solver
    records = [read_record(rank_folder(folder, rank)) for rank in range(solver.ranks)]
    problem = read_problem(folder)
    last = residuals_over_time(folder, problem.truth, solver)[-1]
    mean, std = parameters_of(problem.truth, last.mean, last.spread)
    seconds, exchange, transfer = (
        mean_per_epoch(records, name) for name in ("timed_seconds", "exchange_seconds", "transfer_seconds")
    )
    memory = [r.device_memory_bytes for r in records if r.device_memory_bytes is not None]
    events = solver.ranks * solver.events_per_rank * len(solver.data_sets)
    return SolverSummary(
        ranks=solver.ranks,
        exchange=solver.exchange,
        groups=records[0].groups,
        epochs=min(record.epoch for record in records),
        stopped=records[0].stopped,
        seconds_per_epoch=seconds,
        exchange_seconds_per_epoch=exchange,
        transfer_seconds_per_epoch=transfer,
        device_memory_bytes=max(memory, default=None),
        analysis_rate=events / seconds if seconds else None,
        parameters=ParameterSummary(names=problem.parameters, mean=tuple(mean.tolist()), std=_numbers(std)),
        residuals=ResidualSummary(mean=(), std=())
        if problem.truth is None
        else ResidualSummary(mean=tuple(last.mean.tolist()), std=_numbers(last.spread)),
        stale=sum(record.stale for record in records),
        dropped=sum(record.dropped for record in records),
    )


def _numbers(values: NDArray[np.float64] | None) -> tuple[float, ...] | None:
    return None if values is None else tuple(values.tolist())


def print_solution(folder: Path) -> None:
    """Print the summary of a solver run and the path of its report."""
    summary = read_json(folder / SUMMARY_FILE, remedy="solve again")
    groups = f", {summary['groups']} groups" if summary["groups"] > 1 else ""
    rows = [("ranks", f"{summary['ranks']}, exchange {summary['exchange']}{groups}")]
    rows += [(fact.label, fact.text) for fact in solution_facts(summary)]
    solution = summary["parameters"]
    found = (f"{name} {m:.3f}{s}" for name, m, s in zip(solution["names"], solution["mean"], _spreads(solution)))
    rows.append(("parameters", "  ".join(found)))
    if mean := summary["residuals"]["mean"]:
        parts = (f"{m:+.3f}{s}" for m, s in zip(mean, _spreads(summary["residuals"])))
        rows += [("residuals", "  ".join(parts)), ("mean absolute residual", f"{np.abs(mean).mean():.4f}")]
    print_rows(folder, rows)


def _spreads(solution: Mapping[str, Any]) -> list[str]:
    """Of each parameter its spread; nothing of one generator."""
    spread = solution["std"]
    return [""] * len(solution["mean"]) if spread is None else [f" ± {s:.3f}" for s in spread]
