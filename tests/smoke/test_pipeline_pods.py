"""The pipeline of a document with hardware as Pods of a cluster of real nodes: each step with the image, command and
arguments of the compiled pipeline, artifacts in the bucket, the training a TrainingRun. Root, half an hour.

No Kubeflow Pipelines server runs here: `compiled_pipeline` plays its driver, `launcher` its launcher. Images must be
built (`make images`) and their archives given, as must be that of docker/storage.Dockerfile:
CALOSCALE_SMOKE_IMAGES=operator.tar:trainer.tar:storage.tar
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from caloscale.client.step import run_name
from caloscale.showers.storage import download, read_object
from caloscale.spec import parse_run
from tests.smoke.compiled_pipeline import CompiledPipeline, Step, launcher_objects, pod_of

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
SECOND = ROOT / "pipelines/compiled/train_on_cluster.yaml"
NAMESPACE, BUCKET = "caloscale-runs", "gs://caloscale"
IMAGES = [Path(each) for each in os.environ.get("CALOSCALE_SMOKE_IMAGES", "").split(":") if each]
STEP_SECONDS = 1200.0
TRAINED = """
model: {preset: compact}
data:
  showers: 48
  energyGev: [5, 9]
  validationFraction: 0.25
  simulation: {showersPerFile: 16}
train: {epochs: 4, globalBatchSize: 8}
checkpoint: {everySeconds: 2}
hardware: {accelerator: nvidia-tesla-v100, count: 2, perNode: 1, purchase: spot, region: europe-west4, advertised: true}
validation: {showers: 64, energyBins: 1, bootstraps: 20}
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Three real nodes with the operator, training-operator and the bucket."""
    native = pytest.importorskip("tools.cluster.native", reason="there is no cluster of real nodes yet")
    if os.geteuid() != 0 or not IMAGES:
        pytest.skip("needs root, and the archives of the images in CALOSCALE_SMOKE_IMAGES")
    with native.NativeCluster() as made:
        for archive in IMAGES:
            made.import_image(archive)
        for folder in ("overlays/kind", "storage/kind"):
            rendered = made.kubectl("kustomize", str(ROOT / "manifests" / folder))
            objects = [each for each in yaml.safe_load_all(rendered) if each]
            objects.sort(key=lambda each: each["kind"] not in ("Namespace", "CustomResourceDefinition"))
            made.apply(objects)
        for where, name in (("caloscale-system", "caloscale-operator"), (NAMESPACE, "caloscale-storage")):
            made.kubectl("rollout", "status", f"deployment/{name}", "-n", where, "--timeout=180s")
        made.apply(launcher_objects("steps", NAMESPACE))
        yield made


@pytest.fixture(scope="module")
def bucket(cluster: Any) -> Iterator[str]:
    """The cluster's bucket, reached from here by the pod's address."""
    (pod,) = cluster.get("pods", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=caloscale-storage")["items"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", f"http://{pod['status']['podIP']}:4443")
        yield BUCKET


class Pods:
    """Runs the steps of a pipeline run as Pods and keeps what they said."""

    def __init__(self, cluster: Any, run_id: str, logs: Path) -> None:
        self.cluster, self.run_id, self.logs, self.made = cluster, run_id, logs, list[dict[str, Any]]()

    def __call__(self, step: Step) -> int:
        """Run a step to its end; its exit code."""
        name = self.start(step)
        ended: dict[str, Any] = {}

        def has_ended() -> bool:
            ended.update(self.cluster.get("pod", name, "-n", NAMESPACE)["status"])
            return ended.get("phase") in ("Succeeded", "Failed")

        self.cluster.wait_until(has_ended, f"step {step.name} has ended", STEP_SECONDS)
        (self.logs / f"{step.name}.log").write_text(self.cluster.kubectl("logs", name, "-n", NAMESPACE))
        return int(ended["containerStatuses"][0]["state"]["terminated"]["exitCode"])

    def start(self, step: Step) -> str:
        """Make the Pod of a step; its name."""
        name = f"{self.run_id}-{step.name}"
        environment = {"STORAGE_EMULATOR_HOST": "http://caloscale-storage:4443"}
        self.made.append(pod_of(step, name=name, account="steps", environment=environment))
        self.cluster.apply([self.made[-1]], namespace=NAMESPACE)
        return name


def text_of(uri: str) -> str:
    content = read_object(uri)
    assert content is not None, uri
    return content.decode()


def test_plan_train_validate_and_bill_as_pods(cluster: Any, bucket: str, tmp_path: Path) -> None:
    workspace = f"{bucket}/runs/pipeline"
    walk = CompiledPipeline(
        SECOND, {"workspace": workspace, "run": TRAINED}, root=f"{bucket}/pipelines", run_id="on-pods"
    )
    execute = Pods(cluster, walk.run_id, tmp_path)
    succeeded = walk.run(execute)
    assert succeeded, (walk.ended, {path.stem: path.read_text()[-1500:] for path in tmp_path.glob("*.log")})
    assert list(walk.ended) == ["plan", "simulate", "preprocess", "train", "validate", "cost-report"]

    executors = walk.spec["deploymentSpec"]["executors"].values()
    images = {each["container"]["image"] for each in executors}
    assert {pod["spec"]["containers"][0]["image"] for pod in execute.made} == images

    (run,) = cluster.get("trainingruns", "-n", NAMESPACE)["items"]
    assert run["status"]["phase"] == "Succeeded" and run["status"]["layout"] == "2x1"
    pods = cluster.get("pods", "-n", NAMESPACE, "-l", f"caloscale.dev/run={run['metadata']['name']}")["items"]
    assert len({pod["spec"]["nodeName"] for pod in pods}) == len(pods) == 2

    assert "nvidia-tesla-v100" in text_of(walk.artifact("plan", "plan"))
    said = json.loads(text_of(f"{walk.root}/train/executor_output.json"))
    metrics = said["artifacts"]["metrics"]["artifacts"][0]["metadata"]
    assert metrics["steps"] == 24 and metrics["attempts"] == 1 and metrics["usd"] > 0
    download(workspace, tmp_path / "fetched")
    summary = json.loads((tmp_path / "fetched/summary.json").read_text())
    assert summary["outcome"] == "succeeded" and summary["train"]["steps"] == 24 and summary["physics"] is not None
    usage = json.loads((tmp_path / "fetched/usage.json").read_text())
    assert usage["attempts"][0]["nodes"][0]["nodes"] == 2 and not usage.get("ownMachine")
    assert "generator.keras" in {path.name for path in download(walk.artifact("train", "trained"), tmp_path / "model")}


def test_a_cancelled_step_takes_its_run_back(cluster: Any, bucket: str, tmp_path: Path) -> None:
    """The Pod of the training step is deleted, as Kubeflow does when somebody terminates the pipeline run."""
    document = TRAINED.replace("epochs: 4", "epochs: 4000")
    places = {"root": f"{bucket}/pipelines", "run_id": "cancelled"}
    walk = CompiledPipeline(SECOND, {"workspace": f"{bucket}/runs/cancelled", "run": document}, **places)
    execute = Pods(cluster, walk.run_id, tmp_path)
    name = run_name(parse_run(document), walk.run_id)

    def run() -> dict[str, Any]:
        runs = cluster.get("trainingruns", "-n", NAMESPACE)["items"]
        return next((each for each in runs if each["metadata"]["name"] == name), {})

    def cancelled_in_training(step: Step) -> int:
        if step.name != "train":
            return execute(step)
        pod = execute.start(step)
        cluster.wait_until(
            lambda: run().get("status", {}).get("progress", {}).get("step", 0) > 0, "the training makes steps", 600
        )
        cluster.kubectl("delete", "pod", pod, "-n", NAMESPACE, "--timeout=90s")
        cluster.wait_until(lambda: not run(), "the run is gone", 120)
        return 143

    assert not walk.run(cancelled_in_training)
    assert walk.ended["cost-report"] == 0 and "validate" not in walk.ended
    assert read_object(f"{bucket}/runs/cancelled/training/checkpoints/newest.json") is not None, "saved before it went"
    pods = cluster.get("pods", "-n", NAMESPACE, "-l", f"caloscale.dev/run={name}")["items"]
    assert all(pod["metadata"].get("deletionTimestamp") for pod in pods)
