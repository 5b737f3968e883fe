"""Logs of the workers of a run: as they are, or as they come, through restarts and broken connections."""

import datetime as dt
import queue
import threading
import time
from collections.abc import Iterator

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from caloscale.client.runs import POLL_SECONDS, ask, find_run, is_final
from caloscale.cluster import names
from caloscale.cluster.capacity.pods import ENDED
from caloscale.connection import Connection, Object, message_of
from caloscale.errors import ClusterError
from caloscale.status import FINISHED

MOST_TRIES = 3
"""The whole log of a worker is asked for so often."""
KEPT_SECONDS = 10
"""A stream is resumed from the second of its last line; lines of two streams of a container may be out of order."""
NO_LOG = (400, 404)
"""Answers about a worker that never started, or is gone: there is nothing to read."""

_Lines = queue.SimpleQueue[tuple["_Log", int, bytes | Exception | None]]


class _Log:
    """The log of a worker as far as it was printed. A stream of it that breaks is resumed by another one."""

    def __init__(self, pod: Object) -> None:
        self.name, self.namespace = str(pod["metadata"]["name"]), str(pod["metadata"]["namespace"])
        containers = [each["name"] for each in pod["spec"]["containers"]]
        self.container = next((each for each in containers if each in names.WORKER_CONTAINERS), containers[0])
        self.is_open = self.is_complete = self.follows = False
        self.problem = ""
        """Why lines may be missing."""
        self.tries = 0
        self._stream = 0
        self._printed: dict[dt.datetime, int] = {}
        self._newest: dt.datetime | None = None
        self._to_skip = 0
        self._rest = b""

    def open(self, connection: Connection, lines: _Lines, *, follow: bool, tail: int | None) -> None:
        """Read on, from the last line that was printed; what another stream still brings does not count any more."""
        self.is_open, self.follows = True, follow
        self.tries += not follow
        self._stream += 1
        since = next(reversed(self._printed), None)
        self._to_skip = sum(count for second, count in self._printed.items() if since and second >= since)
        self._rest = b""
        options = {"follow": follow, "tail": tail if self._stream == 1 else None, "since": since}
        arguments = (connection, self, self._stream, lines, options)
        threading.Thread(target=_read, args=arguments, daemon=True).start()

    def take(self, stream: int, brought: bytes | Exception | None) -> str | None:
        """Take in a line, the end of a stream (None) or its failure; returns what is to be printed."""
        if stream != self._stream:
            return None
        if isinstance(brought, bytes):
            if not brought.endswith(b"\n"):  # a stream may have broken here
                self._rest = brought
                return None
            return self._text_of(brought)
        self.is_open = False
        if brought is None:
            self.problem, self.is_complete = "", not self.follows
            return self.rest() if self.is_complete else None
        known, self.problem = self.problem, message_of(brought)
        if not isinstance(brought, ApiException) or self.problem == known:
            return None
        if brought.status in NO_LOG:
            self.is_complete, self.problem = True, ""
            if self._stream > 1:
                return self.rest()
        return f"{self.name} | (no log: {message_of(brought)})"

    def rest(self) -> str | None:
        """The last line, which has no end; None where there is none."""
        rest, self._rest = self._rest, b""
        return self._text_of(rest) if rest else None

    def _text_of(self, line: bytes) -> str | None:
        stamp, _, text = line.decode(errors="replace").removesuffix("\n").partition(" ")
        try:
            moment = dt.datetime.fromisoformat(stamp)
        except ValueError:  # what a kubelet has to report itself has no time
            return f"{self.name} | {stamp} {text}"
        if self._to_skip and self._newest is not None and moment <= self._newest:
            self._to_skip -= 1
            return None
        self._newest = max(moment, self._newest or moment)
        second = moment.replace(microsecond=0)
        self._printed[second] = self._printed.pop(second, 0) + 1  # behind the others: a stream is resumed from there
        if len(self._printed) > KEPT_SECONDS:
            del self._printed[next(iter(self._printed))]
        return f"{self.name} | {text}"


def logs(
    connection: Connection, namespace: str, name: str, *, follow: bool = False, tail: int | None = None
) -> Iterator[str]:
    """Lines ``worker | text`` of all workers; ``follow``: as they come, through restarts, until the run has finished.

    ``tail``: only so many of the last lines of each worker. Raises ClusterError when there is no such run, and at the
    end where lines may be missing.
    """
    run_uid = find_run(connection, namespace, name).uid
    lines: _Lines = queue.SimpleQueue()
    read: dict[str, _Log] = {}
    while True:
        try:
            finished = not follow or find_run(connection, namespace, name).status.phase in FINISHED
            pods = {pod["metadata"]["uid"]: pod for pod in _pods(connection, namespace, run_uid)}
        except ClusterError as error:
            if not follow or is_final(error.__cause__):
                raise
            time.sleep(POLL_SECONDS)
            continue
        for uid, pod in pods.items():
            phase = pod.get("status", {}).get("phase", "Pending")
            if phase == "Pending":
                continue
            log = read.setdefault(uid, _Log(pod))
            if log.is_complete or log.tries >= MOST_TRIES or (log.is_open and not (finished and log.follows)):
                continue
            log.open(connection, lines, follow=not finished and phase not in ENDED, tail=tail)
        deadline = time.monotonic() + POLL_SECONDS
        while any(log.is_open for log in read.values()) and (finished or time.monotonic() < deadline):
            try:
                log, stream, brought = lines.get(timeout=max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                if all(log.follows for log in read.values() if log.is_open):
                    break  # of pods that are gone
                continue
            deadline = max(deadline, time.monotonic() + POLL_SECONDS) if finished else deadline
            if (text := log.take(stream, brought)) is not None:
                yield text
        for uid in read.keys() - pods.keys():
            if not read[uid].is_open and (text := read[uid].rest()) is not None:
                yield text
        unread = [read[uid] for uid in read.keys() & pods.keys() if not read[uid].is_complete]
        if finished and all(log.tries >= MOST_TRIES for log in unread):
            break
        if not any(log.is_open for log in read.values()):
            time.sleep(POLL_SECONDS)
    problems = {
        log.name: log.problem or "its stream has not ended" for log in read.values() if log.problem or log.is_open
    }
    if problems:
        what = "; ".join(f"{worker}: {problem}" for worker, problem in sorted(problems.items()))
        remedy = f"caloscale logs {name} -n {namespace} once more, where its pods are still there"
        raise ClusterError(f"lines of the logs may be missing: {what}", remedy=remedy)


def _pods(connection: Connection, namespace: str, run_uid: str) -> list[Object]:
    selector = f"{names.UID_LABEL}={run_uid}"
    found = ask(lambda: list(connection.each("Pod", namespace, selector=selector)), "its workers cannot be listed")
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def _read(connection: Connection, log: _Log, stream: int, lines: _Lines, options: dict[str, object]) -> None:
    """Put the lines of a stream into the queue, and how it ends."""
    end: Exception | None = None
    try:
        for line in connection.log(log.namespace, log.name, log.container, **options):  # type: ignore[arg-type]
            lines.put((log, stream, line))
    except (ApiException, HTTPError, OSError) as error:
        end = error
    lines.put((log, stream, end))
