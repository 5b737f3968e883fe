"""What a run on a cluster used, for its bill and for later plans."""

import datetime as dt
from typing import Any

import pytest

from caloscale.client.usage import use_of
from caloscale.planning.billing.bill import bill
from caloscale.planning.billing.calibration import calibrate
from caloscale.spec import Run
from caloscale.status import AttemptStatus, NodeTotals, Placed, RunProgress, RunStatus
from tests.cluster import examples as ex

START = dt.datetime(2026, 11, 21, 10, 0, tzinfo=dt.UTC)
END = START + dt.timedelta(hours=2)
V100S = (
    "hardware.accelerator=nvidia-tesla-v100",
    "hardware.count=32",
    "hardware.perNode=8",
    "hardware.capacityType=spot",
)
PER_EPOCH = 124_950 // (32 * 96)


def run_of(*overrides: str) -> Run:
    return ex.run_of(*V100S, "train.batchPerReplica=96", *overrides)


def placed_of(run: Run) -> Placed:
    return ex.launch_of(run, *(ex.spot(f"n{i}") for i in range(4))).placed


def status_of(run: Run, placed: Placed | None = None, **progress: Any) -> RunStatus:
    """A run of sixty epochs that was placed on four nodes and has made twenty."""
    placed = placed or placed_of(run)
    held = NodeTotals(
        machine_type=placed.machine_type,
        accelerator=placed.accelerator,
        per_node=placed.per_node,
        region=placed.region,
        capacity_type=placed.capacity_type,
        nodes=4,
        node_seconds=4 * 7200,
    )
    attempt = AttemptStatus(
        number=1,
        job="gan-1",
        nodes=placed.nodes,
        workers=placed.workers,
        launched=START,
        ended=END,
        reason="Completed",
        training_seconds=6000,
        start_up_seconds=130,
        node_totals=(held,),
    )
    said: dict[str, Any] = {
        "epochs": 60,
        "steps": 60 * PER_EPOCH,
        "step": 20 * PER_EPOCH,
        "epoch": 20.0,
        "step_seconds": 2.9,
        "seconds_first_step": 130.0,
        "updated": END,
    }
    return RunStatus(placement=placed, progress=RunProgress(**{**said, **progress}), attempts=(attempt,))


def test_a_run_on_a_cluster_teaches_the_planner_what_its_worker_measured() -> None:
    run = run_of()
    use = use_of("gan", status_of(run), END, run)
    assert use is not None and use.observed is not None
    assert use.observed.model_dump(exclude_none=True) == {
        "network": "variable-angle",
        "workers": 4,
        "batch_per_replica": 96,
        "showers": 124_950,
        "epochs": 19,
        "step_seconds": 2.9,
        "first_step_seconds": 130.0,
    }
    residuals = calibrate([use], ex.CATALOGUE.measurements).residuals
    assert [(row.source, row.accelerator, row.count, row.step_seconds) for row in residuals] == [
        ("run gan", "nvidia-tesla-v100", 32, 2.9)
    ]


@pytest.mark.parametrize(
    "progress",
    [
        {"step_seconds": None},
        {"step": PER_EPOCH},  # the first epoch is no measurement
        {"updated": START - dt.timedelta(seconds=1)},  # of an earlier attempt
        {"steps": 60 * 39},  # other showers than the document's
        {"epochs": 0, "steps": 0},
    ],
)
def test_what_was_not_measured_stays_absent(progress: dict[str, Any]) -> None:
    run = run_of()
    use = use_of("gan", status_of(run, **progress), END, run)
    assert use is not None and use.observed is None


@pytest.mark.parametrize("change", [{"accumulate": 2}, {"accelerator": "cpu"}, {"nodes": 2}])
def test_what_no_plan_is_made_of_is_no_measurement(change: dict[str, Any]) -> None:
    run = run_of()
    placed = placed_of(run).model_copy(update=change)
    use = use_of("gan", status_of(run, placed), END, run)
    assert use is not None and use.observed is None


def test_a_step_on_other_cells_or_of_other_settings_is_no_measurement_of_the_preset() -> None:
    for preset, changed, is_measured in (
        ("compact", "data.preprocessing.rebin=[3, 3, 1]", True),
        ("compact", "data.preprocessing.rebin=[1, 1, 1]", False),
        ("flow", "data.preprocessing.rebin=[3, 3, 1]", True),
        ("flow", "data.preprocessing.rebin=[1, 3, 1]", False),
        ("flow", "model.settings.width=256", False),
        ("variable-angle", "train.seed=2", True),
        ("variable-angle", "train.precision=bfloat16", False),
        ("variable-angle", "train.deterministic=true", False),
        ("variable-angle", "train.convolutions=keras", False),
    ):
        sizes = ("data.showers=124950", "train.epochs=60")
        run = ex.run_of(*V100S, "train.batchPerReplica=96", changed, *sizes, preset=preset)
        use = use_of("gan", status_of(run), END, run)
        assert use is not None and (use.observed is not None) is is_measured


def test_accelerators_without_a_worker_are_unallocated() -> None:
    run = run_of()
    placed = placed_of(run).model_copy(update={"accelerators_per_worker": 6})
    use = use_of("gan", status_of(run, placed), END, run)
    made = bill(use, ex.CATALOGUE.prices)
    assert {part.purpose: part.share for part in made.parts}["unallocated"] == pytest.approx(1 / 4, abs=0.001)
