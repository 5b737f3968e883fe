"""The compiled pipeline and its components, as the Kubeflow UI and a cluster see them."""

import ast
import json
import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kfp.pipeline_spec import pipeline_spec_pb2  # noqa: F401 (fails early when kfp is broken)
from kubernetes.utils import parse_quantity

from caloscale import stages
from caloscale.errors import ClusterError, ConfigurationError, InputError, NotAcceptedError
from caloscale.spec import EMPTY_FORM, FORM, Run, build_any_run, load_run, parse_run, run_of_form
from caloscale.spec.model import FIRST_PRESET
from caloscale.stages.pipeline_run import HERE, RUN_VARIABLE, own_folder, run_folder
from caloscale.stages.record import read_earlier, read_records, recorded
from caloscale.storage.failure import failure_kept
from components.cost_report.component import cost_report
from components.gate.component import gate
from components.plan.component import plan
from pipelines.train_calorimeter_gan import main

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = [
    "plan", "simulate", "preprocess", "train", "validate", "gate", "cost_report", "solve", "validate_solution"
]  # fmt: skip


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> dict:
    path = tmp_path_factory.mktemp("compiled") / "p.yaml"
    command = [sys.executable, "-m", "pipelines.train_calorimeter_gan", "--compile", str(path)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, "CALOSCALE_IMAGE": "registry.example/us:7"})
    return next(yaml.safe_load_all(path.read_text()))


def test_the_image_is_a_parameter_of_the_build(compiled: dict) -> None:
    images = {e["container"]["image"] for e in compiled["deploymentSpec"]["executors"].values()}
    assert images == {"registry.example/us:7"}


def test_the_chain_and_what_runs_at_exit(compiled: dict) -> None:
    inner = compiled["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    verdicts = inner.pop("condition-branches-2")
    assert verdicts["dependentTasks"] == ["validate"] and verdicts["taskInfo"]["name"] == "Verdict"
    needs = {name: set(task.get("dependentTasks", [])) for name, task in inner.items()}
    assert needs == {
        "plan": set(),
        "simulate": {"plan"},
        "preprocess": {"plan", "simulate"},
        "train": {"plan", "preprocess"},
        "validate": {"plan", "preprocess", "train"},
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
def test_a_run_fails_for_its_model_where_that_is_asked_for(
    tmp_path: Path, decision: str, fails: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "verdict").write_text(f"**{decision}**: why")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # the step changes it
    refused = pytest.raises(NotAcceptedError, match=decision) if fails and decision != "accepted" else nullcontext()
    with refused:
        gate.python_func(decision, fails, SimpleNamespace(path=str(tmp_path / "verdict")))
    assert f"**{decision}**: why" in capsys.readouterr().out


def test_every_step_knows_its_pipeline_run(compiled: dict) -> None:
    """By the label of its pod, as an input would be part of its key in the cache."""
    _, platforms = yaml.safe_load_all((ROOT / "pipelines/compiled/train_calorimeter_gan.yaml").read_text())
    executors = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert executors.keys() == compiled["deploymentSpec"]["executors"].keys()
    wanted = [{"name": RUN_VARIABLE, "fieldPath": "metadata.labels['pipeline/runid']"}]
    assert all(each["fieldPathAsEnv"] == wanted for each in executors.values())
    assert "pipeline_job_uuid" not in yaml.safe_dump(compiled)


KINDS = {str: "STRING", int: "NUMBER_INTEGER", float: "NUMBER_DOUBLE", list: "LIST"}


def test_the_form_has_a_typed_entry_for_each_field(compiled: dict) -> None:
    """With a default of the field's own type that means: not given; the description of the pipeline lists all."""
    parameters = compiled["root"]["inputDefinitions"]["parameters"]
    assert set(parameters) == {*FORM, "run", "workspace", "resume", "fail_unless_accepted"}
    for name, field in FORM.items():
        assert parameters[name]["parameterType"] == KINDS[field.kind], name
        given = {"preset": FIRST_PRESET}.get(name, field.empty)
        assert parameters[name].get("defaultValue", given) == given, name
        block, key = field.path
        kind = Run.model_fields[block].annotation
        model = kind if hasattr(kind, "model_fields") else kind.__args__[0]
        described = model.model_json_schema(by_alias=True)["properties"][key]["description"]
        assert parameters[name]["description"].startswith(" ".join(described.split())), name
    assert parameters["run"]["parameterType"] == "STRUCT"
    shown = compiled["pipelineInfo"]["description"].splitlines()
    assert all(any(line.startswith(f"{name}: ") for line in shown) for name in parameters)
    example = json.loads(shown[-1].partition(": ")[2])
    assert run_of_form({**EMPTY_FORM, "preset": "compact"}, example).data.showers == example["data"]["showers"]


def test_the_first_step_takes_the_form(compiled: dict) -> None:
    taken = compiled["components"]["comp-plan"]["inputDefinitions"]["parameters"]
    form = compiled["root"]["inputDefinitions"]["parameters"]
    assert set(taken) == {*FORM, "run", "workspace", "resume"}
    assert all(taken[name]["parameterType"] == form[name]["parameterType"] for name in taken)


def begin(folder: Path, **given: Any) -> tuple[str, ...]:
    """The first step, as a process of the server would run it."""
    folder.mkdir(parents=True, exist_ok=True)
    form = {**EMPTY_FORM, "run": {}, "resume": "", **given}
    return plan.python_func(plan=SimpleNamespace(path=str(folder / "plan"), uri=f"{folder}/plan"), **form)


def report(workspace: Path, made: Path, resume: str = "", state: str = "COMPLETE") -> str:
    """The page that the exit handler makes."""
    made.mkdir()
    status = SimpleNamespace(state=state, error_message="")
    names = ("report", "bill", "result")
    outputs = {name: SimpleNamespace(path=str(made / name), uri=str(made / name), metadata={}) for name in names}
    cost_report.python_func(workspace=str(workspace), resume=resume, status=status, **outputs)
    (made / "result").write_text(json.dumps(outputs["result"].metadata))
    return (made / "report").read_text()


def content(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("gpus", [0, 3])
def test_the_pod_of_a_training_in_its_step_asks_for_the_gpus_of_the_form(
    tmp_path: Path, compiled: dict, gpus: int
) -> None:
    begun = begin(tmp_path / "step", preset="compact", gpus=gpus, workspace=str(tmp_path / "run"))
    assert parse_run(begun[1]).train.gpus == (gpus or None)
    assert begun[-2:] == (("nvidia.com/gpu", "3") if gpus else ("", ""))
    asked = compiled["deploymentSpec"]["executors"]["exec-train"]["container"]["resources"]["accelerator"]
    channel = "{{{{$.inputs.parameters['pipelinechannel--plan-{}']}}}}"
    assert asked == {"resourceType": channel.format("gpu_resource"), "resourceCount": channel.format("gpu_count")}


TYPED = {
    "preset": "compact", "energy_gev": [5, 20], "showers": 120, "epochs": 2, "batch": 16, "precision": "float32",
    "accelerator": "v100", "nodes": 2, "capacity_type": "spot", "max_usd": 12.5, "seed": 0,
    "run": {"train": {"maxMinutes": 3}},
}  # fmt: skip
WRITTEN = """
model: {preset: compact}
data: {energyGev: [5, 20], showers: 120}
train: {epochs: 2, batchPerReplica: 16, precision: float32, seed: 0, maxMinutes: 3}
hardware: {accelerator: nvidia-tesla-v100, nodes: 2, capacityType: spot}
budget: {maxUsd: 12.5}
"""


def test_the_form_gives_what_the_same_text_gives(tmp_path: Path) -> None:
    """Under Kubeflow's local runner, which hands on values as the server does: as JSON."""
    program = f"""
import json, sys
from kfp import dsl, local
from caloscale.spec import EMPTY_FORM
from components.plan.component import plan

@dsl.pipeline(name="form")
def form(run: dict, energy_gev: list, epochs: int, max_usd: float, workspace: str) -> str:
    rest = {{name: value for name, value in {{**EMPTY_FORM, **{TYPED!r}}}.items()
            if name not in ("run", "energy_gev", "epochs", "max_usd")}}
    typed = dict(energy_gev=energy_gev, epochs=epochs, max_usd=max_usd)
    return plan(run=run, workspace=workspace, resume="", **typed, **rest).outputs["configuration"]

local.init(local.SubprocessRunner(use_venv=False), pipeline_root={str(tmp_path / "root")!r})
given = {{name: {TYPED!r}[name] for name in ("run", "energy_gev", "epochs", "max_usd")}}
done = form(workspace={str(tmp_path / "run")!r}, **given)
open({str(tmp_path / "configuration")!r}, "w").write(done.output)
"""
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, capture_output=True)
    wanted = parse_run(WRITTEN)
    assert parse_run((tmp_path / "configuration").read_text()) == wanted
    assert load_run(tmp_path / "run/run.yaml") == wanted


def test_every_step_mounts_the_volume_and_has_the_key_of_the_store(tmp_path: Path) -> None:
    main(["--compile", str(tmp_path / "volume.yaml"), "--volume-claim", "runs.of-team-a"])
    compiled, platforms = yaml.safe_load_all((tmp_path / "volume.yaml").read_text())
    executors = platforms["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    assert executors.keys() == compiled["deploymentSpec"]["executors"].keys()
    for name, executor in executors.items():
        (secret,) = executor["secretAsEnv"]
        assert secret["optional"] and secret["secretName"] == "mlpipeline-minio-artifact"
        if "gate" not in name:  # it reads nothing but its input
            (mount,) = executor["pvcMount"]
            assert (mount["constant"], mount["mountPath"]) == ("runs.of-team-a", "/workspace")
            assert mount["pvcNameParameter"]["runtimeValue"]["constant"] == "runs.of-team-a"
    form = compiled["root"]["inputDefinitions"]["parameters"]
    run = run_of_form({**EMPTY_FORM, "preset": "compact"}, form["run"]["defaultValue"])
    assert run.cluster.volume_claim == "runs.of-team-a" and form["workspace"]["defaultValue"] == "/workspace"


@pytest.mark.parametrize("name", COMPONENTS)
def test_components_are_thin_adapters(name: str) -> None:
    """At module level only kfp and the image are imported, and the body is about thirty lines at most."""
    tree = ast.parse((ROOT / "components" / name / "component.py").read_text())
    modules = {n.module for n in tree.body if isinstance(n, ast.ImportFrom)} | {
        alias.name for n in tree.body if isinstance(n, ast.Import) for alias in n.names
    }
    assert modules - {"typing"} == {"kfp", "components"}
    function = next(n for n in tree.body if isinstance(n, ast.FunctionDef))
    statements = [n for n in function.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))]
    assert len(ast.unparse(ast.Module(statements, [])).splitlines()) <= 15
    calls = [
        n.func.attr for n in ast.walk(function) if isinstance(n, ast.Call) and ast.unparse(n.func).startswith("stages.")
    ]
    places = {"own_folder", "run_folder", "run_id", "begin_solver", "solver_run"}
    assert len(set(calls) - places) == (0 if name == "gate" else 1)


def test_the_pipeline_for_a_cluster_has_another_default_and_nothing_else(tmp_path: Path, compiled: dict) -> None:
    first = next(yaml.safe_load_all((ROOT / "pipelines/compiled/train_calorimeter_gan.yaml").read_text()))
    main(["--compile", str(tmp_path / "second.yaml"), "--on-cluster"])
    second = next(yaml.safe_load_all((tmp_path / "second.yaml").read_text()))
    forms = [each["root"]["inputDefinitions"]["parameters"] for each in (first, second)]
    defaults = [{name: entry.get("defaultValue") for name, entry in form.items()} for form in forms]
    rest = {name: value for name, value in defaults[1].items() if name in FORM}
    assert run_of_form(rest, defaults[1]["run"]).hardware is not None
    forms[1]["run"], forms[1]["preset"] = forms[0]["run"], forms[0]["preset"]
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


def test_a_form_that_is_refused_leaves_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_VARIABLE, "first")
    with pytest.raises(ConfigurationError, match="compct"):
        begin(tmp_path / "step", preset="compct", workspace=str(tmp_path / "runs"))
    page = report(tmp_path / "runs", tmp_path / "made", state="FAILED")
    assert "compct" in page and "did you mean" in page and "This run failed" in page
    assert json.loads((tmp_path / "made/result").read_text()) == {"verdict": "failed"}
    assert "no stage ran" in (tmp_path / "made/bill").read_text()


def test_a_clone_has_a_folder_of_its_own_and_leaves_the_first_run_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All parameters but the seed are those of the first run."""
    runs = tmp_path / "runs"
    monkeypatch.setenv(RUN_VARIABLE, "first")
    begin(tmp_path / "step", preset="compact", workspace=str(runs))
    report(runs, tmp_path / "one")
    before = content(runs)
    monkeypatch.setenv(RUN_VARIABLE, "second")
    begin(tmp_path / "step", preset="compact", seed=77, workspace=str(runs))
    report(runs, tmp_path / "two")
    after = content(runs)
    assert before and before == {path: after[path] for path in before}
    assert {path.relative_to(runs).parts[0] for path in after.keys() - before.keys()} == {"second"}
    assert load_run(runs / "second/run.yaml").train.seed == 77 != load_run(runs / "first/run.yaml").train.seed


def test_a_run_that_is_continued_with_another_seed_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = tmp_path / "runs"
    monkeypatch.setenv(RUN_VARIABLE, "first")
    begin(tmp_path / "step", preset="compact", workspace=str(runs))
    report(runs, tmp_path / "one")
    before = content(runs / "first")
    monkeypatch.setenv(RUN_VARIABLE, "second")
    with pytest.raises(ConfigurationError, match="another configuration"):
        begin(tmp_path / "step", preset="compact", seed=77, workspace=str(runs), resume="first")
    page = report(runs, tmp_path / "two", resume="first", state="FAILED")
    assert "This run failed" in page and "train.seed" in page and "another configuration" in page
    assert content(runs / "first") == before


def test_a_run_that_is_continued_has_the_records_of_all_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulation and preparation do not know which run is continued; what earlier ones took was paid for, too."""
    runs = tmp_path / "runs"
    for name, resume in (("first", ""), ("second", "first")):
        monkeypatch.setenv(RUN_VARIABLE, name)
        begin(tmp_path / "step", preset="compact", workspace=str(runs), resume=resume)
        with recorded("simulate", runs / name) as figures:
            figures["source"] = name
        report(runs, tmp_path / name, resume=resume)
    assert read_records(runs / "first")["simulate"].figures == {"source": "second"}
    (earlier,) = read_earlier(runs / "first")
    assert [record.figures for record in earlier.stages] == [{"source": "first"}]
    report(runs, tmp_path / "again", resume="first")
    assert len(read_earlier(runs / "first")) == 1


def test_an_empty_form_continues_the_run_of_the_folder(tmp_path: Path) -> None:
    """As it is, nulls included, which the local runner cannot hand on."""
    run = load_run(preset="compact", overrides=["train.maxMinutes=null", "train.seed=5"])
    stages.plan(run, tmp_path / "run")
    begin(tmp_path / "step", workspace=str(tmp_path / "run"))
    assert load_run(tmp_path / "run/run.yaml") == run


def test_without_a_workspace_the_run_is_beside_its_artifacts(monkeypatch: pytest.MonkeyPatch) -> None:
    beside = "gs://bucket/root/train-calorimeter-gan/4f0e/simulate/1b2c/showers"
    with pytest.raises(ConfigurationError, match="workspace"):
        own_folder("", beside)
    monkeypatch.setenv(RUN_VARIABLE, "4f0e")
    assert own_folder("", beside) == "gs://bucket/root/train-calorimeter-gan/4f0e"
    assert run_folder("", "77aa", beside) == "gs://bucket/root/train-calorimeter-gan/77aa"
    assert run_folder("gs://runs/a/", HERE, beside) == "gs://runs/a"
    with pytest.raises(ConfigurationError, match="resume"):
        run_folder("gs://runs/a", "../b", beside)
    for workspace in ("runs", "/workspace ", "gs:/b/x", " gs://b/x"):
        with pytest.raises(ConfigurationError, match="workspace: "):
            run_folder(workspace, HERE, beside)


def test_a_run_that_is_not_there_is_not_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_VARIABLE, "second")
    with pytest.raises(ConfigurationError, match="resume: holds no run"):
        begin(tmp_path / "step", preset="compact", workspace=str(tmp_path / "runs"), resume="frist")
    assert "holds no run" in report(tmp_path / "runs", tmp_path / "made", resume="frist", state="FAILED")


@pytest.mark.parametrize("options", ["--on-cluster", "--compile p.yaml --set a=b", "--compile p.txt"])
def test_options_without_an_effect_are_refused(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        assert main(options.split()) == 2
    except SystemExit as ended:  # of argparse
        assert ended.code == 2
    assert "--" in capsys.readouterr().err


def test_the_log_of_a_refused_step_ends_with_the_message_alone(tmp_path: Path) -> None:
    program = (
        "from types import SimpleNamespace as N; from components.plan.component import plan\n"
        f"plan.python_func(**{ {**EMPTY_FORM, 'run': {'train': {'epochs': 'many'}}}!r}, resume='', "
        f"workspace={str(tmp_path)!r}, plan=N(path='plan', uri='plan'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and "Traceback" not in done.stderr
    assert "train.epochs" in done.stderr and len(done.stderr.splitlines()) <= 3
    bug = subprocess.run(
        [sys.executable, "-c", "from caloscale import errors; errors.show_message_alone(); 1 / 0"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert "Traceback" in bug.stderr and "ZeroDivisionError" in bug.stderr


def test_the_report_says_why_a_step_without_a_record_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_VARIABLE, "first")
    priced = {"budget": {"pricedAs": {"machineType": "n1-standard-3"}}}
    with pytest.raises(InputError):
        begin(tmp_path / "step", preset="compact", run=priced, workspace=str(tmp_path / "runs"))
    page = report(tmp_path / "runs", tmp_path / "made", state="FAILED")
    assert "did you mean" in page and "n1-standard-32" in page and "step plan" in page
    begin(tmp_path / "step", preset="compact", workspace=str(tmp_path / "runs"))
    with pytest.raises(ClusterError), failure_kept("train", str(tmp_path / "runs/first")):
        raise ClusterError("no queue of this name")
    assert "step train: no queue" in report(tmp_path / "runs", tmp_path / "next", state="FAILED")


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
    compiled = next(yaml.safe_load_all(text))
    for executor in compiled["deploymentSpec"]["executors"].values():
        image = executor["container"]["image"]
        assert re.fullmatch(r"[\w./-]+(:\d+\.\d+\.\d+|@sha256:[0-9a-f]{64})", image), image
    parameters = compiled["root"]["inputDefinitions"]["parameters"]
    build_any_run(parameters["run"]["defaultValue"])
    for parameter in parameters.values():
        assert len(parameter["description"]) > 60 and parameter["description"].endswith(".")
