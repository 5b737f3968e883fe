"""The measure `solve`: an ensemble of solver runs that differ in the seed, and its residuals with uncertainty."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from caloscale import __version__
from caloscale.sagips.ensemble import Residuals, SolvedRun, ensemble_of, read_solved, residuals_over_time, sub_ensembles
from caloscale.sagips.saves import mean_per_epoch, rank_folder, read_problem, read_record
from caloscale.spec import SolverRun, build_solver_run
from caloscale.spec.block import Block, read_json
from caloscale.stages.solving import SUMMARY_FILE, solve
from caloscale.stages.workspace import keep_configuration
from caloscale.storage.atomic import make_folder
from caloscale.studies.points import Seeds, contents_of, nested, own_inputs, refuse_seed


class SolveInputs(Block):
    """The inputs of an ensemble that are no fields of its run configuration."""

    seeds: Seeds | None = None
    """One run each; absent: solver.seed alone."""
    within_seconds: float = Field(math.inf, ge=0, allow_inf_nan=True)
    """Wall time of the last checkpoint that counts, s; absent: that at the end."""


def solve_ensemble(inputs: Mapping[str, Any], points: Path) -> dict[str, Any]:
    """Solve once with each seed, then the residuals of the ensemble, which are null where the truth is not known.

    inputs: `SolveInputs`, and fields of the solver's run configuration. points: folder of all points, where a run has
    a folder named after a hash of its configuration and of what it reads: points that differ in withinSeconds share
    their runs, and an interrupted run resumes. Raises ConfigurationError, and what a run raises.
    """
    asked, fields = own_inputs(SolveInputs, inputs)
    if asked.seeds is not None:
        refuse_seed(fields, "solver.seed")
    run = build_solver_run(nested(fields))
    folders = [_solved(run, seed, points) for seed in asked.seeds or (run.solver.seed,)]
    histories = [residuals_over_time(folder, read_problem(folder).truth, run.solver) for folder in folders]
    members = [
        read_solved(folder, epoch=max(at.epoch for at in history if at.seconds <= asked.within_seconds))
        for folder, history in zip(folders, histories)
    ]
    history = _history(histories) if members[0].truth is not None else None
    return {**_speed(folders, run), **_residuals(members), "history": history}


def _solved(run: SolverRun, seed: int, points: Path) -> Path:
    """The folder of a finished run with a seed."""
    run = run.model_copy(update={"solver": run.solver.model_copy(update={"seed": seed})})
    values = run.as_values()
    key = hashlib.sha256(json.dumps([__version__, values, *contents_of(values)]).encode()).hexdigest()[:16]
    folder = points / f"solved-{key}"
    if not (folder / SUMMARY_FILE).is_file():
        keep_configuration(run, make_folder(folder))
        solve(run, folder)
    return folder


def _speed(folders: Sequence[Path], run: SolverRun) -> dict[str, Any]:
    """Summaries of the runs: means, and sums of the counts."""
    summaries = [read_json(folder / SUMMARY_FILE, remedy="delete the folder") for folder in folders]
    records = [read_record(rank_folder(folder, rank)) for folder in folders for rank in range(run.solver.ranks)]
    means = ("secondsPerEpoch", "exchangeSecondsPerEpoch", "analysisRate")
    return {
        **{name: summaries[0][name] for name in ("ranks", "exchange", "groups", "epochs")},
        **{name: _mean([summary[name] for summary in summaries]) for name in means},
        "processorSecondsPerEpoch": mean_per_epoch(records, "processor_seconds"),
        **{name: sum(summary[name] for summary in summaries) for name in ("stale", "dropped")},
    }


def _mean(values: Sequence[float | None]) -> float | None:
    """None where a value is not known."""
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _residuals(runs: Sequence[SolvedRun]) -> dict[str, Any]:
    """`Ensemble.as_values` of all members, and further residuals."""
    members, truth = np.concatenate([run.members for run in runs]), runs[0].truth
    figures = {
        **ensemble_of(truth, members).as_values(),
        "atEpoch": float(np.mean([run.epochs for run in runs])),
        "atSeconds": float(np.mean([run.seconds for run in runs])),
    }
    if truth is None:
        return figures | dict.fromkeys(("meanAbsoluteOfRuns", "subEnsembles", "betweenRanks"))
    return {
        **figures,
        "meanAbsoluteOfRuns": float(np.abs(1 - members.mean(axis=1) / truth).mean()),
        "subEnsembles": [
            # All members are one ensemble, which does not vary.
            {"members": size, "meanAbsolute": mean, "deviation": deviation if size < len(members) else None}
            for size, (mean, deviation) in sub_ensembles(truth, members).items()
        ],
        "betweenRanks": _mean([run.between_ranks for run in runs]),
    }


def _history(histories: Sequence[Sequence[Residuals]]) -> list[dict[str, float]]:
    """Mean over the runs at each checkpoint that all have."""
    by_epoch: dict[int, list[Residuals]] = {}
    for one in chain.from_iterable(histories):
        by_epoch.setdefault(one.epoch, []).append(one)
    means = {n: np.mean([(r.seconds, r.mean_absolute) for r in at], axis=0) for n, at in by_epoch.items()}
    return [
        {"epoch": epoch, "seconds": float(seconds), "meanAbsolute": float(residual)}
        for epoch, (seconds, residual) in means.items()
        if len(by_epoch[epoch]) == len(histories)
    ]
