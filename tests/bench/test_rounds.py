"""Contenders as real processes: what they answer, how they fail, how rounds are summed up."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.bench.results import Spread
from caloscale.bench.rounds import Contender, interleave
from caloscale.bench.worker import make, timed
from caloscale.errors import BenchError

PRODUCT = {"precision": "float32", "size": 64}


def children():
    return {child.pid for child in psutil.Process().children(recursive=True)}


PRODUCT_OF_NUMPY = """
import sys
from types import ModuleType

import numpy as np


def large_product(precision, size):
    matrix = np.ones((size, size), precision)

    def work(units):
        for _ in range(units):
            matrix @ matrix

    return work, {"flop": 2 * size**3}


module = ModuleType("caloscale.bench.work")
module.large_product = large_product
sys.modules[module.__name__] = module
sys.modules["tensorflow"] = ModuleType("tensorflow")
"""
"""What Python runs as it starts: the product is numpy's, as TensorFlow takes each process four seconds to load."""


@pytest.fixture
def without_tensorflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Processes of contenders have `PRODUCT_OF_NUMPY`."""
    (tmp_path / "sitecustomize.py").write_text(PRODUCT_OF_NUMPY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)


def test_contenders_are_timed_alternately_and_leave_nothing_even_when_one_fails(monkeypatch, without_tensorflow):
    monkeypatch.setattr("caloscale.bench.rounds.SHORTEST_SECONDS", 0.01)
    before = children()
    with (
        Contender("one", "large_product", PRODUCT) as one,
        Contender("other", "large_product", {**PRODUCT, "size": 512}) as other,
    ):
        clock = time.perf_counter()
        interleave([one, other], "test", seconds=0.0, rounds=3)
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
    # A process with numpy takes twenty MiB, and what the machine has at most.
    assert 20 < one.peak_memory_mib < psutil.virtual_memory().total / 2**20
    assert one.timing(1e3).median == pytest.approx(1e3 * np.median(one.seconds))
    faster = one.ratio(other, 2)
    assert faster.median == pytest.approx(2 * np.median(np.array(other.seconds) / np.array(one.seconds)))


def test_the_product_of_tensorflow_is_timed():
    work, facts = make("large_product", PRODUCT)
    assert facts == {"flop": 2 * 64**3}
    assert timed(work, 2) > 0


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=20))
def test_quartiles(seconds):
    found = Spread.of(seconds, 2)
    expected = 2 * np.percentile(seconds, [25, 50, 75])
    assert [found.low, found.median, found.high] == pytest.approx(list(expected))
    assert found.rounds == len(seconds)
