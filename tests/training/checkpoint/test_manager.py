"""How several workers end together."""

from __future__ import annotations

import json
import multiprocessing
import signal
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

from caloscale.errors import DeviceError, PeerLostError, Terminated, TrainingError
from caloscale.spec import Checkpoint
from caloscale.training import loop
from caloscale.training.checkpoint.manager import CheckpointManager
from caloscale.training.checkpoint.metadata import Progress
from caloscale.training.coordination.peers import Peers
from caloscale.training.coordination.signals import StopSignals
from tests.training.conftest import small_run


@pytest.mark.parametrize("save", ["save", "save_selected"])
def test_what_is_not_finite_is_not_saved(tmp_path, save):
    """The last update of a step may ruin the weights when its losses were still finite."""
    checkpoints = CheckpointManager(Checkpoint(), tmp_path, {}, Peers(), StopSignals(30))
    progress = Progress(step=7, seconds=1.0, core_seconds=1.0)
    weights = {"sound": tf.Variable([1.0, 2.0]), "generator/003": tf.Variable([1.0, np.inf])}
    with pytest.raises(TrainingError, match=r"generator/003 is not finite .* at step 7\b"):
        getattr(checkpoints, save)(weights, progress)
    checkpoints.saver.finish()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("terminated", [None, 0, 1])
def test_a_worker_that_is_terminated_after_the_last_step_stops_all(tmp_path, terminated):
    """One that is started again would wait for others that have ended well; nobody hangs here, either."""
    ends = multiprocessing.Pipe()

    def finish(index):
        signals = StopSignals(30)
        peers = Peers(index, {1 - index: ends[index]})
        checkpoints = CheckpointManager(Checkpoint(), tmp_path, {}, peers, signals)
        signals.received = signal.SIGTERM if index == terminated else None
        try:
            checkpoints.finish()
        except (PeerLostError, Terminated) as error:
            return error.exit_code
        finally:
            peers.close()
        return 0

    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(finish, range(2)))
    assert codes == ([0, 0] if terminated is None else [143 if index == terminated else 138 for index in range(2)])


def test_a_start_that_fails_leaves_no_alarm_behind(monkeypatch):
    """The kernel would end the process two minutes later, whatever it does then."""

    def fail(*_):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
        raise DeviceError("no accelerator is there", remedy="none")

    cluster = {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(cluster))
    monkeypatch.setattr(loop, "rendezvous", lambda *_: Peers())
    monkeypatch.setattr(loop, "open_context", fail)
    try:
        with pytest.raises(DeviceError), loop.connected_worker(small_run(), StopSignals(30)):
            pass
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.alarm(0)
