"""Processes that tests start. They heed Ctrl-C (see `tests/conftest.py`) and end with their test.

No wait has a time of its own: the timeout of pytest ends a test that hangs, however busy the machine is.
"""

import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

UNTIL_STOPPED = "while True: time.sleep(0.05)"
"""Python code that waits for a signal. One long sleep misses a signal that arrives just before it begins."""


def without(*packages: str) -> str:
    """Python code after which these packages cannot be imported, as where they are not installed."""
    return f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if any(name == package or name.startswith(package + ".") for package in {packages!r}):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
"""


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process with text pipes. It is killed at the end if it still runs."""
    process = subprocess.Popen(command, text=True, **options)
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def wait_for(condition: Callable[[], object], *processes: subprocess.Popen[str]) -> None:
    """Return when the condition holds. AssertionError when one of the processes ends before; then all are ended."""
    try:
        while not condition():
            for process in processes:
                if process.poll() is not None and not condition():
                    raise AssertionError(f"{process.args} ended with {process.returncode} before the condition held")
            time.sleep(0.005)
    except BaseException:
        for process in processes:
            process.kill()
            process.wait()
        raise
