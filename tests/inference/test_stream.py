"""Batches in order, several at a time, a shower the same in any of them."""

import importlib
import os
import signal
import threading
import time

import numpy as np
import pytest

from caloscale.errors import GenerationError, InputError, Terminated
from caloscale.inference import runtime as runtime_module
from caloscale.inference.primaries import parse_primaries
from caloscale.inference.runtime import PerBatch, Runtime, open_runtime, suitable_batch, suitable_streams
from caloscale.inference.stream import stream
from caloscale.models.card import read_card
from caloscale.spec.data import PrimaryRanges

MODULE = importlib.import_module("caloscale.inference.stream")  # the package has a function of this name
ALL = parse_primaries({}, PrimaryRanges(energy_gev=(5, 40), angle_deg=(60, 120)), seed=1)


def showers(runtime, *, count=23, **options):
    parts = list(stream(runtime, ALL, seed=1, count=count, **options))
    return [
        np.concatenate([getattr(part, name) for part in parts]) for name in ("cells_gev", "energy_gev", "angle_rad")
    ]


@pytest.mark.parametrize("runtime", ["tensorflow", "onnx", "openvino"])
def test_showers_do_not_depend_on_batches_streams_and_commands(folder, runtime):
    """Within the rounding of sums that another size of batch orders in another way."""
    one, three = (open_runtime(folder, runtime, streams=streams) for streams in (1, 3))
    whole = showers(one, batch=23)
    pieces = [showers(three, count=n, first=first, batch=4) for first, n in ((0, 9), (9, 14))]
    for parts in (showers(three, batch=4), showers(one, batch=100), list(map(np.concatenate, zip(*pieces)))):
        for found, expected in zip(parts, whole):
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)  # GeV; a cell is 2e-5 or more


class Counting(Runtime):
    """Empty showers, and how many batches were begun and computed at once; the first of all streams meet."""

    def __init__(self, card, *, streams):
        super().__init__(card, 4, streams=streams)
        self.begun = self.at_once = self.most = 0
        self.lock = threading.Lock()
        self.meeting = threading.Barrier(streams, timeout=600)

    def _compute(self, inputs):
        with self.lock:
            self.begun += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
            first = self.begun <= self.streams
        if first:
            self.meeting.wait()
        time.sleep(0.01)
        with self.lock:
            self.at_once -= 1
        return np.full((len(inputs["noise"]), *self.card.shape), self.fill, np.float32)

    fill = 0.0


def test_no_more_is_begun_than_is_taken(folder):
    """What waits to be taken is memory."""
    runtime = Counting(read_card(folder), streams=3)
    taken = 0
    for _ in stream(runtime, ALL, seed=1, count=40, batch=1):
        taken += 1
        time.sleep(0.03)
        assert runtime.begun <= taken + 3
    assert (taken, runtime.most) == (40, 3)


def test_one_that_is_given_up_ends_its_threads(folder):
    runtime = Counting(read_card(folder), streams=2)
    batches = stream(runtime, ALL, seed=1, count=1000, batch=1)
    next(batches)
    batches.close()
    assert runtime.begun < 10
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("generate")]


class Stalled(Counting):
    """Computes its first batch; in the second it sends this process a signal, if any, and does not return."""

    def __init__(self, card, number=None):
        super().__init__(card, streams=1)
        self.released, self.number = threading.Event(), number

    def _compute(self, inputs):
        if self.begun:
            if self.number is not None:
                os.kill(os.getpid(), self.number)
            self.released.wait()
        return super()._compute(inputs)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_generation_whose_runtime_has_stalled(folder, monkeypatch, number):
    def stop(*_):
        raise Terminated

    monkeypatch.setattr(MODULE, "CLOSING_SECONDS", 0.01)
    runtime = Stalled(read_card(folder), number)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(Terminated):
            list(stream(runtime, ALL, seed=1, count=3, batch=1))
    finally:
        signal.signal(number, before)
        runtime.released.set()


def test_the_wait_for_a_batch_is_bounded(folder, monkeypatch):
    for bound in ("BATCH_SECONDS", "CLOSING_SECONDS"):
        monkeypatch.setattr(MODULE, bound, 0.01)
    runtime = Stalled(read_card(folder))
    runtime.begun = 1
    with pytest.raises(GenerationError, match=r"no batch of 1 showers was finished(.|\n)*fewer --streams"):
        list(stream(runtime, ALL, seed=1, count=3, batch=1))
    runtime.released.set()


def test_cells_that_are_not_finite(folder):
    runtime = Counting(read_card(folder), streams=1)
    runtime.fill = np.nan
    with pytest.raises(InputError, match="not finite"):
        list(stream(runtime, ALL, seed=1, count=2))


def test_as_many_as_are_asked_for(folder):
    runtime = Counting(read_card(folder), streams=1)
    assert [len(part) for part in stream(runtime, ALL, seed=1, count=10, batch=4)] == [4, 4, 2]
    assert list(stream(runtime, ALL, seed=1, count=0)) == []
    with pytest.raises(InputError, match="batch: must be at least 1"):
        list(stream(runtime, ALL, seed=1, count=1, batch=0))


def test_what_cannot_be_made_for_a_batch_is_refused_each_time():
    """Other streams would wait for ever for what the first did not make."""

    def make(batch):
        raise InputError(f"not {batch}", remedy="none")

    per_batch = PerBatch(make)
    for _ in range(2):
        with pytest.raises(InputError, match="not 3"), per_batch.idle(3):
            pass


def test_a_batch_that_fits():
    assert suitable_batch((51, 51, 25)) == 8
    assert suitable_batch((17, 17, 25)) == 64
    assert suitable_batch((4, 5, 3)) == 128
    assert suitable_batch((1000, 1000, 1000)) == 1


def test_streams_that_fit(monkeypatch):
    assert [suitable_streams(threads) for threads in (1, 3, 64)] == [1, 3, 4]
    assert [suitable_streams(threads) for threads in (5, 6, 10)] == [1, 3, 2]  # with four, one or two would be idle
    assert [suitable_streams(8, batches) for batches in (1, 2, 3, 100)] == [1, 2, 2, 4]
    for cores, streams in ((1, 1), (2, 2), (48, 4)):
        monkeypatch.setattr(runtime_module, "cores", lambda number=cores: number)
        assert suitable_streams() == streams
