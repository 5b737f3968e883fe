"""Which change of the form reruns which step: from the compiled pipeline, by what the server keys its cache with."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from caloscale import stages
from caloscale.spec import EMPTY_FORM, Data, Run
from caloscale.stages.pipeline_run import RUN_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
STEPS = ("plan", "simulate", "preprocess", "train", "validate")
FIRST: dict[str, Any] = {**EMPTY_FORM, "preset": "compact", "run": {}, "workspace": ""}
CHANGES: dict[str, Any] = {
    "model.latentSize": 32, "train.epochs": 3, "train.seed": 7, "validation.showers": 300, "budget.maxUsd": 9,
    "hardware.count": 2, "checkpoint.keep": 5, "recovery.maxRestarts": 1, "cluster.image": "registry.example/us:8",
    "data.showers": 900, "data.energyGev": [3, 9], "data.angleDeg": [70, 90], "data.seed": 5, "data.particle": "gamma",
    "data.source": "/data/*.h5", "data.azimuthDeg": [-9, 9], "data.entryMm": [-1, 1], "data.validationFraction": 0.5,
    "data.mirror": False, "data.geometry.cellMm": 6, "data.front": [{"material": "lead", "thicknessMm": 1}],
    "data.pairDistanceMm": 20, "data.simulation.cutMm": 0.5, "data.preprocessing.power": 0.5,
}  # fmt: skip


@cache
def compiled() -> dict[str, Any]:
    """The pipeline as the server gets it."""
    return next(yaml.safe_load_all((ROOT / "pipelines/compiled/train_calorimeter_gan.yaml").read_text()))


def keys(folder: Path, form: dict[str, Any]) -> dict[str, Any]:
    """By step: what the server looks for in its cache; None: it does not look."""
    place = folder / f"root/train-calorimeter-gan/{len(list(folder.rglob('*')))}"
    begun = stages.begin(
        {name: form[name] for name in EMPTY_FORM},
        run=form["run"],
        workspace=form["workspace"] and str(folder / form["workspace"]),
        resume="",
        beside=str(place / str(stages.run_id()) / "plan/plan"),
    )
    said = {"configuration": begun.run, "simulation": begun.simulation, "data": begun.data, "folder": begun.folder}
    said |= {"reading": begun.reading, "gpu_resource": begun.gpu_resource, "gpu_count": begun.gpu_count}
    tasks, found = compiled()["components"]["comp-exit-handler-1"]["dag"]["tasks"], dict[str, Any]()
    for step in STEPS:
        inputs = dict[str, Any]()
        for name, source in tasks[step]["inputs"]["parameters"].items():
            if "taskOutputParameter" in source:
                inputs[name] = said[source["taskOutputParameter"]["outputParameterKey"]]
            elif "runtimeValue" in source:
                inputs[name] = source["runtimeValue"]["constant"]
            else:
                inputs[name] = form.get(source["componentInputParameter"].removeprefix("pipelinechannel--"))
        for name, source in tasks[step]["inputs"].get("artifacts", {}).items():
            inputs[name] = found[source["taskOutputArtifact"]["producerTask"]]  # a step that runs makes a new artifact
        found[step] = inputs if tasks[step]["cachingOptions"].get("enableCache") else None
    return found


def reruns(folder: Path, **changed: Any) -> tuple[str, ...]:
    """Steps that run in a second run whose form differs in this, where those of the first are in the cache."""
    first, second = keys(folder, FIRST), keys(folder, {**FIRST, **changed})
    return tuple(step for step in STEPS if second[step] is None or second[step] != first[step])


def nested(name: str) -> dict[str, Any]:
    value = CHANGES[name]
    for part in reversed(name.split(".")):
        value = {part: value}
    return value


@pytest.fixture(autouse=True)
def clone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_VARIABLE, "clone")


def test_every_block_and_every_field_of_the_data_has_an_example() -> None:
    assert {name.split(".")[0] for name in CHANGES} == set(Run.model_fields)
    data = {field.alias for field in Data.model_fields.values()}
    assert {name.split(".")[1] for name in CHANGES if name.startswith("data.")} == data


def test_the_table_of_the_page_is_what_the_pipeline_does(tmp_path: Path) -> None:
    page = (ROOT / "docs/pipeline.md").read_text()
    table = page.split("| change | ")[1].split("\n\n")[0].splitlines()[2:]
    stated = dict[str, tuple[bool, ...]]()
    for row in table:
        change, *cells = (cell.strip() for cell in row.strip("|").split("|"))
        for name in re.findall(r"`([\w.]+)`", change) or [change]:
            stated[name] = tuple(cell == "runs" for cell in cells)
            assert set(cells) <= {"runs", "cached"}
    found = {"none": reruns(tmp_path), "workspace": reruns(tmp_path, workspace="other")}
    found |= {name: reruns(tmp_path, run=nested(name)) for name in CHANGES}
    assert stated.keys() >= {"none", "workspace"}
    for name, steps in found.items():
        row = max((key for key in stated if name == key or name.startswith(f"{key}.")), key=len)
        assert tuple(step in steps for step in STEPS) == stated[row], name


@pytest.mark.parametrize(("source", "step"), [("gs://bucket/showers", {"preprocess"}), ("simulate", set())])
def test_files_that_may_have_changed_are_read_in_every_run(
    source: str, step: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = {**FIRST, "run": {"data": {"source": source}}}
    first = keys(tmp_path, form)
    monkeypatch.setenv(RUN_VARIABLE, "another")
    second = keys(tmp_path, form)
    assert {name for name in ("simulate", "preprocess") if first[name] != second[name]} == step
