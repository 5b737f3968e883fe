"""The plan of a run in its folder."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import yaml

from caloscale import spec, stages
from caloscale.errors import ConfigurationError, InputError
from caloscale.planning.billing.usage import RunUse
from caloscale.planning.search.own_machine import reference_speeds
from caloscale.stages.planning import keep_speeds, load_speeds, local_speed, read_plan
from caloscale.stages.record import StageMachine, recorded

HARDWARE = (
    "hardware.accelerator=nvidia-tesla-v100",
    "hardware.count=32",
    "hardware.perNode=8",
    "hardware.region=europe-west4",
)


def test_without_hardware_there_is_nothing_to_plan_and_the_page_says_so(tmp_path):
    assert "no `hardware` block" in stages.plan(spec.load_run(preset="compact"), tmp_path)
    assert read_plan(tmp_path) is None


def test_the_plan_is_kept_for_the_bill_and_shown_as_tables(tmp_path):
    run = spec.load_run(preset="variable-angle", overrides=[*HARDWARE, "train.batchPerReplica=96"])
    table, kept = stages.plan(run, tmp_path), read_plan(tmp_path)
    assert kept is not None and table.startswith("**chosen: 32 x nvidia-tesla-v100 on 4 x n1-standard-64")
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert any("4 x 8 (aligned)" in row for row in rows)
    assert {row.count("|") for row in rows} == {11, 6}  # tables of ten and five columns: no cell breaks its row
    assert stages.plan(run, tmp_path) == table and read_plan(tmp_path) == kept


def test_machines_that_do_not_exist_end_the_run_before_it_begins(tmp_path):
    run = spec.load_run(preset="variable-angle", overrides=["hardware.accelerator=nvidia-tesla-v10"])
    with pytest.raises(ConfigurationError, match="did you mean"):
        stages.plan(run, tmp_path / "run")
    assert not [path for path in (tmp_path / "run").rglob("*") if path.is_file()]


def test_a_run_on_processors_has_no_estimate_and_is_made(tmp_path):
    """Nodes without accelerators, as in manifests/samples/cpu.yaml."""
    sample = yaml.safe_load((Path(__file__).parents[2] / "manifests/samples/cpu.yaml").read_text(encoding="utf-8"))
    run = spec.build_run(sample["spec"])
    assert "processors was not measured" in stages.plan(run, tmp_path)
    assert read_plan(tmp_path) is None and spec.load_run(tmp_path / "run.yaml") == run


@pytest.mark.parametrize(
    ("priced_as", "says"),
    [
        ("machineType=n1-standard-3", "did you mean 'n1-standard-32'"),
        ("region=europe-west9", "another budget.pricedAs"),
    ],
)
def test_what_has_no_price_ends_the_run_before_it_begins(tmp_path, priced_as, says):
    run = spec.load_run(preset="compact", overrides=[f"budget.pricedAs.{priced_as}"])
    with pytest.raises(InputError, match="pricedAs") as refused:
        stages.plan(run, tmp_path)
    assert says in str(refused.value) and "--prices" not in str(refused.value)


def test_a_damaged_plan_is_refused(tmp_path):
    (tmp_path / "plan.json").write_text('{"chosen": 3')
    with pytest.raises(InputError, match="remedy"):
        read_plan(tmp_path)


def test_machines_that_are_measured_at_the_same_time_are_all_kept(tmp_path):
    first, file = reference_speeds()[0], tmp_path / "data" / "machines.csv"
    measured = [first.model_copy(update={"source": f"run {number}"}) for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda one: keep_speeds([one], file), measured))
    assert sorted(load_speeds(file), key=lambda row: row.source) == measured
    assert [path.name for path in file.parent.iterdir()] == ["machines.csv"]


def test_a_speed_of_training_is_of_the_machine_that_made_the_steps(tmp_path, monkeypatch):
    """A run that was validated again elsewhere: its training had ended and made no step there."""
    (tmp_path / "run.yaml").write_text(spec.dump_run(spec.load_run(preset="compact")))
    for processor, resumed in (("one", None), ("other", 30)):
        machine = StageMachine(processor=processor, cores=2, memory_gib=8)
        monkeypatch.setattr("caloscale.stages.record.this_machine", lambda machine=machine: machine)
        with recorded("train", tmp_path) as figures:
            figures.update(steps=30, resumedFromStep=resumed, showersPerSecond=70.0, globalBatchSize=32)
        with recorded("validate", tmp_path) as figures:
            figures["showersPerSecond"] = 900.0
    measured = local_speed(tmp_path, RunUse.model_construct(name="run"))
    assert (measured.processor, measured.trained_per_second, measured.generated_per_second) == ("one", 70.0, None)
