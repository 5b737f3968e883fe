"""The pipeline of a document with hardware as Pods of a cluster of real nodes: each step with the image, command and
arguments of the compiled pipeline, artifacts in the bucket, the training a TrainingRun.

No Kubeflow Pipelines server runs here: `compiled_pipeline` plays its driver, `launcher` its launcher.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from caloscale.client.step import run_name
from caloscale.spec import load_run
from caloscale.storage.objects import download, read_object
from tests.smoke.compiled_pipeline import CompiledPipeline, Step, launcher_objects, pod_of, text_of
from tests.smoke.runs import NAMESPACE, RealCluster, Runs, holds
from tools.images import archives

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
COMPILED = ROOT / "pipelines/compiled/train_calorimeter_gan.yaml"
STEP_SECONDS = 1200.0
ACCOUNT = "steps"
BATCH = 12


def form(runs: Runs, epochs: int) -> dict[str, Any]:
    """A run of the compact network on two workers, as somebody types it into the form."""
    return {
        "workspace": f"{runs.bucket}/pipeline-runs",
        "preset": "compact",
        "epochs": epochs,
        "run": {
            "data": {"source": runs.showers, "showers": 72, "energyGev": [5, 20], "validationFraction": 0.25},
            "train": {"globalBatchSize": BATCH},
            "checkpoint": {"everySeconds": 3},
            "hardware": runs.hardware,
            "validation": {"showers": 64, "energyBins": 1, "bootstraps": 20},
        },
    }


@pytest.fixture(scope="module", autouse=True)
def trainer_on_the_system_node(cluster: RealCluster) -> None:
    """The image of the steps, on the node that has no accelerator."""
    if os.environ.get("REGISTRY"):
        pytest.skip("the compiled pipelines in the repository name no registry")
    (archive,) = archives(["trainer-cpu"]).values()
    cluster.import_image(archive, nodes=cluster.nodes[:1])


class Pods:
    """Runs the steps of a pipeline run as Pods and keeps what they said."""

    def __init__(self, cluster: RealCluster, run_id: str, logs: Path) -> None:
        self.cluster, self.run_id, self.logs, self.made = cluster, run_id, logs, list[dict[str, Any]]()
        cluster.apply(launcher_objects(ACCOUNT, NAMESPACE))

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
        environment = {"STORAGE_EMULATOR_HOST": "caloscale-storage:4443"}
        self.made.append(pod_of(step, name=name, account=ACCOUNT, environment=environment))
        self.cluster.apply([self.made[-1]], namespace=NAMESPACE)
        return name


def test_plan_train_validate_and_bill_as_pods(runs: Runs, tmp_path: Path) -> None:
    folder = f"{runs.bucket}/pipeline-runs/whole"
    places = {"root": f"{runs.bucket}/pipelines", "run_id": "whole"}
    walk = CompiledPipeline(COMPILED, form(runs, epochs=4), **places)
    execute = Pods(runs.cluster, walk.run_id, tmp_path)
    succeeded = walk.run(execute)
    assert succeeded, (walk.ended, {path.stem: path.read_text()[-1500:] for path in tmp_path.glob("*.log")})
    ended = [name for name in walk.ended if not name.startswith("gate")]
    assert ended == ["plan", "simulate", "preprocess", "train", "validate", "cost-report"]
    assert len(walk.ended) == len(ended) + 1

    executors = walk.spec["deploymentSpec"]["executors"].values()
    images = {each["container"]["image"] for each in executors}
    assert {pod["spec"]["containers"][0]["image"] for pod in execute.made} == images

    name = run_name(load_run(preset="compact"), f"{walk.run_id} {folder}")
    status = runs.ends(name)
    assert status["layout"] == "2x1" and len(status["attempts"]) == 1
    (held,) = status["attempts"][0]["nodeTotals"]
    assert held["nodes"] == status["attempts"][0]["workers"] == 2

    assert "nvidia-tesla-v100" in text_of(walk.artifact("plan", "plan"))
    said = json.loads(text_of(f"{walk.root}/train/executor_output.json"))
    metrics = said["artifacts"]["speed"]["artifacts"][0]["metadata"]
    assert metrics["steps"] == 24 and metrics["attempts"] == 1
    assert metrics["usd"] == pytest.approx(float(status["cost"]["usd"]), abs=1e-4) and metrics["usd"] > 0
    download(folder, tmp_path / "fetched")
    summary = json.loads((tmp_path / "fetched/summary.json").read_text())
    assert summary["outcome"] == "succeeded" and summary["train"]["steps"] == 24 and summary["physics"] is not None
    usage = json.loads((tmp_path / "fetched/usage.json").read_text())
    assert usage["attempts"][0]["nodes"][0]["nodes"] == 2 and not usage["ownMachine"]
    assert "Machines that the run held" in text_of(walk.artifact("cost-report", "report"))
    assert "generator.keras" in {path.name for path in download(walk.artifact("train", "trained"), tmp_path / "model")}


def test_the_run_of_a_terminated_step_stops_and_resumes_when_it_is_retried(runs: Runs, tmp_path: Path) -> None:
    """The Pod of the training step is deleted, as Kubeflow does when somebody terminates the pipeline run."""
    folder = f"{runs.bucket}/pipeline-runs/terminated"
    places = {"root": f"{runs.bucket}/pipelines", "run_id": "terminated"}
    walk = CompiledPipeline(COMPILED, form(runs, epochs=4000), **places)
    execute = Pods(runs.cluster, walk.run_id, tmp_path)
    name = run_name(load_run(preset="compact"), f"{walk.run_id} {folder}")

    def is_there() -> bool:
        found = runs.cluster.get("trainingruns", "-n", NAMESPACE)["items"]
        return name in {each["metadata"]["name"] for each in found}

    def terminated_in_training(step: Step) -> int:
        if step.name != "train":
            return execute(step)
        for steps in (1, 100):  # and once more, as somebody retries the step
            pod = execute.start(step)
            runs.cluster.wait_until(is_there, "the step has made its run", 120)
            runs.until(name, lambda s: s.get("phase") == "Running", "the workers run", 300)
            runs.trains(name, steps)
            runs.cluster.kubectl("delete", "pod", pod, "-n", NAMESPACE, "--timeout=90s")
            status = runs.until(name, lambda s: s.get("phase") == "Suspended" and not holds(s), "the run has stopped")
            assert f"the pipeline step that waits for it, pod {pod}, has ended" in status["message"]
        assert len(status["attempts"]) == 2 and status["attempts"][1]["firstStep"] > 0
        return 143

    assert not walk.run(terminated_in_training)
    assert walk.ended["cost-report"] == 0 and "validate" not in walk.ended
    assert read_object(f"{folder}/training/checkpoints/newest.json") is not None, "saved before it stopped"
