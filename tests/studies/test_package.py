"""Studies of the package: each is valid, and those of the planner give what was published."""

import datetime as dt
import inspect
from importlib import import_module

import pytest

from caloscale.simulation.primaries import file_count, showers_in_file
from caloscale.studies import contenders, whole_run
from caloscale.studies.measures import MEASURES, Context
from caloscale.studies.points import configured_run, own_inputs, validated
from caloscale.studies.report import SweepTable
from caloscale.studies.runner import run_points
from caloscale.studies.sweep import Study, load_study, study_names

OWN_INPUTS = {"run": whole_run.RunInputs, "step": contenders.StepInputs, "generate": contenders.GenerateInputs}
"""Of measures whose other inputs are fields of the run configuration."""
CONTEXT = Context(dt.date(2026, 11, 21))


class InputsAreValidError(Exception):
    """Raised in the place of a measurement."""


def first_points(name: str, points: int) -> Study:
    """A study with the first points of each axis."""
    raw = load_study(name).model_dump(by_alias=True)
    for sweep in raw["sweeps"]:
        sweep["vary"] = [{name: values[:points] for name, values in axis.items()} for axis in sweep["vary"]]
    return Study.model_validate(raw, by_alias=True, by_name=False)


def test_both_families_are_judged_by_the_gates_of_the_flow():
    (sweep, *_) = load_study("families").sweeps
    judged = configured_run({"model.preset": "compact", "validation.gates": sweep.given["validation.gates"]})
    assert judged.validation.judging == configured_run({"model.preset": "flow"}).validation.judging


@pytest.mark.parametrize("name", study_names())
def test_a_study_has_known_measures_and_valid_runs_of_one_precision(name):
    """`auto` is what was measured for one worker, and float32 for several."""
    for sweep in load_study(name).sweeps:
        assert sweep.measure in MEASURES
        if sweep.measure in OWN_INPUTS:
            for inputs in sweep.points():
                configured_run(own_inputs(OWN_INPUTS[sweep.measure], inputs)[1])
        if sweep.measure == "run" and {"train.strategy", "train.workersPerNode"} & set(sweep.varied):
            assert all(inputs["train.precision"] != "auto" for inputs in sweep.points())


@pytest.mark.parametrize("name", study_names())
def test_a_study_gives_its_measures_inputs_that_they_know(name, tmp_path, monkeypatch):
    """Every point of a study whose measure begins with the validation of its inputs; nothing is measured."""

    def only(check):
        def checked(block, inputs):
            check(block, inputs)
            raise InputsAreValidError

        return checked

    for sweep in load_study(name).sweeps:
        module, _, function = MEASURES[sweep.measure].compute.__qualname__.partition(".")
        if not function:
            continue
        module = import_module(f"caloscale.studies.{module}")
        source = inspect.getsource(getattr(module, function))
        checks = [check for check in (validated, own_inputs) if f"{check.__name__}(" in source]
        # --set gives it any field of a run configuration
        assert own_inputs not in checks or MEASURES[sweep.measure].takes_fields
        for check in checks:
            monkeypatch.setattr(module, check.__name__, only(check))
        for inputs in sweep.points() if checks else ():
            with pytest.raises(InputsAreValidError):
                MEASURES[sweep.measure].compute(inputs, CONTEXT, tmp_path)


@pytest.mark.parametrize(
    "name", ["cluster-configuration", "preemption", "providers", "strategies", "stability", "exchange-model"]
)
def test_a_modelled_study_has_all_its_columns(name, tmp_path):
    study = first_points(name, 2)
    modelled = tuple(sweep for sweep in study.sweeps if MEASURES[sweep.measure].kind == "modelled")
    study = study.model_copy(update={"sweeps": modelled})
    for sweep, points in run_points(study, CONTEXT, tmp_path).items():
        (asked,) = (one for one in study.sweeps if one.name == sweep)
        table = SweepTable(asked, points)
        assert not table.problems and len(table.values) == len(asked.points())
        assert all(any(row[name] is not None for row in table.values) for name in asked.columns)


LAYOUTS = {
    (4, 4): 115.02, (8, 8): 116.11, (16, 16): 117.68, (32, 32): 129.84,
    (8, 4): 116.09, (16, 4): 119.82, (32, 4): 136.33,
}  # fmt: skip
"""Published training seconds of an epoch on 32 V100 by (workers, nodes)."""


def test_one_worker_a_node_is_the_best_layout_of_32(tmp_path):
    study = load_study("cluster-configuration")
    rows = SweepTable(study.sweeps[0], run_points(study, CONTEXT, tmp_path)["layouts"]).values
    measured = {(row["workers"], row["nodes"]): seconds for row in rows if (seconds := row["measured training s"])}
    assert measured == pytest.approx(LAYOUTS, abs=0.01)
    best = min(rows, key=lambda row: row["epoch s"])
    assert (best["workers"], best["nodes"]) == (4, 4)


def test_the_modelled_epochs_of_the_scaling_study_agree_with_the_published_ones(tmp_path):
    study = load_study("scaling").changed({"hardware.count": [2, 8, 32], "hardware.perNode": [1, 4, 8]})
    table = SweepTable(study.sweeps[0], run_points(study, CONTEXT, tmp_path)["gpus"])
    published = {row.values["GPUs"]: row.values["epoch s"] for row in study.sweeps[0].published}
    for row in table.values:
        assert row["published training s/epoch"] == pytest.approx(published[row["GPUs"]], rel=1e-3)
        assert row["low s"] < published[row["GPUs"]] + 12 and row["epoch s"] == pytest.approx(
            published[row["GPUs"]], rel=0.08
        )
    assert [row["GPUs"] for row in table.values] == [2, 8, 32]


def test_the_families_are_judged_by_the_same_gates():
    """Those of the preset flow, and the same held-out showers at each number of training showers."""
    wanted = configured_run({"model.preset": "flow"})
    (sweep,) = load_study("families").sweeps
    runs = [whole_run.run_of(inputs) for inputs in sweep.points()]
    assert {run.model.family for run in runs} == {"compact", "flow"}
    for run in runs:
        assert run.validation == wanted.validation and run.train.max_minutes is None
        assert run.data.model_copy(update={"showers": 1, "validation_fraction": 0.5}) == wanted.data.model_copy(
            update={"showers": 1, "validation_fraction": 0.5}
        )
        held_out = file_count(run.data) * showers_in_file(run.data) - run.data.showers
        assert 1400 <= held_out < 1400 + showers_in_file(run.data)


@pytest.mark.parametrize(
    ("name", "kept"),
    [("input-pipeline", ("waiting",)), ("cpu", ("step s",)), ("layout", ("batch", "step s", "layer", "layout"))],
)
def test_a_narrow_table_keeps_a_result(name, kept):
    """The columns before it may be inputs that fill the line."""
    assert load_study(name).sweeps[0].main_columns == kept
