"""Keys that are due at some time, as in client-go's util/workqueue: delayed, never twice at once, with a back-off.

As in controller-runtime's priority queue, what an event asks for comes before what a list does.
"""

import heapq
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Key = TypeVar("Key")

RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Pauses after failures in a row, s."""


class Turns(Generic[Key]):
    """Turns at equal intervals, as of client-go's BucketRateLimiter. All methods may be called by several threads."""

    def __init__(self, per_second: float, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds."""
        self._seconds, self._clock, self._lock = 1 / per_second, clock, threading.Lock()
        self._next = float("-inf")
        self._turns: dict[Key, float] = {}

    def take(self, key: Key) -> float:
        """0.0: the key takes its turn now. Else: the seconds until its turn, which is kept for it."""
        with self._lock:
            now = self._clock()
            if key not in self._turns:
                self._turns[key] = max(self._next, now)
                self._next = self._turns[key] + self._seconds
            if self._turns[key] > now:
                return self._turns[key] - now
            del self._turns[key]
            return 0.0

    def forget(self, key: Key) -> None:
        """The key needs no turn any more."""
        with self._lock:
            self._turns.pop(key, None)


class WorkQueue(Generic[Key]):
    """Keys with the time at which they are due. All methods may be called by several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """``clock``: seconds."""
        self._clock = clock
        self._changed = threading.Condition()
        self._due: dict[bool, dict[Key, float]] = {False: {}, True: {}}
        self._heaps: dict[bool, list[tuple[float, Key]]] = {False: [], True: []}
        self._processed: set[Key] = set()
        self._failures: dict[Key, int] = {}

    def add(self, key: Key, seconds: float = 0.0, *, can_wait: bool = False) -> None:
        """The key is due after ``seconds``, or earlier where it was added so already.

        ``can_wait``: after all keys that are due and cannot wait.
        """
        due = self._clock() + seconds
        with self._changed:
            if due < self._due[can_wait].get(key, float("inf")):
                self._due[can_wait][key] = due
                heapq.heappush(self._heaps[can_wait], (due, key))
                self._changed.notify()

    def get(self, seconds: float) -> Key | None:
        """The key that is due first, waited for at most ``seconds``; no other caller gets it before `done`."""
        until = self._clock() + seconds
        with self._changed:
            while True:
                now = self._clock()
                for can_wait, heap in self._heaps.items():
                    while heap and heap[0][0] <= now:
                        due, key = heapq.heappop(heap)
                        # another time counts by now, or `done` puts it back
                        if self._due[can_wait].get(key) != due or key in self._processed:
                            continue
                        for times in self._due.values():
                            times.pop(key, None)
                        self._processed.add(key)
                        return key
                if now >= until:
                    return None
                first = min((heap[0][0] for heap in self._heaps.values() if heap), default=until)
                self._changed.wait(min(first, until) - now)

    def done(self, key: Key) -> None:
        """The key was processed; it is due again if it was added meanwhile."""
        with self._changed:
            self._processed.discard(key)
            for can_wait, times in self._due.items():
                if key in times:
                    heapq.heappush(self._heaps[can_wait], (times[key], key))
                    self._changed.notify()

    def put_off(self, seconds: float) -> None:
        """Keys that have been due for longer than ``seconds`` come after all keys that cannot wait."""
        before = self._clock() - seconds
        with self._changed:
            for key in [key for key, due in self._due[False].items() if due < before]:
                due = min(self._due[False].pop(key), self._due[True].get(key, float("inf")))
                self._due[True][key] = due
                heapq.heappush(self._heaps[True], (due, key))

    def retry(self, key: Key) -> float:
        """After a failure: how long to pause, s; longer with each one in a row."""
        with self._changed:
            count = self._failures[key] = self._failures.get(key, 0) + 1
        return RETRY_SECONDS[min(count, len(RETRY_SECONDS)) - 1]

    def forget(self, key: Key) -> None:
        """After a success: the next failure is the first one."""
        with self._changed:
            self._failures.pop(key, None)
