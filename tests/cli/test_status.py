"""caloscale status: how a run is, in a row."""

import datetime as dt
import time
from collections.abc import Iterator
from unittest.mock import Mock

import pytest

from caloscale.cli.cluster import COLUMNS, _row
from caloscale.client.runs import RunOnCluster
from caloscale.status import RunProgress, RunStatus
from tests.client.server import Server, refusal, seen


@pytest.fixture(params=[("UTC0", "2026-11-21 23:30 UTC"), ("CET-1CEST", "2026-11-22 00:30 CET")])
def there(request: pytest.FixtureRequest) -> Iterator[str]:
    """The time zone of whoever looks, and what the clock there shows at the end of the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", request.param[0])
        time.tzset()
        yield request.param[1]
    time.tzset()


def test_the_end_is_shown_in_local_time(there: str) -> None:
    end = dt.datetime(2026, 11, 21, 23, 30, tzinfo=dt.UTC)
    known = RunProgress(eta=end), RunProgress(eta=end + dt.timedelta(hours=1))
    for status, shown in (
        (RunStatus(phase="Running", progress=known[0]), there),
        (RunStatus(phase="Suspended", progress=known[0]), ""),
        (RunStatus(phase="Failed", progress=known[1], finished=end), there),
    ):
        row = _row(RunOnCluster("gan", "physics", {}, status, ""))
        assert row[COLUMNS.index("ends")] == shown


def test_a_run_that_no_operator_sees_says_so(command, monkeypatch):
    """In a namespace that is not among the operator's it would be Pending for ever."""
    monkeypatch.setattr("caloscale.connection.connect", lambda context: Server({**seen("Pending"), "status": {}}))
    done = command("status", "gan", "-n", "physics")
    assert done.code == 0 and "gan: no operator has seen it" in done.out and "CALOSCALE_NAMESPACES" in done.out


def test_a_run_that_a_newer_rule_refuses_to_change_says_so_before_it_is_to_be_stopped(command, monkeypatch):
    """The server is asked where this version refuses it too: a run of an even newer one may be changed all the same."""
    spec = {"model": {"preset": "compact"}, "hardware": {}, "cluster": {"workspace": "/data/gan"}}
    server = Server(seen("Running", spec=spec))
    server.each = lambda *_, **__: iter([seen("Running", spec=spec), seen("Succeeded", spec=spec)])
    monkeypatch.setattr("caloscale.connection.connect", lambda context: server)
    server.merge = Mock(return_value={})
    assert "cannot be changed" not in command("status", "gan", "-n", "physics").out
    server.merge = Mock(side_effect=refusal(422, "workspace is neither in a bucket nor"))
    for options in (("gan",), ("gan", "--json"), ()):
        out = " ".join(command("status", *options, "-n", "physics").out.split())
        assert out.count("the run cannot be changed: workspace is neither in a bucket nor; remedy: delete it") == 1
    assert all(call.kwargs["dry_run"] for call in server.merge.call_args_list)


def test_options_that_exclude_each_other_are_refused(command):
    done = command("status", "--watch", "--json")
    assert done.code == 2 and "--watch, --json: exclude each other" in done.err


@pytest.mark.parametrize("given", ["physics/trainingruns/gan", "Physics", ".."])
def test_a_namespace_that_none_can_have_is_refused(command, given):
    done = command("status", "-n", given)
    assert done.code == 2 and f"--namespace: is not a name of a namespace (got '{given}')" in done.err
