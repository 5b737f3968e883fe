"""Processes of their own, to be killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import caloscale.training
from caloscale.bench.ports import free_ports

from .conftest import DETECTOR

QUICK_NETWORKS = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})",
    "import caloscale.models.compact as compact; from tests.training.quick_networks import quick_networks",
    "compact.build_compact = quick_networks",
)
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
    return subprocess.Popen(command, **{**pipes, **options})


def newest_step(output: Path) -> int:
    """Step of the newest checkpoint in a training's folder; 0: there is none."""
    return max((int(path.stem[5:]) for path in (output / "checkpoints").glob("step-*.safetensors")), default=0)


def environment(**more: str) -> dict[str, str]:
    """This process's environment and more."""
    return {**os.environ, **more}


def start_training(
    shards: Path, workspace: Path, *overrides: str, workers: int = 1, program: Sequence[str] = ()
) -> list[subprocess.Popen[str]]:
    """The processes of `caloscale train` on shards of the small detector.

    program: lines of Python that run before the command, as `QUICK_NETWORKS`.
    """
    entry = ["-m", "caloscale.cli.main"]
    if program:
        entry = ["-c", "\n".join([*program, "from caloscale.cli.main import main", "main()"])]
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
        process = subprocess.Popen(command, env=settings, stdout=log, stderr=log, text=True, start_new_session=True)
        log.close()
        started.append(process)
    return started


def exit_codes(processes: list[subprocess.Popen[str]]) -> list[int]:
    """The exit codes of processes that end by themselves; those that do not are killed when the test times out."""
    try:
        return [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def said(workspace: Path, worker: int = 0) -> str:
    """What a worker of a training wrote on its terminal."""
    return (workspace.parent / f"{workspace.name}-{worker}.log").read_text()
