"""Steps of the compiled pipelines with their own commands, within the launcher of the tests, against a bucket.

No Kubeflow Pipelines server runs here: `compiled_pipeline` plays its driver, `launcher` its launcher.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from caloscale import spec, stages
from caloscale.stages.pipeline_run import RUN_VARIABLE
from caloscale.storage.objects import download
from tests.pipelines.conftest import TINY
from tests.smoke.compiled_pipeline import CompiledPipeline, Step, pod_of, run_here, text_of

ROOT = Path(__file__).resolve().parents[2]
FIRST = ROOT / "pipelines/compiled/train_calorimeter_gan.yaml"
PLANNED = {"preset": "variable-angle", "accelerator": "v100", "run": {"hardware": {"count": 8}}}
TINY_FORM = {"preset": "", "run": yaml.safe_load(TINY)}


def pipeline(bucket: str, form: dict[str, Any], name: str, workspace: str | None = None) -> CompiledPipeline:
    places = {"root": f"{bucket}/pipelines", "run_id": name}
    return CompiledPipeline(FIRST, {"workspace": workspace or f"{bucket}/runs", **form}, **places)


def environment(home: Path) -> dict[str, str]:
    given = ("PATH", "STORAGE_EMULATOR_HOST")
    kept = {name: value for name, value in os.environ.items() if name in given or name.startswith("AWS_")}
    return {**kept, "HOME": str(home), "TMPDIR": str(home), "CALOSCALE_CACHE": str(home / "cache")}


@pytest.mark.integration
def test_a_step_writes_its_artifacts_into_the_bucket(bucket_server: str, tmp_path: Path) -> None:
    """The first one, with its command as compiled; what it gives is what the stage gives here."""
    walk = pipeline(bucket_server, PLANNED, "one")

    def first_alone(step: Step) -> int:
        return run_here(step, tmp_path, environment(tmp_path)) if step.name == "plan" else 7

    assert not walk.run(first_alone)
    assert walk.ended == {"plan": 0, "simulate": 7, "cost-report": 7}, (tmp_path / "plan.log").read_text()
    form = {**spec.EMPTY_FORM, **{name: value for name, value in PLANNED.items() if name != "run"}}
    here = stages.plan(spec.run_of_form(form, PLANNED["run"]), tmp_path / "here")
    assert text_of(walk.artifact("plan", "plan")) == here
    assert "nvidia-tesla-v100" in here
    names = {path.name for path in download(f"{bucket_server}/runs/one", tmp_path / "workspace")}
    assert names == {"run.yaml", "plan.json"}
    assert (tmp_path / "workspace/run.yaml").read_text() == (tmp_path / "here/run.yaml").read_text()


def test_pods_have_what_the_compiled_pipeline_says(bucket_server: str) -> None:
    """And what the steps before one said of its input; a failed step stops the rest but for the report."""
    walk = pipeline(bucket_server, TINY_FORM, "pods")
    seen: list[Step] = []
    walk.run(lambda step: seen.append(step) or int(step.name == "train"))
    assert [step.name for step in seen] == ["plan", "simulate", "preprocess", "train", "cost-report"]
    train, report = seen[3], seen[4]
    values = train.executor_input["inputs"]["parameterValues"]
    assert (values["run"], values["folder"]) == ("<plan configuration>", "<plan folder>")
    assert train.limits == {"<plan gpu_resource>": "<plan gpu_count>"} and not any(s.limits for s in seen if s != train)
    assert train.environment == {RUN_VARIABLE: "pods"}
    (dataset,) = train.executor_input["inputs"]["artifacts"]["dataset"]["artifacts"]
    assert dataset["uri"] == "gs://showers/pipelines/pods/preprocess/dataset"
    assert report.executor_input["inputs"]["parameterValues"]["status"]["state"] == "FAILED"
    (container,) = pod_of(train, name="train", account="steps", environment={})["spec"]["containers"]
    assert container["image"] == train.image
    before, after = container["command"][: container["command"].index("--")], train.command
    assert container["command"] == [*before, "--", *after] and before[:2] == ["python3", "/launcher/launcher.py"]
    assert json.loads(before[-1]) == train.executor_input == json.loads(after[after.index("--executor_input") + 1])


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("place", ["bucket_server", "s3_server", "volume"])
def test_the_whole_pipeline_gives_what_the_command_gives(
    request: pytest.FixtureRequest, bucket_server: str, tmp_path: Path, place: str
) -> None:
    """With its workspace in a bucket of either kind, and on a volume."""
    workspace = str(tmp_path / "volume") if place == "volume" else f"{request.getfixturevalue(place)}/runs"
    walk = pipeline(bucket_server, TINY_FORM, f"whole-{place.partition('_')[0]}", workspace)
    succeeded = walk.run(lambda step: run_here(step, tmp_path, environment(tmp_path)))
    logs = {path.stem: path.read_text()[-1500:] for path in tmp_path.glob("*.log")}
    assert succeeded, (walk.ended, logs)
    assert list(walk.ended) == ["plan", "simulate", "preprocess", "train", "validate", "gate-3", "cost-report"]
    download(f"{workspace}/{walk.run_id}", tmp_path / "fetched")
    by_pipeline = json.loads((tmp_path / "fetched/summary.json").read_text())
    run = spec.parse_run(TINY)
    (tmp_path / "here").mkdir()
    stages.run_all(run, tmp_path / "here")
    by_command = json.loads((tmp_path / "here/summary.json").read_text())
    for part in ("data", "outcome"):
        assert by_pipeline[part] == by_command[part]
    assert by_pipeline["train"]["steps"] == by_command["train"]["steps"] == 12
    # Twelve showers are judged: one that falls into the next bin changes a separation by a twelfth.
    physics = [
        {k: v["separation"] for k, v in s["physics"].items() if isinstance(v, dict)} for s in (by_pipeline, by_command)
    ]
    assert physics[0] == pytest.approx(physics[1], abs=0.1)
    assert text_of(walk.artifact("cost-report", "report")).startswith("<!")
    said = json.loads(text_of(f"{walk.root}/cost-report/executor_output.json"))
    result = said["artifacts"]["result"]["artifacts"][0]["metadata"]
    assert result["verdict"] == by_pipeline["physics"]["decision"] and result["usd"] == by_pipeline["bill"]["usd"]
    trained_in = json.loads(text_of(f"{walk.root}/train/executor_output.json"))["artifacts"]["speed"]["artifacts"][0]
    assert 0 < trained_in["metadata"]["usd"] < result["usd"]
    trained = {path.name for path in download(walk.artifact("train", "trained"), tmp_path / "trained")}
    assert "generator.keras" in trained
