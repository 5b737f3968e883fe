"""Several workers of a training on this machine: real processes, their cores, their weights, their ends."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError

from caloscale import stages
from caloscale.errors import ConfigurationError, TrainingError
from caloscale.spec import load_run
from caloscale.stages import training
from tests.training.conftest import shards, small_run
from tests.training.processes import assert_equal, exit_codes, newest_step, said, start_training, weights

__all__ = ["shards"]
TWO = ("train.workersPerNode=2", "train.deterministic=true", "train.threads.intra=1", "train.threads.inter=1")


def children_of_training() -> list[psutil.Process]:
    """Worker 0 and the others, in their order."""
    mine = [one for one in psutil.Process().children() if "caloscale.stages.node_worker" in one.cmdline()]
    return sorted(mine, key=lambda one: one.create_time())


@pytest.mark.integration
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_pinned_workers_make_the_training_of_two_workers(shards: Path, tmp_path: Path) -> None:
    """The weights are those of two workers that TF_CONFIG names, bit for bit; each worker has cores of its own."""
    seen: list[set[int]] = []

    def look() -> None:
        until = time.monotonic() + 60
        while len(seen) < 2 and time.monotonic() < until:
            found = [set(one.cpu_affinity()) for one in children_of_training()]
            if len(found) == 2 and not found[0] & found[1]:
                seen.extend(found)
            time.sleep(0.2)

    watching = threading.Thread(target=look)
    watching.start()
    run = small_run(*TWO, "train.pin=true", "train.epochs=2")
    record = stages.train(run, tmp_path / "pinned", shards)
    watching.join()
    assert record.replicas == 2 and record.global_batch_size == 2 * run.train.batch_per_replica
    assert len(seen) == 2 and not seen[0] & seen[1] and len(seen[0]) == len(seen[1])
    overrides = (*TWO[1:], "train.epochs=2")
    assert exit_codes(start_training(shards, tmp_path / "plain", *overrides, workers=2)) == [0, 0]
    assert_equal(weights(tmp_path / "pinned/training"), weights(tmp_path / "plain/training"))
    assert (tmp_path / "pinned" / "stages" / "train.json").is_file()


@pytest.mark.long
def test_a_worker_that_is_killed_ends_the_training_which_resumes(shards: Path, tmp_path: Path) -> None:
    run = small_run(*TWO, "train.epochs=400", "checkpoint.everySeconds=0.2")
    workspace = tmp_path / "run"

    def kill() -> None:
        while not newest_step(workspace / "training"):
            time.sleep(0.1)
        children_of_training()[1].send_signal(signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(TrainingError, match="worker 1 of 2 was killed by signal 9") as error:
        stages.train(run, workspace, shards)
    assert error.value.exit_code == 137 and error.value.remedy and not children_of_training()
    reached = newest_step(workspace / "training")
    epochs = reached // 2 + 3  # two steps each
    record = stages.train(small_run(*TWO, f"train.epochs={epochs}", "checkpoint.everySeconds=0.2"), workspace, shards)
    assert record.steps > reached


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_signal_stops_all_workers_with_a_checkpoint(
    number: signal.Signals, code: int, shards: Path, tmp_path: Path
) -> None:
    """Killed, the process cannot pass a signal on: the kernel does."""
    overrides = (*TWO, "train.epochs=4000", "checkpoint.everySeconds=1000")
    (process,) = start_training(shards, tmp_path / "run", *overrides)
    until = time.monotonic() + 120
    while len(workers := psutil.Process(process.pid).children()) < 2 and time.monotonic() < until:
        time.sleep(0.2)
    while not re.search(r" [1-9]\d*/128000 ", said(tmp_path / "run")) and time.monotonic() < until:  # after a step
        time.sleep(0.2)
    process.send_signal(number)
    assert exit_codes([process]) == [code]
    psutil.wait_procs(workers, timeout=60)
    assert not any(worker.is_running() for worker in workers)
    assert newest_step(tmp_path / "run" / "training") >= 1


def test_wrong_shares_and_combinations_are_refused(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "available_cores", lambda: [0, 1])
    with pytest.raises(ConfigurationError, match="needs a core for each of 3 workers") as error:
        stages.train(small_run("train.workersPerNode=3", "train.pin=true"), tmp_path / "run", shards)
    assert error.value.exit_code == 2
    monkeypatch.setenv("TF_CONFIG", "{}")
    with pytest.raises(ConfigurationError, match="TF_CONFIG names other workers"):
        stages.train(small_run("train.workersPerNode=2"), tmp_path / "run", shards)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (("hardware.accelerator=nvidia-tesla-v100", "hardware.count=8"), "the run has hardware"),
        (("train.strategy=mirrored",), "needs the strategy multi-worker"),
    ],
)
def test_configurations_that_cannot_be(overrides: tuple[str, ...], says: str) -> None:
    with pytest.raises((ConfigurationError, ValidationError), match=says):
        load_run(preset="compact", overrides=["train.workersPerNode=2", *overrides])
