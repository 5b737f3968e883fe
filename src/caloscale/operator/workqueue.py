"""Keys that are due at some time, as in client-go's util/workqueue: delayed, never twice at once, with a back-off."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")

RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses after failures in a row, s."""


class WorkQueue(Generic[Key]):
    """Keys with the time at which they are due. All methods may be called by several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds."""
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[Key, float] = {}
        self._heap: list[tuple[float, Key]] = []
        self._processed: set[Key] = set()
        self._failures: dict[Key, int] = {}

    def add(self, key: Key, seconds: float = 0.0) -> None:
        """The key is due in so many seconds, or earlier where it was added so already."""
        due = self._clock() + seconds
        with self._changed:
            if due < self._due.get(key, float("inf")):
                self._due[key] = due
                heapq.heappush(self._heap, (due, key))
                self._changed.notify()

    def get(self, seconds: float) -> Key | None:
        """The key that is due first, waited for at most so many seconds; nobody else gets it before `done`."""
        until = self._clock() + seconds
        with self._changed:
            while True:
                now = self._clock()
                while self._heap and self._heap[0][0] <= now:
                    due, key = heapq.heappop(self._heap)
                    # another time counts by now, or `done` puts it back
                    if self._due.get(key) != due or key in self._processed:
                        continue
                    del self._due[key]
                    self._processed.add(key)
                    return key
                if now >= until:
                    return None
                self._changed.wait(min(self._heap[0][0] if self._heap else until, until) - now)

    def done(self, key: Key) -> None:
        """The key was processed; it is due again if it was added meanwhile."""
        with self._changed:
            self._processed.discard(key)
            if key in self._due:
                heapq.heappush(self._heap, (self._due[key], key))
                self._changed.notify()

    def retry(self, key: Key) -> float:
        """After a failure: how long to pause, s; longer with each one in a row."""
        with self._changed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
        return RETRY_SECONDS[min(count, len(RETRY_SECONDS)) - 1]

    def forget(self, key: Key) -> None:
        """After a success: the next failure is the first one."""
        with self._changed:
            self._failures.pop(key, None)
