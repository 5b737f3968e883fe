"""Processes of their own, to be killed."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from caloscale.ports import free_ports
from caloscale.training.checkpoint.format import decode

from .detector import DETECTOR
from .forked import Forked

Process = subprocess.Popen[str] | Forked


def start_python(code: str, **options: object) -> subprocess.Popen[str]:
    """A Python process that runs this code."""
    command = [sys.executable, "-c", code]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, **{**pipes, **options})


def newest_step(output: Path) -> int:
    """Step of the newest checkpoint in a training's folder; 0: there is none."""
    return max((int(path.stem[5:]) for path in (output / "checkpoints").glob("step-*.safetensors")), default=0)


def weights(output: Path, step: int | None = None) -> dict[str, np.ndarray]:
    """The values in a checkpoint of a training's folder; absent: in the newest."""
    name = f"step-{newest_step(output) if step is None else step:09d}.safetensors"
    return decode((output / "checkpoints" / name).read_bytes())[0]


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    """The same bits."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)


def start_training(
    shards: Path, workspace: Path, *overrides: str, workers: int = 1, program: Sequence[str] = ()
) -> list[subprocess.Popen[str]]:
    """The processes of `caloscale train` on shards of the small detector.

    program: lines of Python that run before the command.
    """
    entry = ["-m", "caloscale.cli.main"]
    if program:
        entry = ["-c", "\n".join([*program, "from caloscale.cli.main import main", "main()"])]
    command = [sys.executable, *entry, *_words(shards, workspace, overrides)]
    started = []
    for settings, log in zip(environments(workers), _logs(workspace, workers), strict=True):
        with log.open("a") as file:
            started.append(
                subprocess.Popen(command, env=settings, stdout=file, stderr=file, text=True, start_new_session=True)
            )
    return started


def start_quick_training(shards: Path, workspace: Path, *overrides: str, workers: int) -> list[Forked]:
    """The same with the networks of `quick_networks`, and in processes that need not import TensorFlow."""
    work = partial(train_quickly, _words(shards, workspace, overrides))
    settings, logs = environments(workers), _logs(workspace, workers)
    return [Forked(work, each, log) for each, log in zip(settings, logs, strict=True)]


def train_quickly(words: list[str]) -> None:
    """What runs in such a process."""
    from caloscale.cli.main import main
    from caloscale.models.families.compact import network

    from .quick_networks import quick_networks

    network.build_compact = quick_networks
    sys.argv = ["caloscale", *words]
    main()


def _words(shards: Path, workspace: Path, overrides: Sequence[str]) -> list[str]:
    sets = [word for override in (*DETECTOR, *overrides) for word in ("--set", override)]
    return ["train", "--preset", "compact", *sets, "--workspace", str(workspace), "--dataset", str(shards)]


def _logs(workspace: Path, workers: int) -> list[Path]:
    return [workspace.parent / f"{workspace.name}-{index}.log" for index in range(workers)]


def environments(workers: int) -> list[dict[str, str]]:
    """The environment of each worker, on ports that are free. One thread each: many processes share the cores."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(workers)]}
    threads = {"TF_NUM_INTRAOP_THREADS": "1", "TF_NUM_INTEROP_THREADS": "1"}
    base = {**os.environ, **threads, "CUDA_VISIBLE_DEVICES": "-1"}
    if workers == 1:
        return [base]
    tasks = ({"cluster": cluster, "task": {"type": "worker", "index": index}} for index in range(workers))
    return [{**base, "TF_CONFIG": json.dumps(task)} for task in tasks]


def exit_codes(processes: Sequence[Process]) -> list[int]:
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
