from __future__ import annotations

import pytest

from caloscale.errors import ConfigurationError
from caloscale.spec import build_run, dump_run, load_run, parse_run, seconds_of


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("10m", 600),
        ("6h", 21600),
        ("1h30m", 5400),
        ("2d", 172800),
        ("1d1s", 86401),
        ("3650d", 315360000),
        ("0003650d0s", 315360000),
    ],
)
def test_durations(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("budget.deadline=6 hours", "budget.deadline"),
        ("budget.deadline=0s", "budget.deadline"),
        ("budget.deadline=30m6h", "budget.deadline"),
        ("budget.deadline=9999999d", "budget.deadline"),
        ("cluster.ttlSecondsAfterFinished=315360001", "cluster.ttlSecondsAfterFinished"),
        ("budget.maxUsd=-5", "budget.maxUsd"),
        ("hardware.count=0", "hardware.count"),
        ("hardware.topology=two by two", "hardware.topology"),
        ("hardware.capacityType=preemptible", "hardware.capacityType"),
        ("hardware.acelerator=nvidia-l4", "hardware.acelerator"),
        ("recovery.waitForCapacity=soon", "recovery.waitForCapacity"),
    ],
)
def test_bad_values_name_the_field_and_a_remedy(override, field):
    with pytest.raises(ConfigurationError) as error:
        load_run(preset="variable-angle", overrides=[override])
    assert error.value.field == field
    assert error.value.remedy


@pytest.mark.parametrize(
    "hardware",
    [
        {"count": 10, "perNode": 8},
        {"count": 16, "perNode": 8, "nodes": 3},
        {"count": 16, "workers": 3, "acceleratorsPerWorker": 4},
        {"nodes": 2, "workers": 4},
        {"perNode": 8, "acceleratorsPerWorker": 4},
    ],
)
def test_layouts_that_contradict_themselves_are_refused(hardware):
    with pytest.raises(ConfigurationError, match="hardware"):
        build_run({"hardware": hardware})


def test_free_placement_may_divide_nodes():
    run = build_run({"hardware": {"placement": "Free", "nodes": 2, "perNode": 8, "workers": 4, "count": 16}})
    assert parse_run(dump_run(run)) == run


def test_a_global_batch_is_divided_among_the_replicas():
    run = load_run(preset="variable-angle", overrides=["train.globalBatchSize=3072"])
    assert run.train.replica_batch(32) == 96
    with pytest.raises(ValueError, match="not a multiple of 5"):
        run.train.replica_batch(5)
