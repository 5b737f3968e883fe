"""The compiled pipeline and its components, as the Kubeflow UI and a cluster see them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from kfp.pipeline_spec import pipeline_spec_pb2  # noqa: F401 (fails early when kfp is broken)
from kubernetes.utils import parse_quantity

from caloscale import stages
from caloscale.errors import InputError
from caloscale.spec import load_run, parse_any_run, parse_run
from caloscale.stages.record import recorded
from components.cost_report.component import cost_report

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = [
    "plan", "simulate", "preprocess", "train", "validate", "gate", "cost_report", "solve", "validate_solution"
]  # fmt: skip


def compile_pipeline(path: Path, *options: str, **environment: str) -> dict:
    command = [sys.executable, "-m", "pipelines.train_calorimeter_gan", "--compile", str(path), *options]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **environment})
    return yaml.safe_load(path.read_text())


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return compile_pipeline(tmp_path_factory.mktemp("compiled") / "p.yaml", CALOSCALE_IMAGE="registry.example/us:7")


def test_the_image_is_a_parameter_of_the_build(compiled: dict) -> None:
    images = {e["container"]["image"] for e in compiled["deploymentSpec"]["executors"].values()}
    assert images == {"registry.example/us:7"}


def test_no_step_installs_anything_or_names_a_local_path(compiled: dict) -> None:
    text = yaml.safe_dump(compiled)
    assert "pip install" not in text
    assert str(ROOT) not in text and str(Path.home()) not in text


def test_the_chain_and_what_runs_at_exit(compiled: dict) -> None:
    inner = compiled["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    verdicts = inner.pop("condition-branches-2")
    assert verdicts["dependentTasks"] == ["validate"]
    needs = {name: set(task.get("dependentTasks", [])) for name, task in inner.items()}
    assert needs == {
        "plan": set(),
        "simulate": {"plan"},
        "preprocess": {"simulate"},
        "train": {"plan", "preprocess"},
        "validate": {"preprocess", "train"},
    }
    assert all(task["retryPolicy"]["maxRetryCount"] >= 1 for task in inner.values())
    # Argo kills an attempt, healthy or not, when this time since the first start is over: an hour unless it is set.
    a_month = 30 * 86_400
    assert all(int(task["retryPolicy"]["backoffMaxDuration"].rstrip("s")) > a_month for task in inner.values())
    cached = {name for name, task in inner.items() if task["cachingOptions"].get("enableCache", False)}
    # prices are those of the day, each pipeline run has its own id, and each training makes a new artifact
    assert cached == set(inner) - {"plan", "train", "validate"}
    last = compiled["root"]["dag"]["tasks"]["cost-report"]
    assert last["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    assert not last["cachingOptions"].get("enableCache", False)


def test_the_graph_shows_which_verdict_it_is(compiled: dict) -> None:
    """For each decision exactly one of three steps runs; none of them is taken from the cache."""
    branches = compiled["components"]["comp-condition-branches-2"]["dag"]["tasks"]
    value = "inputs.parameter_values['pipelinechannel--validate-decision']"
    for decision, name in {
        "accepted": "Accepted",
        "rejected": "Rejected",
        "undecided": "Undecided or not assessed",
        "not assessed": "Undecided or not assessed",
    }.items():
        run = []
        for task in branches.values():
            condition = task["triggerPolicy"]["condition"].replace(value, repr(decision))
            expression = condition.replace("!(", "not (").replace("&&", "and")
            if eval(expression, {"__builtins__": {}}):
                (inner,) = compiled["components"][task["componentRef"]["name"]]["dag"]["tasks"].values()
                run.append(inner["taskInfo"]["name"])
                assert not inner["cachingOptions"].get("enableCache", False)
        assert run == [name]


@pytest.mark.parametrize("decision", ["accepted", "rejected", "undecided", "not assessed"])
@pytest.mark.parametrize("fails", [False, True])
def test_a_run_fails_for_its_model_where_that_is_asked_for(tmp_path: Path, decision: str, fails: bool) -> None:
    (tmp_path / "verdict").write_text(f"**{decision}**: why")
    program = (
        "from types import SimpleNamespace as N; from components.gate.component import gate\n"
        f"gate.python_func(decision={decision!r}, fail_unless_accepted={fails}, "
        f"verdict=N(path={str(tmp_path / 'verdict')!r}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == int(fails and decision != "accepted")
    assert f"**{decision}**: why" in done.stdout and (decision in done.stderr) == bool(done.returncode)


def test_report_and_training_know_the_same_pipeline_run(compiled: dict) -> None:
    """By its id they find the TrainingRun."""
    last = compiled["root"]["dag"]["tasks"]["cost-report"]
    given = last["inputs"]["parameters"]["pipeline_id"]
    assert given == {"runtimeValue": {"constant": "{{$.pipeline_job_uuid}}"}}


def test_the_form_of_the_ui_explains_each_parameter(compiled: dict) -> None:
    parameters = compiled["root"]["inputDefinitions"]["parameters"]
    assert set(parameters) == {"workspace", "run", "fail_unless_accepted"}
    assert all(len(p["description"]) > 40 for p in parameters.values())


@pytest.mark.parametrize("name", COMPONENTS)
def test_components_are_thin_adapters(name: str) -> None:
    """At module level only kfp and the image are imported, and the body is about thirty lines at most."""
    tree = ast.parse((ROOT / "components" / name / "component.py").read_text())
    modules = {n.module for n in tree.body if isinstance(n, ast.ImportFrom)} | {
        alias.name for n in tree.body if isinstance(n, ast.Import) for alias in n.names
    }
    assert modules == {"kfp", "components"}
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef))
    statements = [n for n in function.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    assert len(ast.unparse(ast.Module(statements, [])).splitlines()) <= 15
    calls = [
        n.func.attr for n in ast.walk(function) if isinstance(n, ast.Call) and ast.unparse(n.func).startswith("stages.")
    ]
    assert len(set(calls) - {"report_of_refusal"}) == (0 if name == "gate" else 1)


def test_a_configuration_with_hardware_becomes_a_run_named_after_the_pipeline_run(
    compiled: dict, tmp_path: Path
) -> None:
    """The placeholder is what the driver fills in."""
    first = yaml.safe_load((ROOT / "pipelines/compiled/train_calorimeter_gan.yaml").read_text())
    second = compile_pipeline(tmp_path / "second.yaml", "--on-cluster")
    inner = [each["components"]["comp-exit-handler-1"]["dag"]["tasks"] for each in (compiled, second)]
    given = inner[0]["train"]["inputs"]["parameters"]["pipeline_id"]
    assert given == {"runtimeValue": {"constant": "{{$.pipeline_job_uuid}}"}}
    run = second["root"]["inputDefinitions"]["parameters"]["run"]
    assert parse_run(run["defaultValue"]).hardware is not None
    # One pipeline: the files differ in name and default, and in nothing else.
    run["defaultValue"] = first["root"]["inputDefinitions"]["parameters"]["run"]["defaultValue"]
    second["pipelineInfo"]["name"] = first["pipelineInfo"]["name"]
    assert second == first


def test_every_step_requests_resources_and_has_limits(compiled: dict) -> None:
    for name, executor in compiled["deploymentSpec"]["executors"].items():
        given = executor["container"]["resources"]
        numbers = [given[key] for key in ("resourceCpuRequest", "resourceMemoryRequest")]
        limits = [given[key] for key in ("resourceCpuLimit", "resourceMemoryLimit")]
        assert all(numbers) and all(limits), name
        assert parse_quantity(numbers[0]) < parse_quantity(limits[0])
        assert parse_quantity(numbers[1]) < parse_quantity(limits[1])


def test_a_configuration_that_cannot_be_read_leaves_a_report(tmp_path: Path) -> None:
    """The command of the step, run as a process would run it; nothing is written into the workspace."""
    made = {name: tmp_path / name for name in ("report", "bill")}
    status = SimpleNamespace(state="FAILED", error_message="")
    outputs = {name: SimpleNamespace(path=str(path)) for name, path in made.items()}
    workspace = tmp_path / "run"
    cost_report.python_func(
        run="model: {preset: compct}", workspace=str(workspace), pipeline_id="", status=status, **outputs
    )
    page = made["report"].read_text()
    assert "compct" in page and "compact" in page and "This run failed" in page
    assert "no stage ran" in made["bill"].read_text() and not workspace.exists()


def test_a_clone_with_another_seed_has_its_own_report_and_leaves_the_run_as_it_was(tmp_path: Path) -> None:
    run, workspace = load_run(preset="compact"), tmp_path / "run"
    stages.plan(run, workspace)
    stages.report(run, workspace)
    before = {path: path.read_bytes() for path in workspace.rglob("*") if path.is_file()}
    made = {name: tmp_path / name for name in ("report", "bill")}
    status = SimpleNamespace(state="FAILED", error_message="")
    outputs = {name: SimpleNamespace(path=str(path)) for name, path in made.items()}
    cost_report.python_func(
        run="model: {preset: compact}\ntrain: {seed: 77}", workspace=str(workspace), pipeline_id="", status=status,
        **outputs,
    )  # fmt: skip
    page = made["report"].read_text()
    assert "This run failed" in page and "train.seed" in page and "another configuration" in page
    assert before == {path: path.read_bytes() for path in workspace.rglob("*") if path.is_file()}


def test_the_log_of_a_refused_step_ends_with_the_message_alone(tmp_path: Path) -> None:
    program = (
        "from types import SimpleNamespace as N; from components.plan.component import plan\n"
        f"plan.python_func(run='train: {{epochs: many}}', workspace={str(tmp_path)!r}, plan=N(path='plan'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    assert "train.epochs" in done.stderr and len(done.stderr.splitlines()) <= 3
    bug = subprocess.run(
        [sys.executable, "-c", "from caloscale import errors; errors.show_message_alone(); 1 / 0"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "Traceback" in bug.stderr and "ZeroDivisionError" in bug.stderr


def test_the_report_says_why_a_step_without_a_record_failed(tmp_path: Path) -> None:
    run = load_run(preset="compact", overrides=["budget.pricedAs.machineType=n1-standard-3"])
    with pytest.raises(InputError):
        stages.plan(run, tmp_path)
    made = stages.report(run, tmp_path, failure="a step failed")
    assert made.summary.error is not None and "did you mean 'n1-standard-32'" in made.summary.error
    assert "step plan" in made.html
    stages.plan(load_run(preset="compact"), tmp_path / "other")
    assert stages.report(load_run(preset="compact"), tmp_path / "other", failure="lost").summary.error == "lost"


def test_data_and_simulation_are_reported_where_their_steps_hit_the_cache(tmp_path: Path) -> None:
    """Their records are in the workspace of an earlier pipeline run; the training's has what its shards say."""
    data = {"source": "geant4", "showers": 90, "validationShowers": 10}
    simulation = {"source": "geant4", "showersPerSecond": 5.0, "coreSecondsPerShower": 0.4, "reused": True}
    trained = {
        "steps": 9,
        "epochs": 1,
        "showersPerSecond": 8.0,
        "seconds": 9.0,
        "selectedEpoch": 1,
        "stopped": "epochs",
    }
    with recorded("train", tmp_path) as figures:
        figures.update(trained, data=data, simulation=simulation)
    summary = stages.report(load_run(preset="compact"), tmp_path).summary
    assert summary.data is not None and (summary.data.showers, summary.data.validation_showers) == (90, 10)
    assert summary.simulation is not None and summary.simulation.showers_per_second == 5.0


@pytest.mark.parametrize("name", ["train_calorimeter_gan", "solve_inverse_problem"])
def test_what_is_uploaded_has_fixed_images_and_a_form_that_explains_itself(name: str) -> None:
    """The committed files: no local path, floating tag or install step; defaults that the parser takes."""
    text = (ROOT / "pipelines/compiled" / f"{name}.yaml").read_text()
    assert not re.search(r"pip3? install|apt-get|--no-index|/home/|/root/|/tmp/|localhost", text)
    compiled = yaml.safe_load(text)
    for executor in compiled["deploymentSpec"]["executors"].values():
        image = executor["container"]["image"]
        assert re.fullmatch(r"[\w./-]+(:\d+\.\d+\.\d+|@sha256:[0-9a-f]{64})", image), image
    parameters = compiled["root"]["inputDefinitions"]["parameters"]
    assert not parameters["workspace"].get("isOptional"), "nobody should train into a folder that he did not choose"
    parse_any_run(parameters["run"]["defaultValue"])
    for parameter in parameters.values():
        assert 80 < len(parameter["description"]) < 400 and parameter["description"].endswith(".")
    assert compiled["pipelineInfo"]["description"].endswith(".")
