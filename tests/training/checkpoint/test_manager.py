"""What is saved, variables to the host and back, how several workers end together."""

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
from caloscale.training.checkpoint.manager import CheckpointManager, from_host, to_host
from caloscale.training.checkpoint.metadata import Progress
from caloscale.training.coordination.peers import Peers
from caloscale.training.coordination.signals import StopSignals
from tests.training.conftest import small_run


@pytest.mark.parametrize("selected", [False, True])
def test_what_is_not_finite_is_not_saved(tmp_path, selected):
    """The last update of a step may ruin the weights when its losses were still finite."""
    checkpoints = CheckpointManager(Checkpoint(), tmp_path, {}, Peers(), StopSignals(30))
    progress = Progress(step=7, seconds=1.0, core_seconds=1.0)
    weights = {"sound": tf.Variable([1.0, 2.0]), "generator/003": tf.Variable([1.0, np.inf])}
    with pytest.raises(TrainingError, match=r"generator/003 is not finite .* at step 7\b"):
        checkpoints.save(weights, progress, selected=selected)
    checkpoints.saver.finish()
    assert not list(tmp_path.iterdir())


def variables(value, size=3):
    return {"a": tf.Variable(tf.fill((size,), float(value))), "step": tf.Variable(value, dtype=tf.int64)}


@pytest.mark.parametrize(
    "strategy", [tf.distribute.OneDeviceStrategy("/cpu:0"), tf.distribute.MirroredStrategy(["/cpu:0"])]
)
def test_values_are_copies(strategy):
    with strategy.scope():
        held = variables(2)
    taken = to_host(held)
    held["a"].assign([7, 7, 7])
    assert taken["a"].tolist() == [2, 2, 2] and taken["step"] == 2 and taken["step"].dtype == np.int64
    from_host(held, taken)
    assert to_host(held)["a"].tolist() == [2, 2, 2]


def test_another_network_changes_nothing():
    held = variables(1)
    with pytest.raises(ValueError, match=r"a has the shape \(4,\) instead of \(3,\)"):
        from_host(held, to_host(variables(2, size=4)))
    with pytest.raises(ValueError, match=r"missing \['step'\], left over \['b'\]"):
        from_host(held, {"a": np.ones(3), "b": np.ones(3)})
    assert held["a"].numpy().tolist() == [1, 1, 1]


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
