"""The pipeline of a study: a loop over the points that are whole runs, each a training with a name of its own."""

import json

import pytest
import yaml

from caloscale.spec import build_run
from caloscale.stages.pipeline_run import HERE
from caloscale.studies.sweep import load_study
from pipelines.run_study import main


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict:
    file = tmp_path_factory.mktemp("compiled") / "study.yaml"
    changes = ["--set", "train.batchPerReplica=[32, 64]", "--set", "hardware.count=8", "--set", "hardware.perNode=4"]
    changes += ["--set", "repetitions=1", "--set", "sweeps=[batch]"]
    assert main(["batch-size", *changes, "--parallel", "2", "--compile", str(file)]) == 0
    return next(yaml.safe_load_all(file.read_text()))


def loop_of(compiled: dict) -> dict:
    (task,) = compiled["root"]["dag"]["tasks"].values()
    return task


def test_each_point_of_the_axis_is_a_run_of_the_loop(compiled):
    loop = loop_of(compiled)
    points = json.loads(loop["parameterIterator"]["items"]["raw"])
    assert loop["iteratorPolicy"]["parallelismLimit"] == 2
    runs = [build_run(point["run"]) for point in points]
    assert [run.train.batch_per_replica for run in runs] == [32, 64]
    assert all(run.hardware.count == 8 and run.model.preset == "compact" for run in runs)
    assert len({point["point"] for point in points}) == 2


def test_points_have_workspaces_and_trainings_of_their_own_and_a_report_whatever_happens(compiled):
    tasks = compiled["components"][loop_of(compiled)["componentRef"]["name"]]["dag"]["tasks"]
    assert set(tasks) == {"point", "cost-report"}
    steps = compiled["components"][tasks["point"]["componentRef"]["name"]]["dag"]["tasks"]
    assert set(steps) == {"plan", "simulate", "preprocess", "train", "validate"}
    first, report = steps["plan"]["inputs"]["parameters"], tasks["cost-report"]
    assert first["workspace"]["componentInputParameter"] == "workspace"
    folder = tasks["point"]["inputs"]["parameters"]["workspace"]
    assert folder == report["inputs"]["parameters"]["workspace"]
    assert "item" in folder["runtimeValue"]["constant"]
    assert report["inputs"]["parameters"]["resume"] == first["resume"] == {"runtimeValue": {"constant": HERE}}
    assert steps["train"]["inputs"]["parameters"]["folder"]["taskOutputParameter"]["producerTask"] == "plan"
    # An exit task comes when what it depends on has ended in any way; a step that never starts does not end.
    assert report["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    assert report["dependentTasks"] == ["point"]


def test_a_study_without_runs_is_refused(tmp_path, capsys):
    assert main(["cost", "--compile", str(tmp_path / "x.yaml")]) == 2
    assert "caloscale study cost" in capsys.readouterr().err
    assert load_study("cost").sweeps and not (tmp_path / "x.yaml").exists()
