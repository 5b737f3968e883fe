"""Runs from the outside, on an API server whose answers a test chooses; tests/control_plane/operator has a real one."""

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from urllib3.exceptions import MaxRetryError

from caloscale.client import runs
from caloscale.errors import ClusterError, InputError
from caloscale.spec import build_any_run
from tests.client.server import Answer, Server, refusal, seen


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.time, "sleep", lambda seconds: None)


def phases(*answers: Answer) -> list[str]:
    server: Any = Server(*answers)
    return [run.status.phase for run in runs.follow(server, "physics", "gan")]


def test_each_change_is_reported_once_until_the_end() -> None:
    shown = phases(seen("Waiting"), seen("Running"), seen("Running"), seen("Succeeded"))
    assert shown == ["Waiting", "Running", "Succeeded"]


def test_changes_are_watched_and_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client that asks every two seconds is a request more for the API server."""
    pauses: list[float] = []
    monkeypatch.setattr(runs.time, "sleep", pauses.append)
    server: Any = Server(seen("Waiting"), seen("Running"), seen("Succeeded"))
    assert len(list(runs.follow(server, "physics", "gan"))) == 3
    assert pauses == [] and server.watched == [("TrainingRun", "physics", 7, "metadata.name=gan")] * 2
    server = Server(seen("Waiting"), seen("Running"), seen("Succeeded"))
    server.refuses_watches = True
    assert len(list(runs.follow(server, "physics", "gan"))) == 3 and pauses == [runs.POLL_SECONDS] * 2


AWAY: dict[str, Callable[[], Exception]] = {
    "no connection": lambda: ConnectionRefusedError("refused"),
    "no way": lambda: MaxRetryError(None, "/", None),  # type: ignore[arg-type]
    "too many requests": lambda: refusal(429),
    "it starts": lambda: refusal(503),
    "its store is away": lambda: refusal(500),
}


@pytest.mark.parametrize("why", AWAY)
def test_a_server_that_is_away_is_awaited(why: str) -> None:
    error = AWAY[why]
    assert phases(error(), seen("Running"), error(), error(), seen("Succeeded")) == ["Running", "Succeeded"]


def test_a_status_that_is_older_than_it_says_says_so() -> None:
    """The operator cannot write a newer one, where the custom resource is of an older version."""
    raw = seen("Waiting", "NoNodes")
    raw["status"]["conditions"][0] |= {"type": "StatusWritten", "status": "False", "message": "remedy: make deploy"}
    server: Any = Server(raw)
    assert runs.find_run(server, "physics", "gan").status.message == "NoNodes; remedy: make deploy"


def test_a_run_that_a_newer_rule_refuses_is_stopped_by_its_deletion() -> None:
    """Its workspace, say, is immutable and of a kind that is refused by now."""
    server: Any = Server(seen("Running"))
    server.merge = Mock(side_effect=refusal(422, "workspace is neither in a bucket nor; remedy: write gs://"))
    with pytest.raises(ClusterError, match="workspace is neither") as caught:
        runs.suspend(server, "physics", "gan")
    assert "caloscale stop gan -n physics --delete" in str(caught.value.remedy)


@pytest.mark.parametrize("status", [401, 403])
def test_what_is_refused_is_not_awaited(status: int) -> None:
    """Credentials that have expired, or rights that were taken away."""
    with pytest.raises(ClusterError, match="gan cannot be followed: you may not"):
        phases(seen("Running"), refusal(status, "you may not"), seen("Succeeded"))


def test_a_run_that_is_deleted_ends_it_without_rights_on_the_whole_cluster() -> None:
    with pytest.raises(ClusterError, match="gan is gone from namespace physics"):
        phases(seen("Running"), None, seen("Succeeded"))


def test_an_end_from_before_the_configuration_was_changed_is_not_the_end() -> None:
    """The operator has not seen yet that the budget was raised."""
    assert phases(seen("Failed", "Budget", changed=True), seen("Running"), seen("Succeeded")) == [
        "Running",
        "Succeeded",
    ]


SPEC = {"budget": {"maxUsd": 5}}
MORE = {"budget": {"maxUsd": 9}}


@pytest.mark.parametrize(
    ("there", "document", "refused"),
    [
        (None, SPEC, None),
        (seen("Running", spec=SPEC), SPEC, None),
        (seen("Succeeded", spec=SPEC), SPEC, "has succeeded"),
        (seen("Succeeded", spec=SPEC), MORE, "has succeeded"),
        (seen("Failed", "UserError", SPEC), MORE, "has failed"),
        (seen("Failed", "Budget", SPEC), SPEC, "change the field that it failed for"),
        (seen("Failed", "Budget", SPEC), MORE, None),
    ],
)
def test_a_finished_run_is_submitted_again_only_if_it_resumes(
    there: Answer, document: dict[str, Any], refused: str | None
) -> None:
    server: Any = Server(there)
    manifest = {"metadata": {"name": "gan", "namespace": "physics"}, "spec": document}
    if refused is None:
        found, changes = runs.check(server, manifest)
        assert (found is None) == (there is None)
        assert changes == (["budget.maxUsd: 5 -> 9"] if found is not None and document is MORE else [])
    else:
        with pytest.raises(InputError, match=refused) as problem:
            runs.check(server, manifest)
        assert problem.value.exit_code == 2 and "caloscale stop gan -n physics --delete" in str(problem.value)
    assert not server.changes


@pytest.mark.parametrize(
    ("checked", "now", "refused"),
    [
        (None, None, None),
        (None, seen("Pending", spec=SPEC), "was made in namespace physics"),
        (seen("Running", spec=SPEC), seen("Running", spec=SPEC), None),
        (seen("Running", spec=SPEC), seen("Recovering", spec=SPEC, version="8"), None),
        (seen("Running", spec=SPEC), seen("Running", spec=MORE, version="8"), "was changed in namespace physics"),
    ],
)
def test_what_was_checked_is_submitted_unless_another_was_quicker(
    checked: Answer, now: Answer, refused: str | None
) -> None:
    """Of two submissions of a name in the same second, both said that they had submitted, and the later one counted."""
    server: Any = Server(checked, now)
    manifest = {"metadata": {"name": "gan", "namespace": "physics"}, "spec": MORE}
    found, _ = runs.check(server, manifest)
    if refused is None:
        runs.submit_checked(server, manifest, found)
        assert [what for what, _ in server.changes] == ["apply"]
    else:
        with pytest.raises(InputError, match=refused) as problem:
            runs.submit_checked(server, manifest, found)
        assert "gan" in str(problem.value) and not server.changes


@pytest.mark.parametrize(("epochs", "says"), [(3, "in train.epochs: 42 -> 3"), (None, "not state all of them (")])
def test_a_field_that_differs_from_a_run_of_a_preset_alone_is_named(epochs: int | None, says: str) -> None:
    """Made with kubectl; the server names blocks."""
    there = {"model": {"preset": "compact"}, "hardware": {}}
    server: Any = Server(seen("Running", spec=there))
    server.apply = Mock(side_effect=refusal(422, "model cannot be changed: checkpoints and bill belong to it"))
    run = build_any_run({**there, "train": {"epochs": epochs}} if epochs else there)
    with pytest.raises(ClusterError, match="model cannot be changed") as problem:
        runs.check(server, runs.manifest_of(run, "gan", "physics"))
    assert says in str(problem.value) and problem.value.exit_code == 4


@pytest.mark.parametrize("on", [True, False])
@pytest.mark.parametrize("run", [seen("Succeeded"), seen("Failed", "UserError"), seen("Failed", "Budget")])
def test_a_finished_run_neither_stops_nor_resumes(run: Answer, on: bool) -> None:
    server: Any = Server(run)
    with pytest.raises(InputError, match="cannot be stopped" if on else "cannot be resumed"):
        runs.suspend(server, "physics", "gan", on=on)
    assert not server.changes


@pytest.mark.parametrize("phase", ["Suspended", "Running", "Waiting"])
def test_another_does(phase: str) -> None:
    server: Any = Server(seen(phase))
    assert runs.suspend(server, "physics", "gan", on=False) == (phase == "Suspended")
    assert server.changes == [
        (
            "merge",
            {"spec": {"cluster": {"suspend": False}}, "metadata": {"annotations": {runs.names.CLIENT_HEARTBEAT: None}}},
        )
    ]


@pytest.mark.parametrize("name", ["", "..", "gan/status", "gan?dryRun=All"])
def test_a_name_that_is_another_address_on_the_server_is_no_run(name: str) -> None:
    """A merge into gan/status succeeds and changes nothing."""
    server: Any = Server(seen("Running"))
    server.each = lambda *_, **__: iter([seen("Running")])
    with pytest.raises(ClusterError, match=r"no run .* in namespace physics") as problem:
        runs.suspend(server, "physics", name)
    assert "one of: gan" in str(problem.value) and not server.changes
