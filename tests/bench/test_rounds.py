"""Contenders as real processes: what they answer, how they fail, how rounds are summed up."""

from __future__ import annotations

import os
import signal
import time

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.bench.rounds import Contender, interleave, ratios, timing
from caloscale.errors import BenchError

PRODUCT = {"precision": "float32", "size": 64}


def children():
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_contenders_are_timed_alternately_and_leave_nothing_even_when_one_fails(monkeypatch):
    monkeypatch.setattr("caloscale.bench.rounds.SHORTEST_SECONDS", 0.01)
    before = children()
    with Contender("one", "product", PRODUCT) as one, Contender("other", "product", {**PRODUCT, "size": 512}) as other:
        clock = time.perf_counter()
        assert interleave([one, other], "test", seconds=0.0, rounds=3) == 3
        elapsed = time.perf_counter() - clock
        assert len(children() - before) == 2
        os.kill(other._process.pid, signal.SIGKILL)
        with pytest.raises(BenchError, match="other ended with exit code -9"):
            other.run(1)
        # What the processes say is within what passed here.
        assert 0 < sum(one.seconds) < elapsed and 0 < sum(other.seconds) < elapsed
    assert children() <= before
    assert len(one.seconds) == len(other.seconds) == 3
    assert one.facts["flop"] == 2 * 64**3
    # A process with TensorFlow takes a hundred MiB, and what the machine has at most.
    assert 100 < one.peak_memory_mib < psutil.virtual_memory().total / 2**20
    assert one.timing(1e3).median == pytest.approx(1e3 * np.median(one.seconds))
    faster = ratios(other, one)
    assert faster.median == pytest.approx(np.median(np.array(other.seconds) / np.array(one.seconds)))


@pytest.mark.long
def test_a_contender_that_cannot_start_says_why():
    before = children()
    with pytest.raises(BenchError, match="no-such-preset"):
        Contender("ours", "step", {"configuration": {"model": {"preset": "no-such-preset"}}, "batch": 2}).__enter__()
    assert children() <= before


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=20))
def test_quartiles(seconds):
    found = timing(seconds)
    expected = np.percentile(seconds, [25, 50, 75])
    assert [found.low, found.median, found.high] == pytest.approx(list(expected))
    assert found.rounds == len(seconds)
