"""The estimate that a run on a cluster was placed with, as a plan that the bill is compared with."""

from __future__ import annotations

import math

from caloscale.cluster.capacity.pool_plan import cloud_of
from caloscale.cluster.capacity.resizing import worker_configuration
from caloscale.errors import InputError
from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices
from caloscale.planning.search.plan import Plan, plan
from caloscale.spec import AnyRun, SolverRun, build_run
from caloscale.status import RunStatus

ROUNDING = 1e-6
"""Relative: the status is written as text."""


def estimate_of(run: AnyRun, status: RunStatus) -> Plan | str:
    """The plan of the placement at the prices of the first launch, or why there is none.

    The status holds only time and money of the estimate. The rest is what the planner says of the same machines; where
    it comes to another sum (the operator had prices or measurements of its own), nothing is put beside the bill.
    """
    placed = status.placement
    if placed is None or not status.attempts:
        return "it was not placed yet: there is no estimate"
    if placed.estimate_usd is None or placed.estimate_seconds is None or isinstance(run, SolverRun):
        return "it was placed without an estimate" + "".join(f"; {reason}" for reason in placed.reasons)
    placed_run = build_run(worker_configuration(run.model_dump(mode="json", by_alias=True), placed))
    cloud = cloud_of(placed.machine_type, placed.topology)
    hardware = placed_run.hardware and placed_run.hardware.model_copy(update={"cloud": cloud})
    day = status.attempts[0].launched.date()
    try:
        made = plan(placed_run.model_copy(update={"hardware": hardware}), load_prices(), load_measurements(), day)
    except InputError as problem:
        return f"the estimate of {placed.estimate_usd:.2f} USD cannot be made here: {problem.problem}"
    known = made.chosen or made.nearest
    if (
        known is None
        or known.usd is None
        or not (
            math.isclose(known.usd, placed.estimate_usd, rel_tol=ROUNDING)
            and math.isclose(known.total_seconds, placed.estimate_seconds, rel_tol=ROUNDING)
        )
    ):
        return (
            f"the operator estimated {placed.estimate_usd:.2f} USD, which the prices and measurements of this package "
            "do not give: there is no estimate beside the bill"
        )
    return made
