"""Points are kept, resumed and never half-written; documents that cannot be are refused."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from caloscale.errors import ConfigurationError, InputError
from caloscale.studies.measures import MEASURES, Context, Measure, configured_run
from caloscale.studies.points import Point
from caloscale.studies.report import run_study
from caloscale.studies.runner import run_points
from caloscale.studies.sweep import Study, load_study

CONTEXT = Context(dt.date(2026, 11, 21))
DOCUMENT = {
    "name": "squares",
    "title": "Squares",
    "sweeps": [
        {
            "name": "all",
            "title": "Squares of sums",
            "measure": "square",
            "given": {"asOf": "today"},
            "vary": [{"a": [1, 2, 3], "b": [10, 20, 30]}, {"c": [0, 5]}],
            "columns": {"a": "a", "square": "square", "first": "list.0", "nothing": "none.deeper"},
            "plot": {"x": "a", "y": "square"},
        }
    ],
}


@pytest.fixture
def computed(monkeypatch):
    """A measure of the tests' own that notes what it was asked, and can be stopped."""
    asked = []

    def square(inputs, context, folder):
        if len(asked) == square.stop_after:
            raise KeyboardInterrupt
        asked.append(dict(inputs))
        total = inputs["a"] + inputs["b"] + inputs["c"]
        return {"square": total**2, "list": [total], "none": None}

    square.stop_after = None
    asked_version = {"version": "1"}
    monkeypatch.setitem(MEASURES, "square", Measure(square, lambda _: asked_version["version"]))
    return asked, square, asked_version


def study(**changes):
    return Study.model_validate({**DOCUMENT, **changes})


def test_axes_are_multiplied_and_their_inputs_change_together(computed, tmp_path):
    points = run_points(study(), CONTEXT, tmp_path)["all"]
    assert [(p.value("a"), p.value("b"), p.value("c")) for p in points] == [
        (a, 10 * a, c) for a in (1, 2, 3) for c in (0, 5)
    ]
    assert [p.value("square") for p in points] == [(11 * a + c) ** 2 for a in (1, 2, 3) for c in (0, 5)]
    assert points[0].value("list.0") == 11 and points[0].value("none.deeper") is None
    assert points[0].inputs["asOf"] == "2026-11-21"


def test_a_study_that_was_stopped_resumes(computed, tmp_path):
    asked, square, version = computed
    square.stop_after = 4
    with pytest.raises(KeyboardInterrupt):
        run_study(study(), CONTEXT, tmp_path, "x")
    assert len(asked) == 4 and len(list((tmp_path / "points").glob("*.json"))) == 4
    assert not (tmp_path / "study.md").exists()
    square.stop_after = None
    run_study(study(), CONTEXT, tmp_path, "x")
    assert len(asked) == 6 and len({json.dumps(inputs) for inputs in asked}) == 6
    run_study(study(), CONTEXT, tmp_path, "x")
    assert len(asked) == 6
    version["version"] = "2"
    run_study(study(), CONTEXT, tmp_path, "x")
    assert len(asked) == 12


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"inputs": {}, "result": {}}', '{"inputs": {"a": 1}}'])
def test_a_damaged_point_is_computed_again(computed, tmp_path, damage):
    asked, _, _ = computed
    before = run_points(study(), CONTEXT, tmp_path)
    for file in (tmp_path / "points").glob("*.json"):
        file.write_text(damage)
    assert run_points(study(), CONTEXT, tmp_path) == before
    assert len(asked) == 12


def test_only_what_was_added_is_computed(computed, tmp_path):
    asked, _, _ = computed
    run_points(study(), CONTEXT, tmp_path)
    more = json.loads(json.dumps(DOCUMENT))
    more["sweeps"][0]["vary"][1]["c"] = [0, 7, 5]
    run_points(Study.model_validate(more), CONTEXT, tmp_path)
    assert [inputs["c"] for inputs in asked[6:]] == [7, 7, 7]


def test_a_point_that_fails_is_named_and_not_kept(tmp_path):
    sweep = {
        "name": "bad",
        "title": "",
        "measure": "plan",
        "given": {"hardware.accelerator": "nvidia-tesla-v100", "hardware.count": 8},
        "vary": [{"hardware.perNode": [8, 3]}],
        "columns": {"usd": "usd"},
    }
    with pytest.raises(InputError, match=r"sweep bad, point .*perNode\": 3") as error:
        run_points(study(sweeps=[sweep]), CONTEXT, tmp_path)
    assert error.value.exit_code == 2 and error.value.remedy
    assert len(list((tmp_path / "points").iterdir())) == 1


PLANNED = {
    "name": "plans",
    "title": "",
    "measure": "plan",
    "given": {"hardware.accelerator": "nvidia-tesla-v100", "hardware.count": 8, "hardware.region": "europe-west4"},
    "columns": {"usd": "usd", "of": "prices.asOf"},
}


def test_a_plan_without_a_day_is_of_the_day_that_is_asked_for(tmp_path):
    days = [dt.date(2026, 11, 21), dt.date(2022, 6, 1)]
    points = [run_points(study(sweeps=[PLANNED]), Context(day), tmp_path)["plans"][0] for day in days]
    assert [point.value("prices.asOf") for point in points] == [str(day) for day in days]
    assert points[0].value("usd") != points[1].value("usd")
    given = {**PLANNED, "given": {**PLANNED["given"], "asOf": "2022-06-01"}}
    assert run_points(study(sweeps=[given]), Context(days[0]), tmp_path)["plans"] == points[1:]


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"asOf": "yesterday"}, r"asOf: is not a day \(got 'yesterday'\)"),
        ({"train.epochs": 4, "train": 3}, r"train: is no block, but train.epochs is given, too \(got 3\)"),
        ({"train": 3, "train.epochs": 4}, r"train: is no block"),
        ({"train": None, "train.epochs": 4}, r"train: is no block"),
    ],
)
def test_inputs_of_a_plan_that_cannot_be(tmp_path, inputs, says):
    sweep = {**PLANNED, "given": {**PLANNED["given"], **inputs}}
    with pytest.raises(ConfigurationError, match=says) as error:
        run_points(study(sweeps=[sweep]), CONTEXT, tmp_path)
    assert error.value.exit_code == 2 and error.value.remedy


def test_a_block_and_its_fields_are_one_whatever_stands_first():
    block = {"epochs": 4, "seed": 2}
    for inputs in ({"train": block, "train.epochs": 7}, {"train.epochs": 7, "train": block}):
        run = configured_run(inputs | {"data.source": "mine"})
        assert (run.train.epochs, run.train.seed) == (7, 2)
    assert block == {"epochs": 4, "seed": 2}


def test_a_run_that_cannot_begin_names_its_point(tmp_path):
    sweep = {
        "name": "runs",
        "title": "",
        "measure": "run",
        "given": {"model.preset": "compact", "data.source": str(tmp_path / "absent")},
        "vary": [{"train.seed": [1]}],
        "columns": {"auc": "physics.classifierAuc"},
    }
    with pytest.raises(InputError, match="sweep runs, point"):
        run_points(study(sweeps=[sweep]), CONTEXT, tmp_path)
    assert not list((tmp_path / "points").glob("*.json"))


def _changed(**changes):
    return {**DOCUMENT, "sweeps": [{**DOCUMENT["sweeps"][0], **changes}]}


BAD = {
    "no such measure": (_changed(measure="epochCosts"), "did you mean 'epochCost'"),
    "axis of unequal lengths": (_changed(vary=[{"a": [1, 2], "b": [1]}]), "different numbers"),
    "empty axis": (_changed(vary=[{"a": []}]), "different numbers"),
    "input twice": (_changed(vary=[{"asOf": ["2022-06-01"]}]), "given twice"),
    "plot of nothing": (_changed(plot={"x": "a", "y": "cube"}), "not there: cube"),
    "unknown key": ({**DOCUMENT, "sweep": []}, "sweep"),
    "no sweeps": ({**DOCUMENT, "sweeps": []}, "sweeps"),
    "bad name": ({**DOCUMENT, "name": "../x"}, "name"),
    "two of a name": ({**DOCUMENT, "sweeps": DOCUMENT["sweeps"] * 2}, "same name"),
    "no such column": (
        _changed(measure="epochCost", columns={"usd": "usdd"}, plot=None, vary=[], given={
            "accelerator": "tpu-v3", "count": 4, "region": "europe-west4", "capacityType": "spot", "asOf": "today",
        }),
        "did you mean 'usd'",
    ),
    "no such run": (
        _changed(measure="epochCost", columns={"usd": "usd"}, plot=None, vary=[], given={
            "accelerator": "tpu-v3", "count": 5, "region": "europe-west4", "capacityType": "spot", "asOf": "today",
        }),
        "no such run was measured",
    ),
    "no such way of buying": (
        _changed(measure="epochCost", columns={"usd": "usd"}, plot=None, vary=[], given={
            "accelerator": "tpu-v3", "count": 4, "region": "europe-west4", "capacityType": "preemptible",
            "asOf": "today",
        }),
        r"capacityType: .*'on-demand' or 'spot' \(got 'preemptible'\)",
    ),
    "input that does not exist": (
        _changed(measure="epochCost", columns={"usd": "usd"}, plot=None, vary=[], given={"gpu": 4}),
        "inputs of an epoch",
    ),
    "conclusions that do not exist": ({**_changed(measure="square"), "conclusions": "costs"}, "not known"),
    "conclusions of another study": ({**_changed(measure="square"), "conclusions": "cost"}, "need a sweep"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_studies_that_are_not_valid(computed, tmp_path, case):
    document, says = BAD[case]
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigurationError, match=says) as error:
        run_study(load_study(file), CONTEXT, tmp_path / "out", "x")
    assert error.value.exit_code == 2 and error.value.remedy


def test_studies_are_found_by_name():
    with pytest.raises(ConfigurationError, match="did you mean 'cost'"):
        load_study("costs")
    assert load_study("cost").name == "cost"


@given(st.lists(st.lists(st.integers(), min_size=1, max_size=4), min_size=1, max_size=4))
def test_every_combination_once(axes):
    sweep = study(sweeps=[{**DOCUMENT["sweeps"][0], "vary": [{f"x{i}": v} for i, v in enumerate(axes)], "plot": None}])
    points = sweep.sweeps[0].points()
    lengths = 1
    for values in axes:
        lengths *= len(values)
    assert len(points) == lengths
    assert {p["x0"] for p in points} == set(axes[0])


def test_a_path_into_a_list_and_beyond_it():
    point = Point({"a": 1}, {"b": [5, {"c": 6}]})
    assert point.value("b.1.c") == 6
    with pytest.raises(ConfigurationError, match="neither an input nor in the result"):
        point.value("b.2")


def test_the_example_of_the_page_runs(tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "studies.md").read_text()
    file = tmp_path / "batch.yaml"
    file.write_text(page.split("```yaml\n")[1].split("```")[0])
    table = run_study(load_study(file), CONTEXT, tmp_path / "out", "x").tables[0]
    measured = {row[0]: row[4] for row in table.rows if row[1] == "spot"}
    assert measured == pytest.approx({16: 182.65, 32: 142.23, 48: 128.19, 64: 121.69, 80: 120.11, 96: 115.02}, rel=1e-3)
