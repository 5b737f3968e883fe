"""Measures of this machine: steps of several processes, quality over time, profiles."""

import datetime as dt
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import pytest

from caloscale.errors import BenchError, ConfigurationError
from caloscale.physics.result import (
    Classifier,
    Compared,
    EnergyRange,
    Evaluation,
    LearningPoint,
    Measured,
    Response,
    ShowerMaximum,
)
from caloscale.studies import contenders, whole_run
from caloscale.studies.contenders import describe_steps, time_generation, time_steps
from caloscale.studies.measures import Context
from caloscale.studies.points import configured_run
from caloscale.studies.runner import run_points, runs_of
from caloscale.studies.sweep import load_study
from caloscale.studies.whole_run import aucs, decisions, effort, energy_ranges, parts_of_profile, quality, run_of

STEP_OF_NUMBERS = """
import os
import sys
from pathlib import Path
from types import ModuleType


def our_step(configuration, batch):
    if os.environ.get("BROKEN"):
        raise SystemExit(3)
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
    settings = [os.environ.get(name) for name in ("SETTING", "NONE")]
    Path(os.environ["SEEN"], str(os.getpid())).write_text(f"{cores} {batch} {settings[0]} {settings[1]}")
    return (lambda units: None), {}


module = ModuleType("caloscale.bench.work")
module.our_step = our_step
sys.modules[module.__name__] = module
sys.modules["tensorflow"] = ModuleType("tensorflow")
"""
"""What Python runs as it starts: a step that computes nothing and notes where it runs, without TensorFlow."""


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Processes of contenders have `STEP_OF_NUMBERS`, and write into this folder."""
    (tmp_path / "sitecustomize.py").write_text(STEP_OF_NUMBERS)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    folder = tmp_path / "seen"
    folder.mkdir()
    monkeypatch.setenv("SEEN", str(folder))
    return folder


def written(folder):
    return sorted(file.read_text().split() for file in folder.iterdir())


def test_processes_are_pinned_to_different_cores_and_have_their_environment(seen, monkeypatch):
    cores = sorted(os.sched_getaffinity(0))
    monkeypatch.setenv("NONE", "of this process")
    inputs = {"model.preset": "compact", "train.batchPerReplica": 12, "environment": {"SETTING": 7, "NONE": None}}
    if len(cores) > 1:
        found = time_steps({**inputs, "processes": 2, "coresPerProcess": 1, "steps": 3})
        assert found["showersPerSecond"] > 0 and found["peakMemoryMib"] > 0
        assert written(seen) == sorted([str(core), "12", "7", "None"] for core in cores[:2])
    with pytest.raises(ConfigurationError, match="coresPerProcess"):
        time_steps({**inputs, "processes": len(cores) + 1, "coresPerProcess": 1})
    monkeypatch.setenv("BROKEN", "1")
    with pytest.raises(BenchError, match="exit code 3"):
        time_steps({**inputs, "processes": 2})


def test_variation_and_rate_of_steps():
    seconds = [[1.0, 2.0, 3.0, 2.0], [4.0, 4.0, 4.0, 4.0]]
    found = describe_steps(seconds, batch=8)
    every = seconds[0] + seconds[1]
    assert found["cv"] == pytest.approx(statistics.pstdev(every) / statistics.mean(every))
    assert found["worst"] == pytest.approx(4 / 3.5) and found["stepSeconds"] == 3.5
    assert found["showersPerSecond"] == pytest.approx(8 / 2 + 8 / 4)


@pytest.mark.parametrize(
    ("wanted", "epoch", "steps", "seconds"),
    [(0.5, 2, 20, 10 + 90 * 19 / 39), (0.3, 4, 40, 100.0), (0.1, None, None, None), (None, None, None, None)],
)
def test_time_to_quality_is_that_of_the_first_epoch_that_reaches_it(wanted, epoch, steps, seconds):
    training = {"steps": 40, "epochs": 4, "secondsFirstStep": 10.0, "seconds": 100.0}
    validation = {"epoch": [1, 2, 3, 4], "deviation": [2.0, 0.4, None, 0.25]}
    found = quality(training, validation, wanted)
    assert (found["epoch"], found["steps"], found["lowest"]) == (epoch, steps, 0.25)
    assert found["seconds"] == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(("epochs", "steps"), [([1, 2, 2.5], 20), ([0.25], 5)])
def test_time_to_quality_of_a_training_that_ended_within_an_epoch(epochs, steps):
    """By train.maxMinutes, in the third epoch or in the first."""
    training = {"steps": round(epochs[-1] * 20), "epochs": int(epochs[-1]), "secondsFirstStep": 10.0, "seconds": 100.0}
    found = quality(training, {"epoch": epochs, "deviation": [0.25] * len(epochs)}, 0.3)
    assert (found["epoch"], found["steps"]) == (epochs[0], steps)


def test_shares_of_a_profile_add_up_and_a_short_training_has_none(tmp_path):
    shares = [
        {"phase": "fakes", "part": "forward", "share": 0.25},
        {"phase": "generator", "part": "forward", "share": 0.5},
        {"phase": "generator", "part": "optimizer", "share": 0.125},
    ]
    file = tmp_path / "profile.json"
    file.write_text(json.dumps({"shares": shares, "inputWait": 0.0, "idle": 0.125}))
    found = parts_of_profile(file)
    names = ("forward", "backPropagation", "allReduce", "optimizer", "inputWait", "idle")
    assert found is not None and sum(found[name] for name in names) == 1 and found["forward"] == 0.75
    assert parts_of_profile(tmp_path / "absent.json") is None


def test_agreement_by_range_of_energy_is_that_of_the_validation():
    empty = Compared(reference=Measured(), generated=Measured())
    ranges = [EnergyRange(low=low, high=high, reference=9, generated=9) for low, high in ((5, 16), (16, 28))]
    responses = [
        Response(mev_per_gev=empty, ratio=Measured(value=1 - share, uncertainty=0.01)) for share in (0.25, 0.125)
    ]
    maxima = [
        ShowerMaximum(layer=empty, depth_x0=empty, fitted_difference_layers=Measured(value=shift))
        for shift in (0.5, None)
    ]
    parts = {"energyRanges": ranges, "response": responses, "showerMaximum": maxima}
    assert set(parts) <= {field.alias for field in Evaluation.model_fields.values()}
    dumped = {name: [one.model_dump(mode="json", by_alias=True) for one in each] for name, each in parts.items()}
    first, second = energy_ranges(json.loads(json.dumps(dumped)))
    assert first == {
        "lowGev": 5, "highGev": 16, "response": 0.75, "responseUncertainty": 0.01, "maximumLayers": 0.5
    }  # fmt: skip
    assert second["response"] == 0.875 and second["maximumLayers"] is None
    assert energy_ranges({}) == []


def test_gates_are_counted_by_decision():
    gates = [{"decision": decision} for decision in ("accepted", "undecided", "accepted")]
    assert decisions({"gates": gates}) == {"accepted": 2, "rejected": 0, "undecided": 1}
    assert decisions({}) == {"accepted": 0, "rejected": 0, "undecided": 0}


def test_aucs_are_those_of_a_thousand_showers_and_of_infinitely_many():
    curve = [
        LearningPoint(showers=showers, value=value, uncertainty=0.01) for showers, value in ((500, 0.6), (1000, 0.7))
    ]
    classifiers = {
        "classifier": Classifier(value=0.75, learning_curve=tuple(curve), limit=Measured(value=0.8)),
        "layerClassifier": Classifier(value=0.6, learning_curve=tuple(curve[:1])),
    }
    assert set(classifiers) <= {field.alias for field in Evaluation.model_fields.values()}
    dumped = {name: each.model_dump(mode="json", by_alias=True) for name, each in classifiers.items()}
    assert aucs(json.loads(json.dumps(dumped))) == {"all": 0.7, "extrapolated": 0.8, "layers": None}
    assert aucs({}) == {"all": None, "extrapolated": None, "layers": None}


def test_effort_counts_kept_showers_and_has_a_price_on_this_machine_only():
    training = {"workers": 1, "coreSeconds": 100.0}
    bill = {"ownMachine": True, "nodes": [{"usdPerNodeHour": 3.6}]}
    summary = {
        "simulation": {"coreSecondsPerShower": 0.5, "reused": True},
        "data": {"showers": 300, "validationShowers": 100},
        "generate": {"showersPerSecond": 250.0},
        "bill": bill,
    }
    found = effort(summary, training, 2)
    assert found == {
        "simulation": 200, "training": 100, "both": 300, "usd": pytest.approx(0.15), "millisecondsPerShower": 4
    }  # fmt: skip
    assert effort({**summary, "bill": {**bill, "ownMachine": False}}, training, 2) == {**found, "usd": None}
    unknown = {"training": None, "both": None, "usd": None}
    assert effort(summary, {**training, "workers": 2}, 2) == {**found, **unknown}
    assert effort({**summary, "simulation": None}, training, 2) == {
        **found,
        **unknown,
        "training": 100,
        "simulation": None,
    }
    assert set(effort({"outcome": "succeeded"}, {"workers": 2}, None).values()) == {None}


def test_the_length_of_a_training_does_not_depend_on_its_number_of_showers():
    whole = configured_run({"model.preset": "flow"})
    for times, showers in ((1, whole.data.showers), (1, 500), (5, 5000)):
        epochs = run_of({"model.preset": "flow", "data.showers": showers, "timesPreset": times}).train.epochs
        assert epochs * showers == pytest.approx(times * whole.train.epochs * whole.data.showers, rel=0.02)
    assert run_of({"model.preset": "flow", "timesPreset": 1}) == whole
    for wrong in ({"timesPreset": 0}, {"timesPreset": True}, {"timesPreset": 2, "train.epochs": 3}):
        with pytest.raises(ConfigurationError, match="timesPreset"):
            run_of({"model.preset": "flow", **wrong})
    with pytest.raises(ConfigurationError, match="is not a preset"):
        run_of({"data.showers": 100, "timesPreset": 1})


@pytest.mark.integration
def test_the_layers_of_keras_and_geant4_are_timed_as_runtimes():
    small = {"model.preset": "compact", "data.geometry.cells": [12, 9, 25], "data.preprocessing.rebin": [3, 3, 1]}
    keras = time_generation({**small, "runtime": "keras", "batch": 2, "rounds": 2})
    assert keras["millisecondsPerShower"] > 0 and keras["peakMemoryMib"] > 0
    geant4 = time_generation({**small, "runtime": "geant4", "data.energyGev": [1, 2]})
    assert geant4["showersPerSecond"] == pytest.approx(1000 / geant4["millisecondsPerShower"])
    assert geant4["millisecondsPerShower"] > 0 and geant4["lowest"] is None


def test_variables_of_processes_come_before_those_of_the_run_configuration():
    run = configured_run({"model.preset": "compact", "train.oneDnn": False, "train.threads.intra": 3})
    asked = contenders.StepInputs(environment={"A": 1, "B": None, "TF_NUM_INTRAOP_THREADS": 2})
    assert asked.variables(run) == {"A": "1", "TF_ENABLE_ONEDNN_OPTS": "0", "TF_NUM_INTRAOP_THREADS": "2", "B": None}


def test_what_a_watch_raises_ends_the_run(tmp_path):
    """It gets the validations that the run has written so far."""
    history = tmp_path / "training" / "history.json"
    history.parent.mkdir()
    history.write_text(json.dumps({"validation": {"epoch": [1], "deviation": [0.5]}}))
    looks = []

    def watch():
        looks.append(whole_run.read_validations(tmp_path))
        if len(looks) == 3:
            raise ZeroDivisionError

    process = subprocess.Popen(["sleep", "60"])
    with pytest.raises(ZeroDivisionError):
        whole_run.finish(process, watch, 0.01)
    assert process.returncode == -signal.SIGTERM
    assert looks == [{"epoch": [1], "deviation": [0.5]}] * 3 and whole_run.read_validations(Path()) == {"epoch": []}


def _runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_run_of_a_point_ends_with_the_study(tmp_path, number):
    """By SIGTERM the study ends it; where the study is killed it gets SIGTERM, too."""
    run = tmp_path / "run"
    run.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid.new\nmv {tmp_path}/pid.new {tmp_path}/pid\nexec sleep 300\n")
    run.chmod(0o755)
    words = ["study", "batch-size", "--set", "repetitions=1", "-o", str(tmp_path / "study")]
    program = f"import sys; sys.argv[1:] = {words}; sys.executable = {str(run)!r}\n"
    program += "from caloscale.cli.main import main; main()"
    study = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    while not (tmp_path / "pid").is_file():
        assert study.poll() is None, study.stderr.read()
        time.sleep(0.05)
    child = int((tmp_path / "pid").read_text())
    study.send_signal(number)
    study.communicate(timeout=60)
    assert study.returncode == (143 if number == signal.SIGTERM else -number)
    end = time.monotonic() + 60
    while _runs(child):
        assert time.monotonic() < end, "the run continues"
        time.sleep(0.05)


def test_a_run_that_a_cluster_made_is_read_and_not_made_again(tmp_path, monkeypatch):
    """The folders of points have the names that the pipeline of the study gives them."""
    study = load_study("batch-size").changed({"train.batchPerReplica": [32, 64], "repetitions": 1, "sweeps": ["batch"]})
    context = Context(dt.date(2026, 11, 21))
    for name, run in runs_of(study, context):
        folder = tmp_path / "points" / name
        (folder / "stages").mkdir(parents=True)
        batch = run.train.batch_per_replica
        figures = {"steps": 10 * batch, "epochs": 2, "seconds": 5.0, "secondsFirstStep": 1.0}
        (folder / "stages" / "train.json").write_text(json.dumps({"figures": figures}))
        summary = {"outcome": "succeeded", "train": {"steps": 10 * batch, "seconds": 5.0, "showersPerSecond": 2.0}}
        (folder / "summary.json").write_text(json.dumps({**summary, "stages": None, "physics": None}))
    monkeypatch.setattr("subprocess.Popen", None)
    (points,) = run_points(study, context, tmp_path).values()
    assert [point.value("train.steps") for point in points] == [320, 640]
    assert all(point.value("quality.epoch") is None and point.value("profile") is None for point in points)
