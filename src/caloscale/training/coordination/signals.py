"""SIGTERM and Ctrl-C: stop at the end of a step, or give the step up when it takes too long.

A handler in Python runs only between two calls into TensorFlow. A thread that is woken by the signal itself sees to
it that a step that does not end does not keep the process.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self

from caloscale.errors import Terminated

log = logging.getLogger(__name__)

GRACE_SECONDS = 13.0
"""After SIGTERM the process ends within this time: spot machines give 15 s."""
SECOND_SECONDS = 5.0
"""After a second Ctrl-C."""
INTERRUPTED = 130
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """While this is entered, SIGTERM and Ctrl-C are wishes: `received` says which came, the training acts on it.

    Before `defer` is called there is nothing to save, and they act at once. In a thread other than the main one, which
    gets no signals, nothing is done. leave: ends the process with an exit code, at once.
    """

    def __init__(self, leave: Callable[[int], Any] = os._exit) -> None:
        self.received: int | None = None
        self._leave = leave
        self._deferred = False
        self._before: dict[int, Any] = {}
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._thread.start()
        self._wakeup_before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._before = {number: signal.signal(number, self._handle) for number in _SIGNALS}
        return self

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        for number, handler in self._before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        self._write.close()
        self._thread.join()
        self._read.close()
        for timer in self._timers:
            timer.cancel()

    def renew(self) -> None:
        """Take the signals back: with several workers TensorFlow takes SIGTERM, and does nothing when it comes."""
        for number in self._before:
            signal.signal(number, self._handle)

    def defer(self) -> None:
        """From now on a signal waits for the end of the step."""
        self._deferred = True

    def act(self) -> None:
        """Raise what the signal stands for: Terminated or KeyboardInterrupt; nothing when none came."""
        if self.received == signal.SIGTERM:
            raise Terminated
        if self.received == signal.SIGINT:
            raise KeyboardInterrupt

    def _handle(self, number: int, _: FrameType | None) -> None:
        again = self.received == number == signal.SIGINT
        self.received = number
        if again or not self._deferred:
            self.act()
        log.warning("%s: stopping at the end of this step", signal.Signals(number).name)

    def _watch(self) -> None:
        interrupts = 0
        while numbers := self._read.recv(16):
            for number in numbers:
                interrupts += number == signal.SIGINT
                if number == signal.SIGTERM:
                    self._end_after(GRACE_SECONDS, 128 + signal.SIGTERM)
                elif number == signal.SIGINT and interrupts == 2:
                    self._end_after(SECOND_SECONDS, INTERRUPTED)

    def _end_after(self, seconds: float, code: int) -> None:
        timer = threading.Timer(seconds, self._leave, (code,))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()
