"""Logs of the workers of a run: as they are, or as they come, through restarts and broken connections."""

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError, MaxRetryError

from caloscale.client.runs import POLL_SECONDS, ask, find_run, is_final
from caloscale.cluster import names
from caloscale.cluster.capacity.pods import ENDED
from caloscale.connection import Connection, Object, message_of
from caloscale.errors import ClusterError
from caloscale.status import FINISHED

MOST_TRIES = 3
"""How often the log of a worker that has ended is asked for."""
NO_LOG = (400, 404)
"""Statuses of answers about a worker that never started, or is gone: there is nothing to read."""


class _Reader(threading.Thread):
    """Puts the lines of a worker into a queue. A broken stream is resumed; the last begins after the worker's end."""

    def __init__(self, connection: Connection, pod: Object, lines: queue.SimpleQueue[str], tail: int | None) -> None:
        super().__init__(daemon=True)
        self.worker = str(pod["metadata"]["name"])
        containers = [each["name"] for each in pod["spec"]["containers"]]
        container = next((each for each in containers if each in names.WORKER_CONTAINERS), containers[0])
        self._connection, self._lines, self._tail = connection, lines, tail
        self._pod = (str(pod["metadata"]["namespace"]), self.worker, container)
        self.ended = False
        """Whether the worker writes no more, so that the next stream is the last one."""
        self.problem = ""
        """Why lines may be missing."""
        self._last = ""
        """Time of the newest line that was printed."""
        self._report = ""
        """The kubelet's own last report, such as a lack of inotify watches, which comes with each stream."""

    def run(self) -> None:
        """Until all lines are read, or cannot be."""
        tries, rest = 0, b""
        while tries < MOST_TRIES:
            last = self.ended
            tries += last
            since, tail = self._last, self._tail
            try:
                for line in self._connection.log(*self._pod, follow=not last, tail=tail, since=since):
                    rest = b"" if line.endswith(b"\n") else line  # a stream may have broken here
                    if not rest:
                        self._print(line, since)
                self.problem = ""
                if self._tail and not rest:  # the worker had written nothing before a stream without lines
                    self._tail = None
                if last:
                    break
            except (ApiException, HTTPError, OSError) as error:
                known, self.problem = self.problem, message_of(error)
                if isinstance(error, ApiException) and self.problem != known:
                    self._lines.put(f"{self.worker} | (no log: {self.problem})")
                if isinstance(error, ApiException) and error.status in NO_LOG:
                    self.problem = known
                    break
                if self._tail and not rest and not isinstance(error, (ApiException, MaxRetryError)):
                    self._tail = None  # the stream was open
            time.sleep(POLL_SECONDS)
        if rest:
            self._print(rest)

    def _print(self, line: bytes, since: str = "") -> None:
        """``since``: lines up to this time were printed; the server sends those of its second again."""
        stamp, _, text = line.decode(errors="replace").removesuffix("\n").partition(" ")
        if not stamp[:1].isdigit():  # what a kubelet has to report itself has no time
            text = f"{stamp} {text}"
            if text == self._report:
                return
            self._report = text
        elif stamp <= since:
            return
        else:
            self._last, self._tail = max(stamp, self._last), None
        self._lines.put(f"{self.worker} | {text}")


def logs(
    connection: Connection, namespace: str, name: str, *, follow: bool = False, tail: int | None = None
) -> Iterator[str]:
    """Lines ``worker | text`` of all workers; ``follow``: as they come, through restarts, until the run has finished.

    ``tail``: only so many of the last lines of each worker. Raises ClusterError when there is no such run, and at the
    end where lines may be missing.
    """
    of_run = f"{names.UID_LABEL}={find_run(connection, namespace, name).uid}"
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    readers: dict[str, _Reader] = {}
    finished = False
    while not finished:
        try:
            finished = not follow or find_run(connection, namespace, name).status.phase in FINISHED
            workers = ask(
                lambda: list(connection.each("Pod", namespace, selector=of_run)), "its workers cannot be listed"
            )
        except ClusterError as error:
            if not follow or is_final(error.__cause__):
                raise
            finished = False
            time.sleep(POLL_SECONDS)
            continue
        pods = {pod["metadata"]["uid"]: pod for pod in workers}
        phases = {uid: pod.get("status", {}).get("phase", "Pending") for uid, pod in pods.items()}
        for uid in [uid for uid in pods if phases[uid] != "Pending" and uid not in readers]:
            readers[uid] = _Reader(connection, pods[uid], lines, tail)
        for uid, reader in readers.items():
            reader.ended |= finished or phases.get(uid, ENDED[0]) in ENDED
            if reader.ident is None:
                reader.start()
        deadline = time.monotonic() + POLL_SECONDS
        while any(reader.is_alive() for reader in readers.values()) if finished else time.monotonic() < deadline:
            with suppress(queue.Empty):
                yield lines.get(timeout=0.05 if finished else max(deadline - time.monotonic(), 0.01))
    while not lines.empty():
        yield lines.get()
    if problems := sorted(f"{reader.worker}: {reader.problem}" for reader in readers.values() if reader.problem):
        remedy = f"caloscale logs {name} -n {namespace} once more, where its pods are still there"
        raise ClusterError(f"lines of the logs may be missing: {'; '.join(problems)}", remedy=remedy)
