"""Twenty deaths and more of one training: workers are killed at random moments, and nothing shows in the end."""

import os
import random
import signal
import time

import numpy as np
import pytest

from caloscale.training.checkpoint.metadata import read_marker
from tests.processes import wait_for

from .processes import assert_equal, exit_codes, newest_step, said, start_training, weights

KILLS = 20
STEPS = 100
QUICK = (
    "train.generatorUpdates=1",
    "train.energyScoreWeight=0",
    "train.decay=constant",
    "train.deterministic=true",
    "train.globalBatchSize=8",
    f"train.epochs={STEPS // 5}",
    "checkpoint.everySeconds=0.5",
)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_workers_killed_at_random_moments(shards, tmp_path):
    """Two workers, real processes. Lost at each death: the steps since the last checkpoint, made again exactly."""
    choose = random.Random(4)
    workspace = tmp_path / "killed"
    marker = workspace / "training" / "checkpoints" / "progress-marker"
    for _ in range(KILLS):
        before = marker.stat().st_mtime_ns if marker.exists() else 0
        begun = newest_step(workspace / "training")
        workers = start_training(shards, workspace, *QUICK, workers=2)
        victims = choose.choice([[0], [1], [0, 1]])
        if victims == [0, 1] and choose.random() < 0.5:
            time.sleep(choose.uniform(0, 10))  # anywhere in the start
        else:
            # The workers have found each other; while they build and compile, or some steps later.
            wait_for(lambda: marker.exists() and marker.stat().st_mtime_ns > before, *workers)  # noqa: B023
            steps = choose.choice([0, 0, 1, 2, 5])
            if steps == 0:
                time.sleep(choose.uniform(0, 6))
            wait_for(lambda: (attempt := read_marker(marker)) and attempt.step >= begun + steps, *workers)  # noqa: B023
        for victim in victims:
            os.kill(workers[victim].pid, signal.SIGKILL)
        expected = [-signal.SIGKILL if index in victims else 138 for index in range(2)]
        assert exit_codes(workers) == expected, said(workspace)
    assert exit_codes(start_training(shards, workspace, *QUICK, workers=2)) == [0, 0], said(workspace)
    reference = tmp_path / "whole"
    assert exit_codes(start_training(shards, reference, *QUICK, workers=2)) == [0, 0], said(reference)
    assert_equal(weights(workspace / "training", STEPS), weights(reference / "training", STEPS))
    histories = [(folder / "training" / "history.json").read_bytes() for folder in (workspace, reference)]
    assert histories[0] == histories[1]
    attempt = read_marker(marker)
    assert attempt.steps_lost > 0
    assert attempt.restarts <= KILLS, "a death before the training found its checkpoint does not count"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_silent_worker(shards, tmp_path, victim):
    """A worker that is stopped, as when its machine or network is dead. Lost: the steps since the last checkpoint."""
    workspace = tmp_path / "silent"
    workers = start_training(shards, workspace, *QUICK, "train.epochs=1000", workers=2)
    try:
        wait_for(lambda: newest_step(workspace / "training") >= 3, *workers)
        os.kill(workers[victim].pid, signal.SIGSTOP)
        assert workers[1 - victim].wait(120) == 138, said(workspace, 1 - victim)
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_rounding_of_one_and_two_workers(shards, tmp_path):
    """Equal bits on the same number of workers and in both loops; on another number sums are rounded differently."""
    all_kept = (*QUICK, "checkpoint.everySeconds=0.001", "checkpoint.keep=1000")
    trainings = {"one": 1, "one builtin": 1, "two": 2, "two builtin": 2}
    for name, workers in trainings.items():
        more = ("train.loop=builtin",) if "builtin" in name else ()
        started = start_training(shards, tmp_path / name, *all_kept, *more, workers=workers)
        assert exit_codes(started) == [0] * workers, said(tmp_path / name)

    def difference(name, other, step):
        """The largest of a weight, over the largest weight of its tensor; 0: equal bits, optimisers included."""
        found, expected = (weights(tmp_path / each / "training", step) for each in (name, other))
        if all(np.array_equal(found[key], value) for key, value in expected.items()):
            return 0.0
        networks = [key for key in expected if key.startswith(("generator/", "discriminator/"))]
        return max(float(np.abs(found[k] - expected[k]).max() / np.abs(expected[k]).max()) for k in networks)

    for pair in (("two builtin", "two"), ("one builtin", "one"), ("two", "one")):
        differences = {step: difference(*pair, step) for step in (1, 2, 5, 10, 20, 50, STEPS)}
        print(*pair, differences)
        if pair == ("two", "one"):
            assert 0 < max(differences[step] for step in (1, 2, 5, 10)) < 1e-3
        else:
            assert set(differences.values()) == {0.0}
