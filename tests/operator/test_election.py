"""Who leads: two operators whose clocks differ, of which one is stopped and comes back. The server is a dictionary."""

import copy
import datetime as dt
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.client import ApiClient
from kubernetes.client.exceptions import ApiException

from caloscale.connection import Connection, FencedError
from caloscale.operator.election import LEASE_SECONDS, NAME, RENEW_SECONDS, RETRY_SECONDS, Election

NOON = dt.datetime(2026, 11, 21, 12, 0, tzinfo=dt.UTC)


class Server:
    """One lease, with optimistic locking."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.answers = True

    def get(self, *what: str) -> dict[str, Any] | None:
        self._answer()
        assert what == ("Lease", "caloscale-system", NAME)
        return copy.deepcopy(self.lease)

    def create(self, manifest: dict[str, Any]) -> None:
        self._answer()
        if self.lease is not None:
            raise ApiException(status=409, reason="AlreadyExists")
        self.lease = {**manifest, "metadata": {**manifest["metadata"], "resourceVersion": 1}}

    def merge(self, kind: str, namespace: str, name: str, change: dict[str, Any]) -> None:
        self._answer()
        assert self.lease is not None
        assert (kind, namespace, name) == ("Lease", "caloscale-system", NAME)
        version = self.lease["metadata"]["resourceVersion"]
        if change["metadata"]["resourceVersion"] != version:
            raise ApiException(status=409, reason="Conflict")
        self.lease["spec"].update(change["spec"])
        self.lease["metadata"]["resourceVersion"] = version + 1

    def _answer(self) -> None:
        if not self.answers:
            raise ApiException(status=503, reason="Unavailable")


class Clock:
    """Time that passes when the test says so; each operator has been up for another while, and has its own date."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def candidate(self, server: Server, identity: str, *, up_seconds: float = 0.0, hours_fast: float = 0.0) -> Election:
        return Election(
            server,  # type: ignore[arg-type]
            "caloscale-system",
            identity,
            clock=lambda: self.seconds + up_seconds,
            now=lambda: NOON + dt.timedelta(seconds=self.seconds, hours=hours_fast),
        )


@pytest.fixture
def server() -> Server:
    return Server()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("hours_fast", [-1.0, 0.0, 1.0])
def test_clocks_an_hour_apart(server: Server, clock: Clock, hours_fast: float) -> None:
    """Nobody takes the lease from a leader that renews it; it is taken when it was not renewed for its duration."""
    leader = clock.candidate(server, "a")
    other = clock.candidate(server, "b", up_seconds=1e6, hours_fast=hours_fast)
    assert leader.renew()
    for _ in range(30):
        clock.seconds += RETRY_SECONDS
        assert leader.renew() and not other.renew()
    seen = clock.seconds
    while not other.renew():
        clock.seconds += RETRY_SECONDS
    assert LEASE_SECONDS <= clock.seconds - seen < LEASE_SECONDS + 2 * RETRY_SECONDS


def test_a_lease_that_runs_out_is_taken_at_once(server: Server, clock: Clock) -> None:
    """Not up to a pause later: counted from when it was seen to change, also by one that is not to take it yet."""
    leader, other = clock.candidate(server, "a"), clock.candidate(server, "b")
    assert leader.renew() and not other.renew()
    clock.seconds += RETRY_SECONDS - 0.5
    assert leader.renew()
    ready, ended, looked = threading.Event(), threading.Event(), clock.seconds + 0.25

    def wait(seconds: float) -> bool:
        assert 0 < seconds <= RETRY_SECONDS
        clock.seconds += seconds
        if clock.seconds > looked + 10:
            ready.set()
        return clock.seconds > looked + 60

    ended.wait = wait  # type: ignore[assignment, method-assign]
    clock.seconds = looked
    assert other.acquire(ended, ready.is_set) and clock.seconds == looked + LEASE_SECONDS


def test_a_lease_is_left_to_others_until_everything_is_known(server: Server, clock: Clock) -> None:
    """Also that of a process of the same name, which was killed: a standby takes it meanwhile."""
    clock.candidate(server, "a").renew()
    again, standby, ended = clock.candidate(server, "a"), clock.candidate(server, "b"), threading.Event()
    seconds: list[float] = []

    def wait(pause: float) -> bool:
        clock.seconds += pause
        seconds.append(pause)
        return standby.renew()

    ended.wait = wait  # type: ignore[assignment, method-assign]
    assert not again.acquire(ended, lambda: False) and not again.leads and standby.leads
    assert LEASE_SECONDS <= sum(seconds) <= LEASE_SECONDS + RETRY_SECONDS
    assert clock.candidate(server, "b").acquire(threading.Event(), lambda: True)


def test_a_lease_says_when_it_was_renewed_and_for_how_long_it_is(server: Server, clock: Clock) -> None:
    leader, other = clock.candidate(server, "a"), clock.candidate(server, "b")
    for seconds in (0.0, RETRY_SECONDS):
        clock.seconds = seconds
        assert leader.renew() and server.lease is not None
        spec = server.lease["spec"]
        renewed = dt.datetime.strptime(spec["renewTime"], "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=dt.UTC)
        assert renewed == NOON + dt.timedelta(seconds=seconds)
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"]) == ("a", LEASE_SECONDS)
    del spec["leaseDurationSeconds"]  # of another program
    assert not other.renew()
    clock.seconds += LEASE_SECONDS - 1
    assert not other.renew()
    clock.seconds += 1
    assert other.renew()


def test_a_leader_that_was_stopped_does_not_lead_when_it_comes_back(server: Server, clock: Clock) -> None:
    """It ends instead, also when nobody else has taken the lease meanwhile."""
    leader = clock.candidate(server, "a")
    assert leader.renew() and leader.leads
    clock.seconds += RENEW_SECONDS
    assert not leader.leads
    before = copy.deepcopy(server.lease)
    lost: list[bool] = []
    leader._stop.wait = lambda _: False  # type: ignore[assignment, method-assign, misc]
    leader.keep(lambda: lost.append(True))
    assert lost == [True] and server.lease == before
    leader.release()
    assert server.lease == before


def test_nobody_writes_after_the_deadline(server: Server, clock: Clock) -> None:
    """A write that begins at the last moment has ended, by its time-out, before another may take the lease."""
    leader, asked = clock.candidate(server, "a"), []

    def request(method: str, path: str, body: Any, **options: Any) -> SimpleNamespace:
        asked.append((method, options["_request_timeout"]))
        assert body == ({"propagationPolicy": "Background"} if method == "DELETE" else None)
        assert path == "/apis/kubeflow.org/v1/namespaces/physics/tfjobs/gan-1"
        return SimpleNamespace(data=b'{"kind": "TFJob", "metadata": {"name": "gan-1"}}')

    connection = Connection(ApiClient())
    connection._client.request = request
    connection.may_write = lambda: leader.leads
    assert leader.renew()
    clock.seconds += RENEW_SECONDS - 0.1
    connection.delete("TFJob", "physics", "gan-1")
    ((_, limit),) = asked
    assert RENEW_SECONDS + limit <= LEASE_SECONDS
    clock.seconds += 0.1
    with pytest.raises(FencedError):
        connection.delete("TFJob", "physics", "gan-1")
    connection.get("TFJob", "physics", "gan-1")
    assert [method for method, _ in asked] == ["DELETE", "GET"]


def test_a_server_that_does_not_answer_is_waited_for_until_the_deadline(server: Server, clock: Clock) -> None:
    leader, lost = clock.candidate(server, "a"), []
    assert leader.renew()
    server.answers = False

    def wait(seconds: float) -> bool:
        clock.seconds += seconds
        return False

    leader._stop.wait = wait  # type: ignore[assignment, method-assign]
    leader.keep(lambda: lost.append(clock.seconds))
    assert lost == [RENEW_SECONDS]


def test_of_two_that_ask_at_once_one_leads(server: Server, clock: Clock) -> None:
    first, second = clock.candidate(server, "a"), clock.candidate(server, "b")
    server.get = lambda *_: None  # type: ignore[method-assign]  # both saw no lease
    assert first.renew() and not second.renew() and not second.leads


def test_an_operator_that_waits_ends_when_it_is_asked_to(server: Server, clock: Clock) -> None:
    first, second, ended = clock.candidate(server, "a"), clock.candidate(server, "b"), threading.Event()
    assert first.acquire(ended)
    ended.set()
    assert not second.acquire(ended) and not second.leads
    pauses: list[float] = []
    ended.wait = lambda seconds: bool(pauses.append(seconds)) or len(pauses) == 3  # type: ignore[assignment, method-assign, func-returns-value, misc]
    assert not second.acquire(ended) and pauses == [RETRY_SECONDS] * 3


def test_a_lease_that_is_given_back_is_free(server: Server, clock: Clock) -> None:
    first, second = clock.candidate(server, "a"), clock.candidate(server, "b")
    assert first.renew() and not second.renew()
    first.release()
    assert not first.leads and second.renew() and second.leads
    assert server.lease is not None and server.lease["metadata"]["name"] == NAME


@pytest.mark.parametrize("answered", [True, False])
def test_a_leader_that_is_asked_to_end_during_a_renewal_gives_the_lease_back(
    server: Server, clock: Clock, answered: bool
) -> None:
    """Not an end by a lost lease, and no renewal after it; whether or not the server answers the renewal."""
    leader, lost = clock.candidate(server, "a"), []
    assert leader.renew()
    asked, may_answer = threading.Event(), threading.Event()
    get = server.get

    def slow_get(*names: str) -> dict[str, Any] | None:
        if threading.current_thread() is renewal and not asked.is_set():
            found = get(*names)
            asked.set()
            may_answer.wait(10)
            if not answered:
                raise ApiException(status=503, reason="Unavailable")
            return found
        return get(*names)

    server.get = slow_get  # type: ignore[method-assign]
    stop_wait = leader._stop.wait
    leader._stop.wait = lambda _: stop_wait(0)  # type: ignore[assignment, method-assign, misc]
    renewal = threading.Thread(target=leader.keep, args=(lambda: lost.append(True),))
    renewal.start()
    assert asked.wait(10)
    end = threading.Thread(target=leader.release)
    end.start()
    assert stop_wait(10)
    may_answer.set()
    for thread in (renewal, end):
        thread.join(10)
    assert lost == [] and not leader.leads and not leader.renew()
    assert server.lease is not None and server.lease["spec"]["holderIdentity"] == ""


def test_a_lease_is_held_from_when_its_renewal_was_asked_for(server: Server, clock: Clock) -> None:
    """Not from the answer: another operator counts from what it saw of the change, which may be earlier."""
    leader, get = clock.candidate(server, "a"), server.get

    def slow_get(*names: str) -> dict[str, Any] | None:
        clock.seconds += 4
        return get(*names)

    server.get = slow_get  # type: ignore[method-assign]
    assert leader.renew()
    clock.seconds += RENEW_SECONDS - 4.1
    assert leader.leads
    clock.seconds += 0.1
    assert not leader.leads
