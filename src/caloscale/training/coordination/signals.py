"""SIGTERM and Ctrl-C: the training stops at the end of a step, and gives the step up where it takes too long.

A handler in Python runs only in the main thread, between two of its instructions. A thread that the signal itself
wakes (`signal.set_wakeup_fd`) therefore measures the grace period, so that a step that does not end does not keep the
process, and interrupts a wait of the main thread that the signal has missed.
"""

import logging
import os
import signal
import socket
import threading
import time
from types import FrameType
from typing import Self

from caloscale.termination import StopRequest

log = logging.getLogger(__name__)

EXIT_SECONDS = 2.0
"""End of the grace period that is left to the exit itself, before the process is killed."""
SECOND_SECONDS = 5.0
"""After a second Ctrl-C."""
POKE_SECONDS = 0.1
"""Time after which the main thread is interrupted when it has not taken a signal."""
INTERRUPTED = 130
_POKE = signal.SIGURG
"""Ignored by every process unless it asks for it."""


class StopSignals(StopRequest):
    """While this is entered, SIGTERM and Ctrl-C are requests: `received` is the signal, and the training acts on it.

    Before `defer` is called there is nothing to save, and they act at once. In a thread other than the main one, which
    gets no signals, nothing is done.

    grace_seconds: time from SIGTERM until the process is killed; it ends by itself EXIT_SECONDS before.
    """

    def __init__(self, grace_seconds: float) -> None:
        super().__init__()
        self.limit_seconds = max(grace_seconds - EXIT_SECONDS, 0.0)
        self._deferred = False
        self._arrived = threading.Event()
        self._deadline: float | None = None
        self._timers: list[threading.Timer] = []

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            return self
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._thread.start()
        self._wakeup_before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._before[_POKE] = signal.signal(_POKE, lambda *_: None)
        return super().__enter__()

    def __exit__(self, *_: object) -> None:
        if not self._before:
            return
        super().__exit__()
        signal.set_wakeup_fd(self._wakeup_before)
        self._write.close()
        self._thread.join()
        self._read.close()
        for timer in self._timers:
            timer.cancel()

    def renew(self) -> None:
        """Install the handlers again: with several workers TensorFlow installs one for SIGTERM, which does nothing."""
        if self._before:
            for number in self.NUMBERS:
                signal.signal(number, self._handle)

    def defer(self) -> None:
        """From now on a signal waits for the end of the step."""
        self._deferred = True

    def wait(self, seconds: float) -> bool:
        """Wait for so long, or until a signal arrives; whether one has arrived."""
        return self._arrived.wait(seconds)

    def seconds_left(self, otherwise: float) -> float:
        """Time until a process that got SIGTERM is ended here, s; ``otherwise`` for one that did not."""
        return otherwise if self._deadline is None else max(0.0, self._deadline - time.monotonic())

    def _handle(self, number: int, _: FrameType | None) -> None:
        again = self.received == number == signal.SIGINT
        self.received = number
        if again or not self._deferred:
            self.check()
        log.warning("%s: stopping at the end of this step", signal.Signals(number).name)

    def _watch(self) -> None:
        interrupts = 0
        while numbers := self._next():
            for number in numbers:
                interrupts += number == signal.SIGINT
                if number == signal.SIGTERM and self._deadline is None:
                    self._deadline = time.monotonic() + self.limit_seconds
                    self._end_after(self.limit_seconds, 128 + signal.SIGTERM)
                elif number == signal.SIGINT and interrupts == 2:
                    self._end_after(SECOND_SECONDS, INTERRUPTED)
                if number in self.NUMBERS:
                    self._arrived.set()

    def _next(self) -> bytes:
        """The next signals; empty at the end.

        A signal that arrives between Python's last look at its signals and a blocking call does not interrupt the call.
        Here the call is interrupted until the handler has run.
        """
        while True:
            missed = self._arrived.is_set() and self.received is None
            self._read.settimeout(POKE_SECONDS if missed else None)
            try:
                return self._read.recv(16)
            except TimeoutError:
                signal.pthread_kill(threading.main_thread().ident or 0, _POKE)

    def _end_after(self, seconds: float, code: int) -> None:
        timer = threading.Timer(seconds, os._exit, (code,))
        timer.daemon = True
        self._timers.append(timer)
        timer.start()
