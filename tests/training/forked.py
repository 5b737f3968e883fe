"""Workers as processes that have TensorFlow loaded when they start, which takes four seconds of processor time.

They are forked off one process of this test session that has imported it and done nothing with it.
"""

import multiprocessing
import os
import sys
from collections.abc import Callable, Mapping
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.training.preloaded"])


class Forked:
    """A process that calls a function of a module without TensorFlow; with the methods of Popen that tests use.

    environment: all of its variables. log: what it writes on its terminal.
    """

    def __init__(self, work: Callable[[], None], environment: Mapping[str, str], log: Path) -> None:
        self.args = work
        self._process: ForkServerProcess = _CONTEXT.Process(target=_work, args=(work, dict(environment), log))
        self._process.start()

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; the negative number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit code, None while it runs."""
        return self._process.exitcode

    def wait(self) -> int:
        """Wait until it ends; returns the exit code."""
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def terminate(self) -> None:
        """Send it SIGTERM."""
        self._process.terminate()

    def kill(self) -> None:
        """Send it SIGKILL."""
        self._process.kill()


def _work(work: Callable[[], None], environment: dict[str, str], log: Path) -> None:
    """What runs in the process."""
    os.environ.clear()
    os.environ.update(environment)
    with log.open("ab") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    work()


def stop() -> None:
    """End the process from which they are forked, so that its processor time counts as that of the tests."""
    forkserver._forkserver._stop()  # type: ignore[attr-defined]
