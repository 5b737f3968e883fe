"""caloscale status: how a run is, in a row."""

import datetime as dt
import time
from collections.abc import Iterator

import pytest

from caloscale.cli.cluster import COLUMNS, _row
from caloscale.client.runs import RunOnCluster
from caloscale.status import RunProgress, RunStatus


@pytest.fixture(params=[("UTC0", "2026-11-21 23:30 UTC"), ("CET-1CEST", "2026-11-22 00:30 CET")])
def there(request: pytest.FixtureRequest) -> Iterator[str]:
    """The time zone of whoever looks, and what the clock there shows at the end of the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", request.param[0])
        time.tzset()
        yield request.param[1]
    time.tzset()


def test_the_end_is_shown_in_local_time(there: str) -> None:
    progress = RunProgress(eta=dt.datetime(2026, 11, 21, 23, 30, tzinfo=dt.UTC))
    row = _row(RunOnCluster("gan", "physics", {}, RunStatus(progress=progress), ""))
    assert row[COLUMNS.index("ends")] == there


@pytest.mark.parametrize("given", ["physics/trainingruns/gan", "Physics", ".."])
def test_a_namespace_that_none_can_have_is_refused(command, given):
    done = command("status", "-n", given)
    assert done.code == 2 and f"--namespace: is not a name of a namespace (got '{given}')" in done.err
