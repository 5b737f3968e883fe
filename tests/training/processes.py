"""Processes of their own, to be killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import caloscale.training
from caloscale.bench.ports import free_ports

from .conftest import DETECTOR

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
                raise AssertionError(f"{process.args} ended with {process.returncode} before it was there")
        if time.monotonic() > deadline:
            for process in processes:
                process.kill()
            raise AssertionError("did not come")
        time.sleep(0.005)


def newest_step(output: Path) -> int:
    """Step of the newest checkpoint in a training's folder; 0: there is none."""
    return max((int(path.stem[5:]) for path in (output / "checkpoints").glob("step-*.safetensors")), default=0)


def environment(**more: str) -> dict[str, str]:
    """This process's environment and more."""
    return {**os.environ, **more}


def start_training(
    shards: Path, workspace: Path, *overrides: str, workers: int = 1, setting: str = ""
) -> list[subprocess.Popen[str]]:
    """The processes of `caloscale train` on shards of the small detector.

    setting: a constant of a module that is changed before, as in
    ``caloscale.training.coordination.peers.BEAT_SECONDS = 1.0``.
    """
    entry = ["-m", "caloscale.cli.main"]
    if setting:
        module = setting.partition(" = ")[0].rpartition(".")[0]
        entry = ["-c", f"import caloscale.cli.main, {module}; {setting}; caloscale.cli.main.main()"]
    command = [sys.executable, *entry, "train", "--preset", "compact"]
    for override in (*DETECTOR, *overrides):
        command += ["--set", override]
    command += ["--workspace", str(workspace), "--dataset", str(shards)]
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(workers)]}
    started = []
    for index in range(workers):
        config = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})}
        log = (workspace.parent / f"{workspace.name}-{index}.log").open("a")
        # One thread each: many processes share the cores.
        threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
        settings = environment(**threads, **(config if workers > 1 else {}))
        process = subprocess.Popen(
            command, env=settings, stdout=log, stderr=log, text=True, preexec_fn=heed_interrupts, start_new_session=True
        )
        log.close()
        started.append(process)
    return started


def exit_codes(processes: list[subprocess.Popen[str]], seconds: float = 200) -> list[int]:
    """The exit codes of processes that end by themselves; those that do not are killed and fail the test."""
    deadline = time.monotonic() + seconds
    try:
        return [process.wait(max(0.1, deadline - time.monotonic())) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def said(workspace: Path, worker: int = 0) -> str:
    """What a worker of a training wrote on its terminal."""
    return (workspace.parent / f"{workspace.name}-{worker}.log").read_text()


def when(condition: Callable[[], object], action: Callable[[], object]) -> threading.Thread:
    """Do something from another thread as soon as a condition holds, or after two minutes."""

    def watch() -> None:
        deadline = time.monotonic() + 120
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.002)
        action()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def signal_when(condition: Callable[[], object], number: int) -> threading.Thread:
    """A signal for this process as soon as a condition holds."""
    return when(condition, lambda: os.kill(os.getpid(), number))
