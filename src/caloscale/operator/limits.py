"""Whether the money or the time of a run are spent."""

from __future__ import annotations

import datetime as dt

from caloscale.cluster.accounting import HOUR, first_hold, with_cost
from caloscale.operator.draft import Draft
from caloscale.operator.verdict import Verdict
from caloscale.spec import Run
from caloscale.status import Placed

LOOK_AGAIN_SECONDS = 60.0
"""Money whose rate is not known is looked at so often, s."""


def limit_reached(draft: Draft, run: Run) -> Verdict | None:
    """The limit that is reached; None: none, and the draft's times say when to look again."""
    return _deadline_passed(draft, run) or _money_spent(draft, run)


def _deadline_passed(draft: Draft, run: Run) -> Verdict | None:
    seconds, begun = run.budget.deadline_seconds, _begun(draft)
    if seconds is None or begun is None:
        return None
    end = begun + dt.timedelta(seconds=seconds)
    if draft.now >= end:
        return Verdict("Deadline", f"budget.deadline of {run.budget.deadline} has passed")
    draft.times.append(end)
    return None


def _begun(draft: Draft) -> dt.datetime | None:
    """When the first machine was held: the time in a queue is not the run's."""
    return next((first_hold(attempt) for attempt in draft.status.attempts if attempt.holds or attempt.held), None)


def _money_spent(draft: Draft, run: Run) -> Verdict | None:
    limit, live = run.budget.max_usd, draft.status.live
    if limit is None:
        return None
    usd = _usd(draft)
    if usd is not None and usd >= limit:
        return Verdict("Budget", f"{usd:.2f} USD of budget.maxUsd {limit:g} are spent")
    if live is not None and live.holds:
        placed = draft.status.placement
        rate = placed.usd_per_hour if placed is not None else None
        draft.later(max((limit - usd) / rate * HOUR, 1.0) if usd is not None and rate else LOOK_AGAIN_SECONDS)
    return None


def affordable(draft: Draft, run: Run, placed: Placed) -> bool:
    """Whether what is left of the training, by the estimate, keeps within budget.maxUsd on a placement."""
    limit, progress = run.budget.max_usd, draft.status.progress
    if limit is None:
        return True
    spent = _usd(draft)
    if spent is None or placed.usd_per_hour is None or placed.estimate_seconds is None:
        return False
    left = 1 - progress.checkpoint_step / progress.steps if progress is not None and progress.steps else 1.0
    return spent + placed.usd_per_hour * placed.estimate_seconds / HOUR * left <= limit


def _usd(draft: Draft) -> float | None:
    """Dollars so far; where the price has gone since the launch, by the price of then."""
    priced, _ = with_cost(draft.status, draft.seen.catalogue.prices, draft.now)
    placed, cost = draft.status.placement, priced.cost
    if cost is None or cost.usd is not None:
        return cost.usd if cost is not None else None
    if placed is None or placed.usd_per_hour is None:
        return None
    return cost.node_hours * placed.usd_per_hour / placed.nodes
