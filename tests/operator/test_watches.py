"""Lists and watches: pages, bookmarks, versions that are too old, errors. The API server is a list of answers."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import ReadTimeoutError

from caloscale.cluster import names
from caloscale.connection import PAGE, Connection
from caloscale.operator.watches import MOST_RESUMED, NOT_INSTALLED_SECONDS, RETRY_SECONDS, WATCHED, Watches

Answer = dict[str, Any] | list[dict[str, Any]] | Exception


def page(version: int, *names: str, token: str = "") -> dict[str, Any]:
    metadata = {"resourceVersion": str(version), "continue": token}
    items = [{"metadata": {"name": name, "resourceVersion": "1"}} for name in names]
    return {"apiVersion": "v1", "metadata": metadata, "items": items}


def event(kind: str, version: int, name: str = "n") -> dict[str, Any]:
    return {"type": kind, "object": {"metadata": {"name": name, "resourceVersion": str(version)}}}


BROKEN = {"type": "ERROR", "object": {"code": 500}}
EXPIRED = {"type": "ERROR", "object": {"code": 410, "message": "too old resource version"}}


class Cluster:
    """Answers requests one after another, and ends the watches when it has no more answers."""

    def __init__(self, *answers: Answer, kind: str = "Node", namespace: str = "") -> None:
        self.answers, self.asked, self.pauses = list(answers), [], []
        self.kind = kind
        self.noticed: list[tuple[str, bool]] = []
        self.lists: list[list[str]] = []
        connection = Connection(ApiClient())
        connection._client.request = self._request
        self.watches = Watches(connection, self._notice, self._listed, (), 300.0)
        self.watches._stop.wait = self._wait  # type: ignore[assignment, method-assign]
        self.watches._follow(kind, namespace)

    def _request(self, method: str, path: str, body: Any, query_params: Any, **options: Any) -> Any:
        if not self.answers:
            self.watches.stop()
            raise ApiException(status=500)
        self.asked.append(dict(query_params))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, dict):
            return SimpleNamespace(data=json.dumps(answer | {"kind": f"{self.kind}List"}))
        lines = "".join(json.dumps(line) + "\n" for line in answer).encode()
        return SimpleNamespace(stream=lambda **_: iter([lines]), close=lambda: None)

    def _notice(self, kind: str, raw: dict[str, Any], gone: bool) -> None:
        self.noticed.append((raw["metadata"]["name"], gone))

    def _listed(self, kind: str, namespace: str, pages: Any) -> int:
        version = 0
        self.lists.append([])
        for each in pages:
            version = each.version
            self.lists[-1] += [raw["metadata"]["name"] for raw in each.objects]
        return version

    def _wait(self, seconds: float) -> bool:
        if self.answers or not self.watches._stop.is_set():
            self.pauses.append(seconds)
        return self.watches._stop.is_set()

    @property
    def versions(self) -> list[str | None]:
        """The version that each watch began at; None for a page of a list."""
        return [query.get("resourceVersion") for query in self.asked]


def test_a_list_is_taken_in_page_by_page_and_watched_from_its_version() -> None:
    seen = Cluster(page(7, "a", "b", token="t"), page(7, "c"), [event("ADDED", 8, "d"), event("DELETED", 9, "a")])
    assert seen.lists == [["a", "b", "c"]] and seen.noticed == [("d", False), ("a", True)]
    first, second, watch = seen.asked
    assert first == {"limit": PAGE} and second == {"limit": PAGE, "continue": "t"}
    assert watch == {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "7", "timeoutSeconds": "300"}


@pytest.mark.parametrize(
    "end", [[event("ADDED", 8), event("BOOKMARK", 12)], [event("BOOKMARK", 12)], [event("ADDED", 12)]]
)
def test_a_watch_goes_on_from_the_last_event_or_bookmark(end: list[dict[str, Any]]) -> None:
    """Its end is nothing that anything has to be listed for."""
    seen = Cluster(page(7), end, [event("ADDED", 13, "late")])
    assert seen.versions == [None, "7", "12"] and seen.pauses[:2] == [0.0, 0.0]
    assert ("late", False) in seen.noticed and len(seen.noticed) == sum(e["type"] != "BOOKMARK" for e in end) + 1


def test_a_watch_that_ends_at_once_is_not_begun_again_at_once() -> None:
    assert Cluster(page(7), [], [event("BOOKMARK", 8)]).pauses[:2] == [0.0, RETRY_SECONDS]


@pytest.mark.parametrize("expired", [ApiException(status=410), [event("ADDED", 8, "a"), EXPIRED]])
def test_after_gone_everything_is_listed(expired: Answer) -> None:
    seen = Cluster(page(7, "a"), expired, page(20, "b"), [event("ADDED", 21, "c")])
    assert seen.lists == [["a"], ["b"]] and seen.versions == [None, "7", None, "20"]
    assert seen.pauses[:3] == [0.0, 0.0, 0.0]


def test_a_list_whose_next_page_has_expired_is_begun_again_after_a_pause() -> None:
    seen = Cluster(page(7, "a", token="t"), ApiException(status=410), page(9, "b"), [event("BOOKMARK", 10)])
    assert seen.versions == [None, None, None, "9"] and seen.pauses[0] == RETRY_SECONDS


@pytest.mark.parametrize(
    "error",
    [ApiException(status=500), ApiException(status=429), ReadTimeoutError(None, "", ""), ConnectionError()],  # type: ignore[arg-type]
)
def test_a_passing_error_resumes_the_watch_and_many_in_a_row_list_anew(error: Exception) -> None:
    seen = Cluster(page(7), error, [event("ADDED", 8), BROKEN], *[error] * MOST_RESUMED, page(9))
    assert seen.versions == [None, "7", "7", *["8"] * MOST_RESUMED, None]
    assert seen.pauses[: len(seen.asked) - 1] == [0.0, *[RETRY_SECONDS] * (MOST_RESUMED + 2)]


@pytest.mark.parametrize("error", [ApiException(status=403), ApiException(status=400)])
def test_what_the_server_refuses_is_listed_anew(error: Exception) -> None:
    assert Cluster(page(7), error, page(9)).versions == [None, "7", None]


def test_what_is_forbidden_again_is_looked_for_later() -> None:
    """The runs of a namespace that was deleted with its RoleBinding: they would fill the log."""
    forbidden = ApiException(status=403)
    seen = Cluster(forbidden, forbidden, forbidden, page(7), forbidden, page(9))
    assert seen.pauses[:5] == [RETRY_SECONDS, NOT_INSTALLED_SECONDS, NOT_INSTALLED_SECONDS, 0.0, RETRY_SECONDS]


def test_a_kind_that_the_cluster_does_not_know_is_looked_for_later() -> None:
    unknown = ApiException(status=404)
    unknown.body = "404 page not found\n"
    seen = Cluster(unknown, page(3), [event("BOOKMARK", 4)], kind="TFJob")
    assert seen.pauses[0] == NOT_INSTALLED_SECONDS and seen.versions == [None, None, "3"]
    assert seen.asked[0]["labelSelector"] == seen.asked[2]["labelSelector"] == "caloscale.dev/run"


def test_an_error_of_ours_lists_anew_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    seen = Cluster(page(7), [{"type": "ADDED", "object": {}}], page(9))
    assert seen.versions == [None, "7", None] and "an error of ours" in caplog.text


@pytest.mark.parametrize("kind", ["Event", names.KIND])
def test_runs_are_listed_after_what_is_theirs_and_warnings_after_the_runs(kind: str) -> None:
    begun = Watches(None, None, None, ("a", "b"), 1.0)  # type: ignore[arg-type]
    last = {"Event"} if kind == "Event" else {"Event", names.KIND}
    own = {(other, "a") for other in WATCHED if other not in ("Node", "Pod")}
    assert begun._unlisted == own | {(other, "b") for other, _ in own} | {("Node", ""), ("Pod", "")}
    steps: list[float] = []

    def wait(seconds: float) -> bool:
        steps.append(seconds)
        for other in [other for other, name in begun._unlisted if other not in last and name == "a"][:1]:
            begun._unlisted.discard((other, "a"))
        return False

    def stop(*_: object) -> int:
        begun.stop()
        return 5

    begun._stop.wait, begun._list = wait, stop  # type: ignore[assignment, method-assign]
    begun._follow(kind, "a")
    assert len(steps) == len(own) - len(last) + 1  # the last one is the pause after the list
    assert {other for other, name in begun._unlisted if name == "a"} == last


def test_a_namespace_that_may_not_be_read_keeps_no_other_waiting() -> None:
    forbidden = ApiException(status=403)
    begun = Watches(None, None, None, ("a", "b"), 1.0)  # type: ignore[arg-type]
    begun._unlisted = {(kind, name) for kind, name in begun._unlisted if name == "b"}
    assert not begun.are_listed() and begun._is_later(names.KIND, "b")
    follow_once(begun, "TFJob", "b", ApiException(status=500))
    assert not begun.are_listed(), "the server may answer soon"
    follow_once(begun, "TFJob", "b", forbidden)
    assert begun.are_listed() and begun._is_later(names.KIND, "b"), "nothing is decided about runs of b"
    for kind in WATCHED:
        follow_once(begun, kind, "b", None)
    assert begun.are_listed() and not begun._unlisted and not begun._refused

    begun._unlisted.add(("TFJob", "b"))
    for name in ("a", "b"):
        follow_once(begun, "TFJob", name, forbidden)
    assert not begun.are_listed(), "an operator that may read nothing is not ready"
    of_all = Watches(None, None, None, (), 1.0)  # type: ignore[arg-type]
    follow_once(of_all, "TFJob", "", forbidden)
    of_all._unlisted = {("TFJob", "")}
    assert not of_all.are_listed()


def follow_once(watches: Watches, kind: str, namespace: str, error: Exception | None) -> None:
    """One list of a scope, answered by an error or by nothing."""

    def listed(*_: object) -> int:
        watches.stop()
        if error is not None:
            raise error
        return 5

    watches._stop.clear()
    watches._listed, watches._connection = listed, SimpleNamespace(pages=lambda *_, **__: [])  # type: ignore[assignment]
    watches._is_later = lambda *_: False  # type: ignore[method-assign]
    watches._follow(kind, namespace)
    del watches._is_later


def test_a_watch_of_warnings_ends_before_its_silence_is_an_error() -> None:
    """The API server sends no bookmarks of events."""
    seen = Cluster()
    seen.kind, seen.answers = "Event", [page(7), [], []]
    seen.watches._unlisted.clear()
    seen.watches._stop.clear()
    seen.watches._follow("Event", "")
    assert [query.get("timeoutSeconds") for query in seen.asked] == [None, "60", "60"]


def test_everything_is_listed_once_each_scope_was() -> None:
    seen = Cluster(page(7), [event("BOOKMARK", 8)])
    assert ("Node", "") not in seen.watches._unlisted and not seen.watches.are_listed()
    seen.watches._unlisted.clear()
    assert seen.watches.are_listed()


def test_a_kind_is_listed_again_where_it_is_asked_for() -> None:
    """Labels of nodes mean something else."""
    cluster = Cluster()
    cluster.watches._stop.clear()
    cluster.watches._notice = lambda *_: cluster.watches.list_again("Node")  # type: ignore[assignment]
    cluster.answers = [page(7), [event("ADDED", 8)], page(9), [event("BOOKMARK", 10)]]
    cluster.watches._follow("Node", "")
    assert cluster.versions == [None, "7", None, "9"]


def test_nothing_is_noticed_after_the_stop() -> None:
    seen: list[str] = []
    cluster = Cluster()
    cluster.watches._notice = lambda *_: (seen.append("event"), cluster.watches.stop())  # type: ignore[assignment, return-value, func-returns-value]
    cluster.watches._stop.clear()
    cluster.answers = [page(7), [event("ADDED", 8), event("ADDED", 9)], [event("ADDED", 10)]]
    cluster.watches._follow("Node", "")
    assert seen == ["event"] and len(cluster.answers) == 1
