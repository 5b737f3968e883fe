"""Who may have the lease."""

from __future__ import annotations

import datetime as dt

import pytest

from caloscale.operator.leadership import LEASE_SECONDS, may_take

NOW = dt.datetime(2026, 11, 21, 12, 0, tzinfo=dt.UTC)


def lease(holder: str, seconds_ago: float) -> dict:
    renewed = (NOW - dt.timedelta(seconds=seconds_ago)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return {"spec": {"holderIdentity": holder, "leaseDurationSeconds": LEASE_SECONDS, "renewTime": renewed}}


@pytest.mark.parametrize(
    ("known", "taken"),
    [
        (None, True),
        (lease("", 1), True),
        (lease("me", 1), True),
        (lease("other", 1), False),
        (lease("other", LEASE_SECONDS - 0.1), False),
        (lease("other", LEASE_SECONDS + 0.1), True),
    ],
    ids=["none", "given back", "mine", "fresh", "almost out", "out"],
)
def test_a_lease_is_taken_only_when_nobody_else_has_it(known: dict | None, taken: bool) -> None:
    assert may_take(known, "me", NOW) is taken
