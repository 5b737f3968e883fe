"""A training that loses a worker: real processes, a real SIGKILL; nothing of it is lost but the steps since a save."""

import pytest
import yaml

from caloscale.studies.recovery import train_elastic
from tests.pipelines.conftest import TINY as RUN

TINY = {f"{block}.{field}": value for block, fields in yaml.safe_load(RUN).items() for field, value in fields.items()}
TWO = {name: value for name, value in TINY.items() if name != "train.batchPerReplica"}
TWO |= {"train.globalBatchSize": 12, "train.workersPerNode": 2}


@pytest.mark.long
def test_a_lost_worker_costs_a_pause_and_the_steps_since_a_checkpoint(tmp_path):
    inputs = {**TWO, "train.epochs": 40, "checkpoint.everySeconds": 1, "lostAt": 20, "workersAfter": 3}
    found = train_elastic(inputs, tmp_path / "run")
    assert found["restarts"] == 1 and found["workers"] == 3
    assert found["lostAtStep"] >= 20 and 0 <= found["stepsLost"] <= found["lostAtStep"] + 1
    assert found["pauseSeconds"] > 0 and found["steps"] == 40 * (48 // 12)
