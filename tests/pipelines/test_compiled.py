"""The compiled pipeline and its components, as the Kubeflow UI and a cluster see them."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kfp.pipeline_spec import pipeline_spec_pb2  # noqa: F401 (fails early when kfp is broken)

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = ["plan", "simulate", "preprocess", "train", "train_on_cluster", "validate", "cost_report"]


def compile_pipeline(path: Path, **environment: str) -> dict:
    command = [sys.executable, "-m", "pipelines.train_calorimeter_gan", "--compile", str(path)]
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
    needs = {name: set(task.get("dependentTasks", [])) for name, task in inner.items()}
    assert needs == {
        "plan": set(),
        "simulate": set(),
        "preprocess": {"simulate"},
        "train": {"plan", "preprocess"},
        "validate": {"preprocess", "train"},
    }
    assert all(task["retryPolicy"]["maxRetryCount"] >= 1 for task in inner.values())
    cached = {name for name, task in inner.items() if task["cachingOptions"].get("enableCache", False)}
    assert cached == set(inner) - {"plan"}  # prices are those of the day
    last = compiled["root"]["dag"]["tasks"]["cost-report"]
    assert last["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    assert not last["cachingOptions"].get("enableCache", False)


def test_the_form_of_the_ui_explains_each_parameter(compiled: dict) -> None:
    parameters = compiled["root"]["inputDefinitions"]["parameters"]
    assert set(parameters) == {"workspace", "run"}
    assert all(len(p["description"]) > 40 for p in parameters.values())


@pytest.mark.parametrize("name", COMPONENTS)
def test_components_are_doors(name: str) -> None:
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
    assert len(calls) == 1


def test_the_pipeline_that_trains_on_machines_of_its_own() -> None:
    """Plan, train on the cluster, validate, cost report; the run is named after the pipeline run."""
    compiled = yaml.safe_load((ROOT / "pipelines/compiled/train_on_cluster.yaml").read_text())
    inner = compiled["components"]["comp-exit-handler-1"]["dag"]["tasks"]
    assert set(inner["train-on-cluster"]["dependentTasks"]) == {"plan", "preprocess"}
    assert set(inner["validate"]["dependentTasks"]) == {"preprocess", "train-on-cluster"}
    given = inner["train-on-cluster"]["inputs"]["parameters"]["pipeline_id"]
    assert given["runtimeValue"]["constant"] == "{{$.pipeline_job_uuid}}"
    assert not inner["train-on-cluster"]["cachingOptions"].get("enableCache", False)
    assert (
        compiled["root"]["dag"]["tasks"]["cost-report"]["triggerPolicy"]["strategy"] == "ALL_UPSTREAM_TASKS_COMPLETED"
    )
