"""Points are kept, resumed and never half-written; documents that cannot be are refused."""

import csv
import dataclasses
import datetime as dt
import json
import re
import sys
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from caloscale.errors import CaloscaleError, ConfigurationError, InputError
from caloscale.storage.objects import upload
from caloscale.studies.measures import MEASURES, Context, Measure
from caloscale.studies.points import Point, _content_of, configured_run
from caloscale.studies.report import SweepTable, _spread, draw, run_study, speed_ups
from caloscale.studies.runner import run_points
from caloscale.studies.sweep import SpeedUp, Study, Sweep, load_study, study_names

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
    monkeypatch.setitem(MEASURES, "square", Measure(square, "measured", lambda _: asked_version["version"]))
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


def test_a_front_has_the_points_that_none_beats(computed, tmp_path, monkeypatch):
    """Squares that rise with x, and one of more x and a smaller square: a line over the first and no other point."""
    drawn = {}
    monkeypatch.setattr("matplotlib.axes.Axes.step", lambda _, x, y, **__: drawn.update(x=list(x), y=list(y)))
    sweep = {**DOCUMENT["sweeps"][0], "plot": {"x": "a", "y": "square", "front": True}}
    axes = [{"a": [1, 2, 3, 4], "b": [9, 8, 4, 5]}, {"c": [0]}]
    run_study(study(sweeps=[{**sweep, "vary": axes}]), CONTEXT, tmp_path, "x")
    assert drawn == {"x": [1, 3], "y": [100, 49]}


@pytest.mark.parametrize("b", [-9, 3])
def test_a_figure_shows_values_below_zero(computed, tmp_path, monkeypatch, b):
    """Otherwise its axis begins at zero."""
    lowest = []
    saved = "matplotlib.figure.Figure.savefig"
    monkeypatch.setattr(saved, lambda figure, *_, **__: lowest.append(figure.axes[0].get_ylim()[0]))
    sweep = {**DOCUMENT["sweeps"][0], "columns": {"a": "a", "b": "b"}, "plot": {"x": "a", "y": "b"}}
    sweep = Sweep.model_validate(sweep | {"vary": [{"a": [1, 2], "b": [b, b + 1]}], "given": {}})
    draw(SweepTable(sweep, [Point(inputs, {}) for inputs in sweep.points()]), tmp_path / "b.svg")
    assert lowest[0] <= b if b < 0 else lowest == [0]


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


@pytest.mark.parametrize(
    "given",
    [
        {"data.source": "FOLDER"},
        {"data.source": "BUCKET"},
        {"data": {"source": "FOLDER/*.h5"}},
        {"train.startFrom": "FOLDER"},
        {"solver.dataSets": [{"source": "FOLDER/a.h5"}]},
        {"solver.dataSets": [{"options": {"model": "FOLDER"}}]},
    ],
)
def test_other_files_under_the_same_name_make_another_point(computed, tmp_path, given, bucket_server):
    asked, _, _ = computed
    bucket = f"{bucket_server}/{tmp_path.name}"
    showers = tmp_path / "showers"
    showers.mkdir()
    changed = json.loads(json.dumps(DOCUMENT))
    changed["sweeps"][0]["given"] |= json.loads(
        json.dumps(given).replace("FOLDER", str(showers)).replace("BUCKET", bucket)
    )
    numbers = []
    for content in (b"first", b"first", b"other"):
        (showers / "a.h5").write_bytes(content)
        upload(showers, bucket)
        _content_of.cache_clear()
        run_points(Study.model_validate(changed), CONTEXT, tmp_path / "study")
        numbers.append(len(asked))
    assert numbers[1] == numbers[0] and numbers[2] == 2 * numbers[0]


@pytest.mark.parametrize("on_path", [True, False])
@pytest.mark.parametrize("file", ["mine.py", "mine/parts/smearing.py"])
@pytest.mark.parametrize(
    "given", [{"solver.objective": "mine.Own"}, {"solver.dataSets": [{"environment": "mine.Own"}]}]
)
def test_other_code_of_the_user_makes_another_point(computed, tmp_path, monkeypatch, file, given, on_path):
    """Also in the working directory, in which ranks find it."""
    asked, _, _ = computed
    code = tmp_path / "code" / file
    code.parent.mkdir(parents=True)
    (code.parents[1] / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])
    (monkeypatch.syspath_prepend if on_path else monkeypatch.chdir)(tmp_path / "code")
    numbers = []
    for content in ("first", "first", "other"):
        code.write_text(content)
        _content_of.cache_clear()
        run_points(Study.model_validate(_changed(given={"asOf": "today"} | given)), CONTEXT, tmp_path / "study")
        numbers.append(len(asked))
    assert numbers == [6, 6, 12]


def test_a_point_that_fails_is_a_row_that_says_why_and_is_not_kept(tmp_path):
    sweep = {
        "name": "bad",
        "title": "",
        "measure": "plan",
        "given": {"hardware.accelerator": "nvidia-tesla-v100", "hardware.count": 8},
        "vary": [{"hardware.perNode": [3, 8]}],
        "columns": {"GPUs": "hardware.perNode", "usd": "usd"},
    }
    outcome = run_study(study(sweeps=[sweep]), CONTEXT, tmp_path, "x")
    (table,) = outcome.tables
    assert [point.error is None for point in table.points] == [False, True] and outcome.exit_code == 2
    assert table.cells[0] == ("3", "failed") and float(table.cells[1][1]) > 0
    assert re.search(r"sweep bad, point .*perNode\": 3.*remedy", table.problems[0])
    assert len(list((tmp_path / "points").iterdir())) == 1
    for name in ("study.md", "study.html", "study.json", "bad.csv"):
        assert "perNode" in (tmp_path / name).read_text()
    with pytest.raises(InputError, match="perNode"):
        run_points(study(sweeps=[{**sweep, "vary": [{"hardware.perNode": [3]}]}]), CONTEXT, tmp_path)


def test_a_column_that_does_not_exist_is_refused_at_the_first_point(computed, tmp_path):
    asked, *_ = computed
    with pytest.raises(ConfigurationError, match="sweep all: columns: is neither an input nor in the result"):
        run_points(Study.model_validate(_changed(columns={"cube": "cube"}, plot=None)), CONTEXT, tmp_path)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"plot": {"x": "a", "y": "text"}},
        {"plot": {"x": "text", "y": "a", "front": True}},
        {"plot": None, "speedUp": {"time": "a", "units": "text"}},
    ],
)
def test_figures_and_speed_ups_need_numbers_at_the_first_point(computed, tmp_path, change):
    asked, *_ = computed
    changed = _changed(columns={"a": "a", "text": "given"}, given={"given": "some"}, **change)
    with pytest.raises(ConfigurationError, match="sweep all: text: has no numbers"):
        run_points(Study.model_validate(changed), CONTEXT, tmp_path)
    assert len(asked) == 1


def test_numbers_and_text_are_on_one_axis_and_what_is_absent_in_a_repetition_is_said(computed, tmp_path):
    sweep = {**DOCUMENT["sweeps"][0], "columns": {"a": "a", "where": "where", "square": "square"}, "seed": None}
    axes = [{"where": [1, "auto", None, [2, 3]]}]
    sweep |= {"vary": axes, "given": {"a": 1, "b": 2, "c": 3}, "plot": {"x": "where", "y": "square"}}
    run_study(study(sweeps=[sweep]), CONTEXT, tmp_path, "x")
    assert "auto" in (tmp_path / "all.svg").read_text()
    assert _spread([None, 41.0, 39.5]) == "none, 41, 39.5"


def test_repetitions_are_interleaved_and_shown_as_median_and_range(computed, tmp_path):
    asked, square, _ = computed
    totals = iter([4, 1, 2, 3, 6, 5])
    measure = MEASURES["square"]
    timed = dataclasses.replace(measure, compute=lambda *given: {**square(*given), "square": next(totals)})
    MEASURES["square"] = timed
    axes = [{"a": [1, 2], "b": [10, 20]}, {"c": [0]}]
    outcome = run_study(
        study(sweeps=[{**DOCUMENT["sweeps"][0], "vary": axes, "repetitions": 3}]), CONTEXT, tmp_path, "x"
    )
    assert [inputs["a"] for inputs in asked] == [1, 2, 1, 2, 1, 2]
    (table,) = outcome.tables
    assert [row[:2] for row in table.cells] == [("1", "4 (2 to 6)"), ("2", "3 (1 to 5)")]
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert [(row["a"], row["square"], row["repetition"]) for row in rows] == [
        ("1", "4", "0"), ("2", "1", "0"), ("1", "2", "1"), ("2", "3", "1"), ("1", "6", "2"), ("2", "5", "2"),
    ]  # fmt: skip
    assert run_study(outcome.study, CONTEXT, tmp_path, "x").tables[0].cells == table.cells and len(asked) == 6


def test_the_seed_is_the_number_of_the_repetition(computed, tmp_path):
    asked, *_ = computed
    sweep = {**DOCUMENT["sweeps"][0], "vary": [{"a": [1, 2]}, {"b": [10]}], "repetitions": 3, "seed": "c"}
    (table,) = run_study(study(sweeps=[sweep]), CONTEXT, tmp_path, "x").tables
    assert [(inputs["a"], inputs["c"]) for inputs in asked] == [(1, 1), (2, 1), (1, 2), (2, 2), (1, 3), (2, 3)]
    assert [row[1] for row in table.cells] == [f"{13**2} ({12**2} to {14**2})", f"{14**2} ({13**2} to {15**2})"]
    assert "each with another c" in table.note
    with pytest.raises(ValidationError, match="c is the number of the repetition"):
        study(sweeps=[{**sweep, "given": {"c": 1}}])


def test_published_values_stand_apart(computed, tmp_path):
    published = [{"source": "arXiv 1234.5678, table 1", "values": {"a": 4, "square": 2000}}]
    outcome = run_study(study(sweeps=[{**DOCUMENT["sweeps"][0], "published": published}]), CONTEXT, tmp_path, "x")
    (table,) = outcome.tables
    assert table.headings[-1] == "figures"
    assert [row[-1] for row in table.cells] == ["measured"] * 6 + ["published"]
    assert table.cells[-1] == ("4", "2000", "", "", "published")
    assert (
        "arXiv 1234.5678" in (tmp_path / "study.md").read_text() and "published" in (tmp_path / "all.svg").read_text()
    )
    assert (tmp_path / "all.png").read_bytes()[:4] == b"\x89PNG"


def test_speed_up_and_efficiency_are_those_of_their_definition():
    rows = [{"n": n, "s": s, "kind": k} for k, n, s in (("a", 2, 10.0), ("a", 8, 4.0), ("b", 4, 3.0), ("b", 1, 9.0))]
    found = speed_ups(SpeedUp(time="s", units="n", series=("kind",)), [0] * 4, [*rows])
    assert [row["speed-up"] for row in found] == [2.0, 5.0, 3.0, 1.0]
    assert [row["efficiency"] for row in found] == [1.0, 0.625, 0.75, 1.0]
    rows = [{"n": n, "s": s} for n, s in ((1, 8.0), (2, 4.0), (1, None), (2, 4.0), (2, None))]
    # In the second and third rounds there is no time to compare with.
    found = speed_ups(SpeedUp(time="s", units="n"), [0, 0, 1, 1, 2], rows)
    assert [row["speed-up"] for row in found] == [1, 2, None, None, None] and found[3]["efficiency"] is None
    rows = [{"n": n, "s": s} for n, s in ((1, None), (1, 8.0), (1, 6.0), (2, 4.0))]  # the first time counts
    assert [row["speed-up"] for row in speed_ups(SpeedUp(time="s", units="n"), [0] * 4, rows)][1:] == [1, 8 / 6, 2]


def test_inputs_are_changed_by_name(computed):
    changed = study().changed({"c": [7, 8, 9], "asOf": "2022-06-01", "repetitions": 2})
    (sweep,) = changed.sweeps
    assert [p["c"] for p in sweep.points()][:3] == [7, 8, 9] and sweep.given == {"asOf": "2022-06-01"}
    assert sweep.repetitions == 2
    with pytest.raises(ConfigurationError, match="input of no sweep"):
        study().changed({"d": 1})
    planned = study(sweeps=[PLANNED]).changed({"train.epochs": 3})
    assert planned.sweeps[0].given["train.epochs"] == 3
    with pytest.raises(ConfigurationError, match="different numbers"):
        study().changed({"a": [1]})


def test_a_page_says_that_its_texts_are_of_other_values(tmp_path, computed):
    """A title may hold a number that --set changes."""
    texts = study(title="Squares of 1 to 3", about="Up to 3.\n")
    run_study(texts.changed({"a": [7], "b": [8]}), CONTEXT, tmp_path, "x")
    assert (
        "Up to 3. --set changed a, b: titles and notes may state what was before."
        in (tmp_path / "study.md").read_text()
    )
    assert texts.changed({}).about == texts.about


def test_a_text_has_the_values_of_its_inputs(tmp_path, computed):
    texts = study(about="A of {a}, {c} later, {asOf}; {other}")
    assert texts.described == "A of 1 or 2 or 3, 0 or 5 later, today; {other}"
    run_study(texts.changed({"a": [7], "b": [8]}), CONTEXT, tmp_path, "x")
    assert "A of 7, 0 or 5 later, today; {other} --set changed" in (tmp_path / "study.md").read_text()
    (about, _) = load_study("providers").changed({"train.epochs": 7, "asOf": "2022-01-01"}).described.split("; on", 1)
    assert "7 epochs" in about and "Prices of 2022-01-01" in about and "60" not in about


def test_sweeps_are_left_out_by_name():
    other = {**DOCUMENT["sweeps"][0], "name": "other"}
    both = study(sweeps=[*DOCUMENT["sweeps"], other], conclusions="cost")
    kept = both.changed({"sweeps": ["other"], "a": [4, 5, 6]})
    assert [(sweep.name, sweep.points()[0]["a"]) for sweep in kept.sweeps] == [("other", 4)]
    assert kept.conclusions is None and both.changed({}).conclusions == "cost"
    for wrong in ("other", [], ["third"], [["other"]]):
        with pytest.raises(
            ConfigurationError, match=r"(?s)are not sweeps.*write sweeps=\[all\], with names of all, other"
        ):
            both.changed({"sweeps": wrong})


def test_a_folder_has_no_files_of_sweeps_that_are_left_out(computed, tmp_path):
    """The figure of a sweep without a plot is removed as well; other files in the folder stay."""
    both = study(sweeps=[*DOCUMENT["sweeps"], {**DOCUMENT["sweeps"][0], "name": "other"}])
    run_study(both, CONTEXT, tmp_path, "x")
    (tmp_path / "own.csv").touch()
    assert {path.name for path in tmp_path.glob("other.*")} == {"other.csv", "other.svg", "other.png"}
    run_study(both.changed({"sweeps": ["all"]}), CONTEXT, tmp_path, "x")
    assert {path.name for path in tmp_path.glob("*.[cps][svn][vg]")} == {"all.csv", "all.svg", "all.png", "own.csv"}
    run_study(study(sweeps=[{**DOCUMENT["sweeps"][0], "plot": None}]), CONTEXT, tmp_path, "x")
    assert {path.name for path in tmp_path.glob("all.*")} == {"all.csv"}
    (tmp_path / "study.json").write_text("[]")
    run_study(study(), CONTEXT, tmp_path, "x")


def test_the_values_of_an_axis_are_not_given_to_a_sweep_that_has_one_value(computed):
    fixed = {**DOCUMENT["sweeps"][0], "name": "fixed", "given": {"a": 1, "b": 2}, "vary": [{"c": [0, 5]}]}
    changed = study(sweeps=[DOCUMENT["sweeps"][0], fixed]).changed({"a": [7, 8, 9]})
    assert changed.sweeps[0].vary[0]["a"] == (7, 8, 9) and changed.sweeps[1].given == {"a": 1, "b": 2}
    assert study(sweeps=[fixed]).changed({"a": 7}).sweeps[0].given["a"] == 7
    plans = [{**PLANNED, "vary": [{"train.epochs": [1]}]}, {**PLANNED, "name": "other"}]
    one, other = study(sweeps=plans).changed({"train.epochs": [2, 3], "data.energyGev": [5, 9]}).sweeps
    assert one.vary[0]["train.epochs"] == (2, 3) and "train.epochs" not in other.given
    assert one.given["data.energyGev"] == other.given["data.energyGev"] == [5, 9]


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


def test_the_epochs_of_a_plan_are_those_that_are_trained(tmp_path):
    """train.maxMinutes ends the training after some of the sixty, unless it is long enough for all."""
    sweep = {**PLANNED, "vary": [{"train.maxMinutes": [10, 100_000]}]}
    short, whole = (point.result for point in run_points(study(sweeps=[sweep]), CONTEXT, tmp_path)["plans"])
    trained = (600 - short["startUpSeconds"]) / short["epochSeconds"]
    assert short["epochs"] == pytest.approx(trained, abs=1e-6)
    assert short["usdPerEpoch"] == pytest.approx(short["usd"] / short["epochs"])
    assert json.dumps(whole["epochs"]) == "60"


def test_what_is_nearest_to_limits_that_nothing_meets_is_named_under_the_table(tmp_path):
    """8 V100 take eight hours; rows are numbered in each round of the repetitions alike."""
    limits = {"vary": [{"budget.deadline": ["10m", "20h", "1h"]}], "repetitions": 2}
    sweep = {**PLANNED, **limits, "columns": {"deadline": "budget.deadline", "limit": "binding", "h": "totalHours"}}
    (table,) = run_study(study(sweeps=[sweep]), CONTEXT, tmp_path, "x").tables
    assert [row[:2] for row in table.cells] == [("10m", "deadline"), ("20h", ""), ("1h", "deadline")]
    note = "Nothing meets the limits of budget in rows 1, 3: the nearest is shown."
    assert note in table.note and note in (tmp_path / "study.md").read_text()
    (table,) = run_study(study(sweeps=[PLANNED]), CONTEXT, tmp_path, "x").tables
    assert "nearest" not in table.note


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
    with pytest.raises(CaloscaleError, match="sweep runs, point") as error:
        run_points(study(sweeps=[sweep]), CONTEXT, tmp_path)
    assert error.value.exit_code == 2 and "absent" in str(error.value)
    assert not list((tmp_path / "points").glob("*.json"))


def _changed(**changes):
    return {**DOCUMENT, "sweeps": [{**DOCUMENT["sweeps"][0], **changes}]}


def _epoch_cost(given, **columns):
    v3 = {"accelerator": "tpu-v3", "count": 4, "region": "europe-west4", "capacityType": "spot", "asOf": "today"}
    return _changed(measure="epochCost", columns=columns or {"usd": "usd"}, plot=None, vary=[], given={**v3, **given})


BAD = {
    "no such measure": (_changed(measure="epochCosts"), "did you mean 'epochCost'"),
    "axis of unequal lengths": (_changed(vary=[{"a": [1, 2], "b": [1]}]), "different numbers"),
    "empty axis": (_changed(vary=[{"a": []}]), r"an axis \(a\) has no values"),
    "axis without inputs": (_changed(vary=[{}]), "has no values"),
    "point twice": (_changed(vary=[{"a": [1, 2, 1], "b": [3, 4, 3]}]), "point a 1, b 3 is given twice"),
    "input twice": (_changed(vary=[{"asOf": ["2022-06-01"]}]), "given twice"),
    "plot of nothing": (_changed(plot={"x": "a", "y": "cube"}), "not there: cube"),
    "unknown key": ({**DOCUMENT, "sweep": []}, "sweep"),
    "no sweeps": ({**DOCUMENT, "sweeps": []}, "sweeps"),
    "bad name": ({**DOCUMENT, "name": "../x"}, "name"),
    "two of a name": ({**DOCUMENT, "sweeps": DOCUMENT["sweeps"] * 2}, "same name"),
    "no such column": (_epoch_cost({}, usd="usdd"), "did you mean 'usd'"),
    "no such run": (_epoch_cost({"count": 5}), "no such run was measured"),
    "no such way of buying": (
        _epoch_cost({"capacityType": "preemptible"}),
        r'"capacityType": "preemptible".*: capacityType: .*\'on-demand\' or \'spot\'',
    ),
    "input that does not exist": (
        _changed(measure="epochCost", columns={"usd": "usd"}, plot=None, vary=[], given={"gpu": 4}),
        r'point \{"gpu": 4\}: accelerator: is missing',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_studies_that_are_not_valid(computed, tmp_path, case):
    document, says = BAD[case]
    file = tmp_path / "bad.yaml"
    file.write_text(yaml.safe_dump(document))
    with pytest.raises(ConfigurationError, match=says) as error:
        run_study(load_study(file), CONTEXT, tmp_path / "out", "x")
    assert error.value.exit_code == 2 and error.value.remedy


@pytest.mark.parametrize(("conclusions", "says"), [("costs", "not known"), ("waterfall", "need a sweep cumulative")])
def test_conclusions_are_refused_before_points_are_computed(computed, tmp_path, conclusions, says):
    with pytest.raises(ConfigurationError, match=says) as error:
        run_study(study(conclusions=conclusions), CONTEXT, tmp_path, "x")
    assert error.value.remedy
    assert computed[0] == []


def test_studies_are_found_by_name():
    with pytest.raises(ConfigurationError, match="did you mean 'cost'"):
        load_study("costs")
    assert load_study("cost").name == "cost"


@pytest.mark.parametrize("name", study_names())
def test_titles_and_headings_hold_for_any_number_of_epochs(name):
    """--set train.epochs=120 changes it, and with it hours and dollars."""
    texts = [text for sweep in load_study(name).sweeps for text in (sweep.title, *sweep.headings)]
    assert not [text for text in texts if re.search(r"\d epochs", text)]


def test_paths_lead_into_lists_and_mappings_and_not_beyond():
    point = Point({"a": 1, "environment": {"A": 1, "B": None}}, {"b": [5, {"c": 6}], "environment": 5})
    assert (point.value("b.1.c"), point.value("environment.A"), point.value("environment.B")) == (6, 1, None)
    assert point.value("b.2") is point.value("b.2.c") is None
    for path in ("b.x", "environment.C"):
        with pytest.raises(ConfigurationError, match="neither an input nor in the result"):
            point.value(path)


def test_the_example_of_the_page_runs(tmp_path):
    page = (Path(__file__).resolve().parents[2] / "docs" / "studies.md").read_text()
    file = tmp_path / "batch.yaml"
    file.write_text(page.split("```yaml\n")[1].split("```")[0])
    table = run_study(load_study(file), CONTEXT, tmp_path / "out", "x").tables[0]
    rows = (list(row.values()) for row in table.values)
    measured = {row[0]: row[4] for row in rows if row[1] == "spot"}
    assert measured == pytest.approx({16: 182.65, 32: 142.23, 48: 128.19, 64: 121.69, 80: 120.11, 96: 115.02}, rel=1e-3)
