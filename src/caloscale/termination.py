"""The signal by which Kubernetes ends a pod."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from caloscale.errors import Terminated


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
