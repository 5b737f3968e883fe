"""What a run may cost and how long it may last."""

import datetime as dt

from caloscale.cluster.accounting import HOUR, first_usage, with_cost
from caloscale.operator.context import Draft
from caloscale.operator.outcomes import Outcome
from caloscale.spec import AnyRun
from caloscale.status import Placed

LOOK_AGAIN_SECONDS = 60.0
"""Money whose rate is not known is looked at so often, s."""


def limit_reached(draft: Draft, run: AnyRun) -> Outcome | None:
    """The limit that is reached; None: none, and the draft's times say when to look again."""
    return _deadline_passed(draft, run) or _money_spent(draft, run)


def _deadline_passed(draft: Draft, run: AnyRun) -> Outcome | None:
    seconds, begun = run.budget.deadline_seconds, _begun(draft)
    if seconds is None or begun is None:
        return None
    end = begun + dt.timedelta(seconds=seconds)
    if draft.now >= end:
        return Outcome("Deadline", f"budget.deadline of {run.budget.deadline} has passed")
    draft.times.append(end)
    return None


def _begun(draft: Draft) -> dt.datetime | None:
    """When the run used its first node: the time in a queue does not count."""
    return next(
        (first_usage(attempt) for attempt in draft.status.attempts if attempt.node_usage or attempt.node_totals), None
    )


def _money_spent(draft: Draft, run: AnyRun) -> Outcome | None:
    limit, live = run.budget.max_usd, draft.status.live
    if limit is None:
        return None
    usd = _usd(draft)
    if usd is not None and usd >= limit:
        return Outcome("Budget", f"{usd:.2f} USD of budget.maxUsd {limit:g} are spent")
    if live is not None and live.node_usage:
        placed = draft.status.placement
        rate = placed.usd_per_hour if placed is not None else None
        draft.later(max((limit - usd) / rate * HOUR, 1.0) if usd is not None and rate else LOOK_AGAIN_SECONDS)
    return None


def affordable(draft: Draft, run: AnyRun, placed: Placed) -> bool:
    """Whether what is left of the training, by the estimate, keeps within budget.maxUsd on a placement."""
    limit = run.budget.max_usd
    if limit is None:
        return True
    spent = _usd(draft)
    if spent is None or placed.usd_per_hour is None or placed.estimate_seconds is None:
        return False
    return spent + placed.usd_per_hour * placed.estimate_seconds / HOUR * _left(draft) <= limit


def in_time(draft: Draft, run: AnyRun, placed: Placed) -> bool:
    """Whether what is left of the training, by the estimate, ends within budget.deadline on a placement.

    The estimate is that of the planned nodes; on fewer the time is at most inversely proportional to their number.
    """
    seconds, begun = run.budget.deadline_seconds, _begun(draft)
    if seconds is None or placed.estimate_seconds is None:
        return True
    passed_s = (draft.now - begun).total_seconds() if begun is not None else 0.0
    return passed_s + placed.estimate_seconds * placed.planned_nodes / placed.nodes * _left(draft) <= seconds


def _left(draft: Draft) -> float:
    """The fraction of the steps that no checkpoint has."""
    progress = draft.status.progress
    return 1 - progress.checkpoint_step / progress.steps if progress is not None and progress.steps else 1.0


def _usd(draft: Draft) -> float | None:
    """Dollars so far; where the price has gone since the launch, by the price of then."""
    if not draft.status.attempts:
        return 0.0
    priced, _ = with_cost(draft.status, draft.seen.catalogue.prices, draft.now)
    placed, cost = draft.status.placement, priced.cost
    if cost is None or cost.usd is not None:
        return cost.usd if cost is not None else None
    if placed is None or placed.usd_per_hour is None:
        return None
    return cost.node_hours * placed.usd_per_hour / placed.nodes
