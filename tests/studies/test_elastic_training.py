"""A training whose workers leave and come: real processes and signals; not one bit of the result depends on it."""

import numpy as np
import pytest

from caloscale.errors import CheckpointError, ConfigurationError, TrainingError
from caloscale.spec import build_run
from caloscale.studies.elastic_training import sum_of, train_elastically
from caloscale.studies.elastic_worker import Worker
from caloscale.studies.whole_run import run_of
from caloscale.training.checkpoint.format import decode
from caloscale.training.loop import train
from tests.studies.test_recovery import TINY

CHANGES = [{"step": 2, "what": "kill"}, *2 * [{"step": 4, "what": "join"}], {"step": 7, "what": "leave"}]


@pytest.mark.integration
def test_workers_that_leave_and_come_change_no_bit(tmp_path):
    alone = train_elastically({**TINY, "workers": 1}, tmp_path / "alone")
    changing = train_elastically({**TINY, "workers": 2, "changes": CHANGES, "awaited": True}, tmp_path / "changing")
    assert changing["stateSha256"] == alone["stateSha256"]
    assert alone["steps"] == changing["steps"] == 12
    assert (alone["repeated"], changing["repeated"]) == (0, 1)
    for found, numbers in ((alone, [1]), (changing, [1, 2, 3])):
        assert [workers for workers, seconds in enumerate(found["stepSeconds"]) if seconds] == numbers
    assert changing["workersAtEnd"] == 2 and alone["killSeconds"] is alone["joinSeconds"] is None
    assert all(changing[name] > 0 for name in ("killSeconds", "leaveSeconds", "joinSeconds", "startSeconds"))

    # The product's own training of the same showers, in one process, without parts.
    train(run_of(TINY), tmp_path / "alone" / "dataset", tmp_path / "training")
    expected, _ = decode((tmp_path / "training/checkpoints/step-000000012.safetensors").read_bytes())
    got, _ = decode((tmp_path / "changing" / "state.safetensors").read_bytes())
    assert got.keys() == expected.keys() and got["step"] == expected["step"]
    # Sums in another order. The optimiser divides by the size of a gradient: where that is rounding, so is the change
    # of a single weight, by how much depends on the processor.
    for name, value in expected.items():
        assert np.linalg.norm(got[name] - value) <= 2e-5 * np.linalg.norm(value), name


@pytest.mark.integration
def test_what_a_worker_finds_out_ends_the_training(tmp_path):
    with pytest.raises(CheckpointError, match="missing"):
        train_elastically({**TINY, "train.startFrom": str(tmp_path / "missing")}, tmp_path / "from")
    late = [{"step": 13, "what": "leave"}]
    with pytest.raises(ConfigurationError, match="12 steps"):
        train_elastically({**TINY, "changes": late}, tmp_path / "late")


@pytest.mark.integration
def test_networks_with_statistics_of_a_batch_are_refused(tmp_path):
    run = build_run({"model": {"preset": "fixed-angle"}, "train": {"precision": "float32"}})
    with pytest.raises(ConfigurationError, match="batch normalisation"):
        Worker(run, tmp_path, 4)


def test_gradients_are_added_in_the_order_of_the_parts():
    parts = [np.array([value], np.float32) for value in (1e8, 3, -1e8, 3)]
    assert sum_of(parts, 1) == np.float32(3)  # 3 is lost beside 1e8; another order gives 0 or 6
    assert parts[0] == 1e8
    with pytest.raises(TrainingError, match="step 7"):
        sum_of([*parts, np.array([np.nan], np.float32)], 7)
