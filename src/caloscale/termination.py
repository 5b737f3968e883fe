"""The signals by which a person or Kubernetes ends a process."""

from __future__ import annotations

import ctypes
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Self

from caloscale.errors import Terminated

_PR_SET_PDEATHSIG = 1  # prctl(2)
_PRCTL = getattr(ctypes.CDLL(None), "prctl", None)


def end_with_parent() -> None:
    """For ``preexec_fn``: the new process gets SIGTERM when the one that starts it is killed (Linux)."""
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """SIGTERM is the exception Terminated, so that what was begun can be taken back; only in the main thread.

    The first process of a container ignores the signal otherwise.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise Terminated

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def signal_of_system_error() -> Iterator[None]:
    """Raise what a signal raised where a library's C code called Python: Python makes a SystemError of it there."""
    try:
        yield
    except SystemError as error:
        if isinstance(error.__cause__, KeyboardInterrupt | Terminated):
            raise error.__cause__ from None
        raise


class StopRequest:
    """Ctrl-C and SIGTERM as a request that a loop looks at, instead of an exception at any place; a context manager.

    An exception that a signal raises may come while a lock is held, which then stays locked, or where Python ignores
    exceptions. The second signal raises at once. Only in the main thread: no signal interrupts others.
    """

    NUMBERS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: int | None = None
        """The last signal."""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before |= {number: signal.signal(number, self._handle) for number in self.NUMBERS}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def check(self) -> None:
        """Raise what was requested: Terminated or KeyboardInterrupt; nothing where no signal came."""
        if self.received is not None:
            raise Terminated if self.received == signal.SIGTERM else KeyboardInterrupt

    def _handle(self, number: int, _: FrameType | None) -> None:
        again, self.received = self.received is not None, number
        if again:
            self.check()
