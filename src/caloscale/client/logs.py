"""Logs of all workers of a run, each line with its worker."""

import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from caloscale.client.runs import ask, find_run
from caloscale.cluster import names
from caloscale.connection import Connection
from caloscale.status import FINISHED

POLL_SECONDS = 2.0
_END = None


def logs(
    connection: Connection, namespace: str, name: str, *, follow: bool = False, tail: int | None = None
) -> Iterator[str]:
    """Lines ``worker | text`` of all workers; ``follow``: as they come, through restarts, until the run has finished.

    ``tail``: only so many of the last lines of each worker. Raises ClusterError when there is no such run.
    """
    uid_of_run = find_run(connection, namespace, name).uid
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    started: set[str] = set()
    open_streams = 0
    while True:
        for pod in _pods(connection, namespace, uid_of_run):
            uid = pod["metadata"]["uid"]
            if uid not in started and pod.get("status", {}).get("phase", "Pending") != "Pending":
                started.add(uid)
                open_streams += 1
                arguments = (connection, pod, lines, follow and pod["status"]["phase"] == "Running", tail)
                threading.Thread(target=_stream, args=arguments, daemon=True).start()
        finished = not follow or find_run(connection, namespace, name).status.phase in FINISHED
        deadline = time.monotonic() + POLL_SECONDS
        while open_streams and (finished or time.monotonic() < deadline):
            try:
                line = lines.get(timeout=POLL_SECONDS if finished else max(deadline - time.monotonic(), 0.01))
            except queue.Empty:
                if finished:
                    return  # a stream that does not end although its worker has
                continue
            if line is _END:
                open_streams -= 1
            else:
                yield line
        if finished and not open_streams:
            return
        if not open_streams:
            time.sleep(POLL_SECONDS)


def _pods(connection: Connection, namespace: str, run_uid: str) -> list[dict[str, Any]]:
    selector = f"{names.UID_LABEL}={run_uid}"
    found = ask(lambda: list(connection.each("Pod", namespace, selector=selector)), "its workers cannot be listed")
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def _stream(
    connection: Connection, pod: dict[str, Any], lines: queue.SimpleQueue[str | None], follow: bool, tail: int | None
) -> None:
    """Put the lines of a pod into the queue, then the end."""
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    containers = [each["name"] for each in pod["spec"]["containers"]]
    worker = next((each for each in containers if each in names.WORKER_CONTAINERS), containers[0])
    options: dict[str, Any] = {"container": worker, "follow": follow, "_preload_content": False}
    if tail is not None:
        options["tail_lines"] = tail
    try:
        answer = client.CoreV1Api(connection.api).read_namespaced_pod_log(name, namespace, **options)
        rest = b""
        for piece in answer.stream():
            *whole, rest = (rest + piece).split(b"\n")
            for line in whole:
                lines.put(f"{name} | {line.decode(errors='replace')}")
        if rest:
            lines.put(f"{name} | {rest.decode(errors='replace')}")
    except (ApiException, HTTPError, OSError) as error:
        lines.put(f"{name} | (no log: {getattr(error, 'reason', error)})")
    finally:
        lines.put(_END)
