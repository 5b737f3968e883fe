"""Runs from the outside, on an API server that answers as it is told; a real one is in tests/cluster/operator."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import MaxRetryError

from caloscale.client import runs
from caloscale.errors import ClusterError

Answer = dict[str, Any] | Exception | None


def seen(phase: str, message: str = "") -> dict[str, Any]:
    """A run as the API server has it."""
    status = {"phase": phase, "message": message}
    return {"metadata": {"name": "gan", "namespace": "physics"}, "spec": {}, "status": status}


def refusal(status: int, message: str = "no") -> ApiException:
    error = ApiException(status=status, reason="No")
    error.body = json.dumps({"message": message})
    return error


class Server:
    """Gives its answers one after the other; everything but reading this run is forbidden."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = iter(answers)

    def get(self, *_: object) -> dict[str, Any] | None:
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def each(self, *_: object, **__: object) -> Iterator[dict[str, Any]]:
        raise refusal(403, "may not list")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs.time, "sleep", lambda seconds: None)


def phases(*answers: Answer) -> list[str]:
    server: Any = Server(*answers)
    return [run.status.phase for run in runs.follow(server, "physics", "gan")]


def test_each_change_is_told_once_until_the_end() -> None:
    assert phases(seen("Waiting"), seen("Running"), seen("Running"), seen("Succeeded")) == [
        "Waiting",
        "Running",
        "Succeeded",
    ]


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


@pytest.mark.parametrize("status", [401, 403])
def test_what_is_refused_is_not_awaited(status: int) -> None:
    """Credentials that have expired, or rights that were taken away."""
    with pytest.raises(ClusterError, match="gan cannot be followed: you may not"):
        phases(seen("Running"), refusal(status, "you may not"), seen("Succeeded"))


def test_a_run_that_is_deleted_ends_it_without_rights_on_the_whole_cluster() -> None:
    with pytest.raises(ClusterError, match="gan is gone from namespace physics"):
        phases(seen("Running"), None, seen("Succeeded"))
