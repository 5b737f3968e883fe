"""Processes of their own, to be killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import caloscale.training

WITHOUT_TENSORFLOW = (
    "import sys, types\n"
    "package = types.ModuleType('caloscale.training')\n"
    f"package.__path__ = {list(caloscale.training.__path__)!r}\n"
    "sys.modules['caloscale.training'] = package\n"
)
"""The package's own imports take seconds; most of its modules need none of them."""


def start_python(code: str, **options: object) -> subprocess.Popen[str]:
    """A Python process that runs this code; modules of caloscale.training come without TensorFlow."""
    command = [sys.executable, "-c", WITHOUT_TENSORFLOW + code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, preexec_fn=heed_interrupts, **{**pipes, **options})


def heed_interrupts() -> None:
    """A shell that runs commands in the background has them ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def wait_for(condition: Callable[[], object], *processes: subprocess.Popen[str], seconds: float = 120) -> None:
    """Return when the condition holds; fail when a process ends before, or after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        for process in processes:
            if process.poll() is not None:
                out, err = process.communicate()
                raise AssertionError(f"ended with {process.returncode} before it was there:\n{out}\n{err}")
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
            raise AssertionError("did not come")
        time.sleep(0.005)


def newest_step(output: Path) -> int:
    """Step of the newest checkpoint in a training's folder; 0: there is none."""
    return max((int(path.stem[5:]) for path in (output / "checkpoints").glob("step-*.npz")), default=0)


def environment(**more: str) -> dict[str, str]:
    """This process's environment and more."""
    return {**os.environ, **more}
