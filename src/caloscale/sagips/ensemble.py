"""Analysis of the generators' checkpoints: residuals over time, ensembles, resampled uncertainties. No TensorFlow."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import InputError
from caloscale.sagips.saves import are_alike, list_checkpoints, read_checkpoints, read_problem
from caloscale.spec import Solver, load_solver_run

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Residuals:
    """Residuals of normalised parameters at one checkpoint; where the truth is not known, the parameters."""

    epoch: int
    seconds: float
    """Wall time of the run until then, s; the mean over the ranks."""
    mean: Floats
    """Mean over generators and noise, (parameters,)."""
    spread: Floats | None
    """Standard deviation over the generators at equal noise, averaged over the noise, (parameters,); None of one."""
    noise: Floats
    """Standard deviation over the noise, averaged over the generators, (parameters,)."""

    @property
    def mean_absolute(self) -> float:
        """Mean over the parameters of the absolute mean residuals."""
        return float(np.abs(self.mean).mean())


def _relative(truth: Sequence[float] | None, proposals: NDArray[np.floating]) -> Floats:
    """(p - p^) / p for the truth (parameters,) and proposals (generators, samples, parameters); these without truth."""
    if truth is None:
        return proposals.astype(np.float64)
    true = np.asarray(truth, np.float64)
    return (true - proposals.astype(np.float64)) / true


def parameters_of(truth: Sequence[float] | None, mean: Floats, spread: Floats | None) -> tuple[Floats, Floats | None]:
    """Mean and spread of the parameters, from those of residuals, or where the truth is not known of the parameters."""
    if truth is None:
        return mean, spread
    true = np.asarray(truth, np.float64)
    return true * (1 - mean), None if spread is None else true * spread


def residuals_over_time(folder: Path, truth: Sequence[float] | None, solver: Solver) -> list[Residuals]:
    """Residuals at each checkpoint that all ranks have written, in order. truth: None: it is not known.

    Raises CheckpointError for a damaged checkpoint.
    """
    over_time = []
    for epoch in list_checkpoints(folder, solver.ranks):
        seconds, proposals = read_checkpoints(folder, epoch, solver.ranks)
        relative = _relative(truth, proposals)
        spread, noise = (relative.std(axis=axis).mean(axis=0) for axis in (0, 1))
        known = spread if solver.generators > 1 else None
        over_time.append(Residuals(epoch, seconds, relative.mean(axis=(0, 1)), known, noise))
    return over_time


RESAMPLINGS = 300
"""Bootstrap samples of the members, and draws of sub-ensembles (published: 300 of the latter)."""


@dataclass(frozen=True)
class Ensemble:
    """Residuals (p - p^) / p of an ensemble, or its parameters where the truth is not known; each (parameters,)."""

    truth: tuple[float, ...] | None
    members: int
    mean: Floats
    """Residual of the mean over members and noise."""
    spread: Floats
    """Standard deviation over the members at equal noise, averaged over the noise."""
    mean_uncertainty: Floats
    """Standard deviation of `mean` over resampled ensembles."""
    spread_uncertainty: Floats
    """Standard deviation of `spread` over resampled ensembles."""
    rmse: Floats
    """Root of the mean squared residual of the members, each averaged over the noise."""

    @property
    def mean_absolute(self) -> float:
        """Mean over the parameters of the absolute residuals of the mean."""
        return float(np.abs(self.mean).mean())

    @property
    def covered(self) -> int:
        """Parameters whose truth is within one spread of the mean."""
        return int((np.abs(self.mean) <= self.spread).sum())

    def as_values(self) -> dict[str, Any]:
        """The figures as in JSON; null for a figure that needs several members, and for residuals without a truth. The
        uncertainty is of the residuals, or without a truth of the parameters.
        """
        known, several = self.truth is not None, self.members > 1
        spread = self.spread if several else None
        uncertainty = {"mean": self.mean_uncertainty.tolist(), "std": self.spread_uncertainty.tolist()}
        return {
            "members": self.members,
            "parameters": _mean_and_std(*parameters_of(self.truth, self.mean, spread)),
            "residuals": _mean_and_std(self.mean, spread) if known else None,
            "uncertainty": uncertainty if several else None,
            "covered": self.covered if known and several else None,
            "rmse": self.rmse.tolist() if known else None,
            "meanAbsolute": self.mean_absolute if known else None,
        }


def _mean_and_std(mean: Floats, spread: Floats | None) -> dict[str, Any]:
    return {"mean": mean.tolist(), "std": None if spread is None else spread.tolist()}


def ensemble_of(truth: Sequence[float] | None, members: NDArray[np.floating]) -> Ensemble:
    """The residuals of an ensemble, after equations 7 and 8 of arXiv 2407.00051. truth: None: it is not known.

    members: (members, samples, parameters), normalised; row by row from the same noise. The proposals of a solver with
    several ranks are averaged over its ranks first. Members are resampled with replacement.
    """
    relative = _relative(truth, members)
    count = len(relative)
    random = np.random.default_rng(0)
    drawn = [relative[random.integers(count, size=count)] for _ in range(RESAMPLINGS)]
    of_noise = relative.mean(axis=1)
    return Ensemble(
        None if truth is None else tuple(truth),
        count,
        relative.mean(axis=(0, 1)),
        relative.std(axis=0).mean(axis=0),
        np.std([one.mean(axis=(0, 1)) for one in drawn], axis=0),
        np.std([one.std(axis=0).mean(axis=0) for one in drawn], axis=0),
        np.sqrt((of_noise**2).mean(axis=0)),
    )


def sub_ensembles(truth: Sequence[float], members: NDArray[np.floating]) -> dict[int, tuple[float, float]]:
    """Mean absolute residual of smaller ensembles by their size: mean and standard deviation over the draws.

    members: as in `ensemble_of`. Sizes are the powers of two up to their number, drawn without replacement; figure 9 of
    arXiv 2407.00051 has 300 draws.
    """
    of_members = _relative(truth, members).mean(axis=1)
    random = np.random.default_rng(0)
    by_size = {}
    for size in (2**power for power in range(len(of_members).bit_length())):
        drawn = [of_members[random.choice(len(of_members), size, replace=False)] for _ in range(RESAMPLINGS)]
        absolute = np.abs([one.mean(axis=0) for one in drawn]).mean(axis=1)
        by_size[size] = float(absolute.mean()), float(absolute.std())
    return by_size


@dataclass(frozen=True)
class SolvedRun:
    """What is compared of a run: its configuration and its members at the last checkpoint."""

    name: str
    """Its folder as given."""
    solver: Solver
    epochs: int
    seconds: float
    """Wall time of the run, s; mean over the ranks."""
    truth: tuple[float, ...] | None
    """Normalised; None where they are not known."""
    parameters: tuple[str, ...]
    samples: tuple[tuple[float, ...], ...]
    """`Problem.samples`."""
    files: Mapping[str, str]
    """`Problem.files`."""
    members: NDArray[np.float64]
    """(members, samples, parameters): each rank is one without exchange, otherwise all ranks are one."""
    between_ranks: float | None
    """Standard deviation of the residuals over the ranks' generators at equal noise; mean over noise and parameters.
    None of one rank, and where the truth is not known."""


def read_solved(folder: Path, *, epoch: int | None = None) -> SolvedRun:
    """The members of a run. epoch: of a checkpoint; absent: the last.

    Raises InputError where the folder holds no such run.
    """
    if not (folder / "problem.json").is_file():
        raise InputError("holds no run of caloscale solve", file=folder, remedy="give a folder such as runs/NAME")
    solver, problem = load_solver_run(folder / "run.yaml").solver, read_problem(folder)
    epochs = list_checkpoints(folder, solver.ranks)
    if not epochs or (epoch is not None and epoch not in epochs):
        remedy = f"one of: {epochs or 'none yet'}"
        raise InputError("has no such checkpoint", file=folder, field="epoch", value=epoch, remedy=remedy)
    epoch = epochs[-1] if epoch is None else epoch
    seconds, copies = read_checkpoints(folder, epoch, solver.ranks)
    proposals = copies.astype(np.float64)
    members = proposals if solver.exchange == "none" else proposals.mean(axis=0, keepdims=True)
    several = problem.truth is not None and solver.ranks > 1
    between = float(_relative(problem.truth, proposals).std(axis=0).mean()) if several else None
    known = problem.truth, problem.parameters, problem.samples, problem.files
    return SolvedRun(str(folder), solver, epoch, seconds, *known, members, between)


def same_kind(runs: Sequence[SolvedRun]) -> list[list[SolvedRun]]:
    """Runs grouped by configuration, but for seed and threads, by parameters and truth, by what the pipelines make, and
    by the content of the files of measured events: each group is an ensemble.

    Raises InputError for runs of a group with the same seed: they are not independent.
    """
    groups: dict[str, dict[int, SolvedRun]] = {}
    samples = [[*chain.from_iterable(run.samples)] for run in runs]
    for run, own in zip(runs, samples):
        kind = run.solver.model_dump_json(exclude={"seed", "threads", "max_minutes", "save_every"})
        first = next(number for number, others in enumerate(samples) if are_alike(others, own))
        key = f"{kind} {run.epochs} {run.parameters} {run.truth} {first} {sorted(run.files.items())}"
        other = groups.setdefault(key, {}).setdefault(run.solver.seed, run)
        if other is not run:
            problem = f"{other.name} and {run.name} are the same run, or have the same seed: they are not two members"
            raise InputError(problem, field="solver.seed", value=run.solver.seed, remedy="give one of them")
    return [list(group.values()) for group in groups.values()]
