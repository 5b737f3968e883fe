"""This process as a worker: its connections to the other workers, and TensorFlow's distribution strategy."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

from caloscale.errors import PeerLostError
from caloscale.spec import Run
from caloscale.training.coordination.peers import Peers, rendezvous
from caloscale.training.coordination.signals import StopSignals
from caloscale.training.strategy import DistributionContext, open_context, worker_of

ALARM_SECONDS = 120
"""How long TensorFlow may take to connect workers that have all started; then the kernel ends the process (142)."""


@contextmanager
def connected_worker(run: Run, signals: StopSignals) -> Iterator[tuple[DistributionContext, Peers]]:
    """The distribution strategy of this worker, and its connections to the others.

    An error of TensorFlow in the block that follows from the failure of another worker becomes a PeerLostError.
    """
    index, workers = worker_of(os.environ)
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"] if workers > 1 else []
    # TensorFlow would wait for the others for an hour, and no Python would run meanwhile.
    peers = rendezvous(cluster, index)
    try:
        with _alarm(ALARM_SECONDS if workers > 1 else 0):
            distribution = open_context(run, os.environ)
        signals.renew()
        peers.expect_heartbeats()
        yield distribution, peers
    except tf.errors.OpError as error:
        peers.disconnect()
        if workers == 1:
            raise
        raise PeerLostError(peers.failed, f"is gone: {' '.join(str(error.message).split())[:200]}") from error
    except BaseException:
        peers.disconnect()
        raise
    peers.close()


@contextmanager
def _alarm(seconds: int) -> Iterator[None]:
    """The kernel ends the process by SIGALRM when the block takes longer; 0: it may take any time."""
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
