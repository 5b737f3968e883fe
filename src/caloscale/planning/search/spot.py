"""Runs that are interrupted: expected time and cost, the optimal checkpoint interval, and when on demand is cheaper.

A synchronous job fails as one, so with n nodes that are each preempted at the rate r it fails at L = n r, every
M = 1/L on average. All functions work on numbers and on arrays.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from caloscale.planning.step_time.throughput import Numbers
from caloscale.spec.values import MOST_DAYS

NEVER_SECONDS = MOST_DAYS * 86_400.0
"""A run that is expected to take as long is never chosen: mostly it cannot get past its interruptions."""


@dataclass(frozen=True)
class Interrupted:
    """Expectations of runs under interruptions, one an element."""

    checkpoint_seconds: Numbers
    """Training between two checkpoints, s; infinite where there are no interruptions."""
    seconds: Numbers
    """Expected time to the end, s; infinite where the job cannot get past its interruptions."""
    interruptions: Numbers
    """Expected number of interruptions."""
    waiting_seconds: Numbers
    """Waiting for machines alone, s."""


def daly_seconds(save_seconds: ArrayLike, between_failures: ArrayLike) -> Numbers:
    """Work between checkpoints that makes the expected time smallest, s; M where saving takes longer than 2 M.

    sqrt(2 C M) [1 + sqrt(C / 2M) / 3 + (C / 2M) / 9] - C.
    J. T. Daly, Future Gener. Comput. Syst. 22 (2006) 303, eq. 37.
    """
    save, mean = np.asarray(save_seconds, float), np.asarray(between_failures, float)
    with np.errstate(invalid="ignore", divide="ignore"):
        part = save / (2 * mean)
        optimum = np.sqrt(2 * save * mean) * (1 + np.sqrt(part) / 3 + part / 9) - save
    return np.where(save < 2 * mean, optimum, mean)


def expected(
    work_seconds: ArrayLike,
    between_failures: ArrayLike,
    save_seconds: ArrayLike,
    start_up_seconds: ArrayLike,
    checkpoint_seconds: ArrayLike | None = None,
    lifetime_seconds: ArrayLike = np.inf,
    provisioning_seconds: ArrayLike = 0.0,
    awaited: ArrayLike = 1.0,
) -> Interrupted:
    """Expectations for ``work_seconds`` of training that fails every ``between_failures`` seconds M on average.

    A failure is followed by a wait until all machines are there, then by the start-up S, and by pieces of tau
    (``checkpoint_seconds``; absent: Daly's optimum) with a save C each, in which any machine can be lost:

        E[T] = (M + W) e^(S/M) (e^((tau + C)/M) - 1) T / tau,    W = M ((1 + a P/M)^(1/a) - 1)

    Machines that are lost together are the share a (``awaited``) of all, and are there again after P
    (``provisioning_seconds``), in which the others can be lost: each of 1/a parts is there for M/a and away for P,
    whatever the others are, so all are there together for (1 + a P/M)^(-1/a) of the time, M each time. In W and the
    time before, (1 + a P/M)^(1/a - 1) parts are lost. For a towards 0 this is Daly's complete formula with R = P + S.
    ``lifetime_seconds`` H: all machines end at this age at the latest, as preemptible ones do after 24 h, and failures
    are no longer memoryless: in a renewal process machines that are there last M (1 - e^(-H/M)) on average, and save
    tau at each checkpoint that they reach; H is divided into whole pieces. That is exact for runs of many lifetimes.
    """
    work, mean, save, start_up, lifetime, provisioning, awaited = np.broadcast_arrays(
        work_seconds, between_failures, save_seconds, start_up_seconds, lifetime_seconds, provisioning_seconds, awaited
    )
    tau = np.minimum(daly_seconds(save, np.minimum(mean, lifetime)), np.maximum(work, 1.0))
    if checkpoint_seconds is not None:
        tau = np.broadcast_to(checkpoint_seconds, tau.shape)
    never = np.isinf(mean) & np.isinf(lifetime)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if checkpoint_seconds is None:
            tau = _of_whole_pieces(tau, np.maximum(work, 1.0), mean, save, start_up, lifetime)
        away = np.log1p(awaited * provisioning / mean)
        wait = np.where(np.isinf(mean), provisioning, mean * np.expm1(away / awaited))
        lasting = mean * -np.expm1(-lifetime / np.where(np.isinf(mean), 1.0, mean))
        cycle = wait + np.where(np.isinf(mean), lifetime, lasting)
        saved = _saved(tau, mean, save, start_up, lifetime)
        total = np.where(never, work, np.where(saved > 0, work * cycle / saved, np.inf))
        cycles = np.where(never, 0.0, total / cycle)
        failures, waiting = cycles * np.exp(away * (1 / awaited - 1)), cycles * wait
    return Interrupted(
        checkpoint_seconds=np.where(never, np.inf, tau), seconds=total, interruptions=failures, waiting_seconds=waiting
    )


def break_even_rate(spot_usd: Callable[[float], float], on_demand_usd: float) -> float | None:
    """Interruptions per node and hour up to which spot, whose price depends on them, costs less than on demand.

    None when spot never pays; rates are searched up to one a minute.
    """

    def logarithm_of_ratio(per_node_hour: float) -> float:
        usd = spot_usd(per_node_hour)
        return float(np.log(usd / on_demand_usd)) if np.isfinite(usd) else 700.0

    lowest = 1e-12  # at 0 nothing is saved, and saving alone may cost more than spot spares
    if logarithm_of_ratio(lowest) >= 0:
        return None
    if logarithm_of_ratio(60.0) <= 0:
        return 60.0
    from scipy.optimize import brentq  # loaded when needed: half a second

    return float(brentq(logarithm_of_ratio, lowest, 60.0, xtol=1e-9))


def _of_whole_pieces(
    tau: Numbers, longest: Numbers, mean: Numbers, save: Numbers, start_up: Numbers, lifetime: Numbers
) -> Numbers:
    """Of tau and the two next intervals of which a lifetime has a whole number, the one that saves most."""
    best = _saved(tau, mean, save, start_up, lifetime)
    usable = np.where(np.isinf(lifetime), 0.0, np.maximum(lifetime - start_up, 0))
    pieces = np.floor(usable / (tau + save))
    for number in (pieces, pieces + 1):
        fitted = usable / np.maximum(number, 1) - save
        fitted = np.where((fitted > 0) & (fitted <= longest), fitted, tau)
        saved = _saved(fitted, mean, save, start_up, lifetime)
        tau, best = np.where(saved > best, fitted, tau), np.maximum(saved, best)
    return tau


def _saved(tau: Numbers, mean: Numbers, save: Numbers, start_up: Numbers, lifetime: Numbers) -> Numbers:
    """Expected seconds of work that machines save until one of them is lost."""
    most = np.floor(np.maximum(lifetime - start_up, 0) / (tau + save) * (1 + 1e-12))  # whole numbers are whole
    hazard = np.where(np.isinf(mean), 0.0, 1 / mean)
    step = hazard * (tau + save)
    reached = np.where(hazard > 0, -np.expm1(-most * step) / np.expm1(np.maximum(step, 1e-300)), most)
    saved: Numbers = tau * np.exp(-hazard * start_up) * reached
    return saved
