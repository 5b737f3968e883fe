"""Both loops, on one device, on two logical devices, in several processes over gRPC: the same weights.

Networks with batch normalisation and dropout, mirrored showers, flipped labels; global batch 8, three steps. On one
device both loops agree to the last bit. Sums over replicas are rounded in another order, hence the tolerance.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from .detector import DETECTOR
from .forked import Forked
from .processes import environments, exit_codes
from .worker import Job, work

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1800)]  # A busy machine is not a failure.

TOLERANCE = 6e-5
"""Largest difference of a weight, a running statistic or a slot after three steps, over the largest of its tensor."""

COMMON = (
    *DETECTOR,
    "train.globalBatchSize=8",
    "train.generatorUpdates=1",
    "train.averageDecay=0",
    "train.labelFlip=0.2",
    "data.mirror=true",
    "train.lossWeights={layers: 0, transverse: 0, depth: 0, counts: 0, hits: 0}",
)
SHARED = (*COMMON, "train.synchronizedBatchNorm=true")
MIRRORED_BUILTIN = [*COMMON, "train.strategy=mirrored", "train.loop=builtin"]
SINGLE = {
    "custom": [*SHARED, "train.strategy=one-device"],
    "builtin": [*SHARED, "train.strategy=one-device", "train.loop=builtin"],
    "mirrored": [*COMMON, "train.strategy=mirrored"],
    # Statistics of half a batch, as replicas would have them that do not share theirs.
    "apart": [*COMMON, "train.strategy=one-device", "train.accumulate=2"],
}


def start(job, workers=1):
    """The processes of a job, ended."""
    log = Path(f"{job.output}.log")
    started = [Forked(partial(work, job), each, log) for each in environments(workers)]
    assert exit_codes(started) == [0] * workers, log.read_text()[-3000:]


class Outcome:
    """What a worker left of a case."""

    def __init__(self, output, case, worker=0):
        self.facts = json.loads(Path(f"{output}-{case}-{worker}.json").read_text())
        with np.load(f"{output}-{case}-{worker}.npz") as saved:
            self.state = dict(saved)

    def distance(self, other):
        """Largest difference of any number of the state, over the largest number of its tensor."""
        assert set(self.state) == set(other.state)
        return max(
            np.abs(value - other.state[name]).max() / max(np.abs(value).max(), 1e-3)
            for name, value in self.state.items()
        )


@pytest.fixture(scope="module")
def single(shards, tmp_path_factory):
    """One process with two logical devices: each case of `SINGLE`."""
    output = tmp_path_factory.mktemp("single") / "state"
    start(Job(SINGLE, str(shards), str(output), processors=2))
    return {case: Outcome(output, case) for case in SINGLE}


@pytest.fixture(scope="module")
def several(shards, tmp_path_factory):
    """Processes of several workers, by their number and loop."""

    def outcomes(workers, loop):
        output = tmp_path_factory.mktemp("several") / "state"
        job = Job({"case": [*COMMON, f"train.loop={loop}"]}, str(shards), str(output))
        start(job, workers)
        return [Outcome(output, "case", worker) for worker in range(workers)]

    return outcomes


def test_the_training_moves_far_more_than_the_tolerance(single):
    """Else equal weights would say nothing; nor would they if other statistics did not show."""
    state = single["custom"].state
    assert np.abs(state["generator/000"]).max() > 0.1
    assert single["custom"].distance(single["apart"]) > 50 * TOLERANCE
    losses = single["custom"].facts["losses"]
    assert len(losses) == 3
    assert abs(losses[0]["generator"] - losses[2]["generator"]) > 1e-3


def test_tensorflow_is_loaded_without_what_keras_alone_uses(single):
    """A quarter of the processor time of its import. Nothing in the list of modules stops a later import of them."""
    assert single["custom"].facts["loaded"] == []


def test_both_loops_on_one_device_agree_bit_for_bit(single):
    assert single["custom"].distance(single["builtin"]) == 0
    assert single["custom"].facts["losses"] == single["builtin"].facts["losses"]


def check_mirrored(single, outcome):
    assert (outcome.facts["strategy"], outcome.facts["replicas"]) == ("mirrored", 2)
    assert set(outcome.facts["copies"]) == {1}, "both devices have the same bits"
    assert single["custom"].distance(outcome) < TOLERANCE
    for one, other in zip(single["custom"].facts["losses"], outcome.facts["losses"]):
        assert other == pytest.approx(one, rel=1e-4)


def test_two_mirrored_devices_agree_with_one(single):
    check_mirrored(single, single["mirrored"])


@pytest.mark.long
def test_two_mirrored_devices_with_keras_own_loop_agree_with_one(single, shards, tmp_path):
    start(Job({"case": MIRRORED_BUILTIN}, str(shards), str(tmp_path / "state"), processors=2))
    check_mirrored(single, Outcome(tmp_path / "state", "case"))


def check_workers(single, outcomes):
    workers = len(outcomes)
    for outcome in outcomes:
        assert (outcome.facts["strategy"], outcome.facts["replicas"]) == ("multi-worker", workers)
        # Two numbers have one sum; a ring of more begins the sum of each part at another worker.
        assert outcome.facts["packing"] <= (0 if workers == 2 else 1e-6)
        assert single["custom"].distance(outcome) < TOLERANCE
        # Each worker has the same state to the last bit: it made the same updates.
        assert outcome.distance(outcomes[0]) == 0
        # Losses too; each would have set another progress, and they agree on its mean, 0.25.
        for one, other in zip(single["custom"].facts["losses"], outcome.facts["losses"]):
            assert other == pytest.approx(one, rel=1e-4)


def test_two_workers_agree_with_one_device(single, several):
    check_workers(single, several(2, "custom"))


@pytest.mark.long
def test_four_workers_agree_with_one_device(single, several):
    check_workers(single, several(4, "custom"))


@pytest.mark.long
@pytest.mark.parametrize("workers", [2, 4])
def test_workers_with_keras_own_loop_agree_with_one_device(single, several, workers):
    check_workers(single, several(workers, "builtin"))


def test_a_packed_all_reduce_is_that_of_each_variable(single):
    """To the last bit, as it adds up the same pairs of numbers."""
    assert single["mirrored"].facts["packing"] == 0
