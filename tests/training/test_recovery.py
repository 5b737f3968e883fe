"""One training of two workers, by the command, through several attempts: killed, torn, asked to stop, alone."""

import json
import os
import shutil
import signal

import numpy as np
import pytest

from caloscale.training.checkpoint.format import decode
from caloscale.training.checkpoint.metadata import read_marker
from caloscale.training.loop import train
from tests.processes import wait_for

from . import quick_networks
from .conftest import small_run
from .processes import assert_equal, exit_codes, newest_step, said, start_quick_training, weights

pytestmark = pytest.mark.integration

QUICK = (
    *quick_networks.QUICK,
    "train.deterministic=true",
    "train.globalBatchSize=8",
    "train.epochs=100",
    "checkpoint.keep=1000",
)
"""Hardly any training between two checkpoints, which are all kept."""


def checkpoint(output, step):
    return output / "checkpoints" / f"step-{step:09d}.safetensors"


def steps_made(output):
    """By the progress marker; the last has no checkpoint when the failure of a peer was noticed between the two."""
    attempt = read_marker(output / "checkpoints" / "progress-marker")
    assert attempt.step - newest_step(output) in (0, 1)
    return attempt.step


def forget_after(output, step):
    """As if the process had died at this step."""
    for path in (output / "checkpoints").glob("step-*.safetensors"):
        if int(path.stem[5:]) > step:
            path.unlink()


@pytest.fixture(scope="module")
def killed(shards, tmp_path_factory):
    """Two workers, of which one is killed (-9) behind step 8; the folder, the exit codes and all checkpoints."""
    workspace = tmp_path_factory.mktemp("killed") / "workspace"
    workers = start_quick_training(shards, workspace, *QUICK, workers=2)
    output = workspace / "training"
    wait_for(lambda: newest_step(output) >= 8, *workers)
    os.kill(workers[1].pid, signal.SIGKILL)
    return workspace, exit_codes(workers)


def test_the_survivor_of_a_killed_worker_leaves(killed):
    """Lost: at most the step that was being made."""
    workspace, codes = killed
    assert codes == [138, -signal.SIGKILL], said(workspace)
    assert "worker 1" in said(workspace) and "start all workers again" in said(workspace)
    record = json.loads((workspace / "stages" / "train.json").read_text())
    assert (record["outcome"], record["exitCode"]) == ("interrupted", 138)


@pytest.mark.long
def test_two_workers_resume_bit_for_bit(killed, shards, tmp_path):
    """Lost: the steps behind the last intact checkpoint, made again exactly. Then SIGTERM: lost is nothing."""
    workspace = tmp_path / "workspace"
    shutil.copytree(killed[0], workspace)
    output = workspace / "training"
    made = steps_made(output)
    forget_after(output, 5)
    torn = checkpoint(output, 5)
    torn.write_bytes(torn.read_bytes()[:-1000])
    workers = start_quick_training(shards, workspace, *QUICK, workers=2)
    wait_for(lambda: newest_step(output) >= 9, *workers)
    workers[1].terminate()
    assert exit_codes(workers) == [138, 143], said(workspace)
    assert "step-000000005.safetensors: is damaged" in said(workspace)
    assert "worker 1 received a signal to stop" in said(workspace)
    for step in range(5, 9):
        assert_equal(weights(output, step), weights(killed[0] / "training", step))
    last = json.loads(decode(checkpoint(output, newest_step(output)).read_bytes())[1])
    assert (last["restarts"], last["stepsLost"]) == (1, made - 4)


@pytest.mark.usefixtures("quickly")
def test_one_worker_resumes_where_two_ended(killed, shards, tmp_path):
    """The same global batch on another number of workers; the sums of the gradients are rounded in another order."""
    output = tmp_path / "training"
    shutil.copytree(killed[0] / "training", output)
    forget_after(output, 3)
    record = train(small_run(*QUICK, "train.epochs=1"), shards, output)
    assert (record.steps, record.resumed_from_step, record.workers) == (5, 3, 1)
    found, expected = weights(output, 5), weights(killed[0] / "training", 5)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=2e-5, err_msg=name)
