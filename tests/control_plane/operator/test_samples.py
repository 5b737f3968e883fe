"""The samples, as they are, on pools as `caloscale node-pools` would make them."""

from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.control_plane.operator.conftest import Runs

SAMPLES = Path(__file__).parents[3] / "manifests" / "samples"
POOLS = (
    {"pool": "v100-8-spot", "count": 4, "spot": True},
    {"pool": "v100-8", "count": 2},
    {"pool": "l4-1-spot", "gpus": 1, "spot": True, "accelerator": "nvidia-l4", "machine_type": "g2-standard-12",
     "zone": "us-central1-a"},
    {"pool": "tpu-v3-2x2-4t", "gpus": 4, "accelerator": "tpu-v3-device", "topology": "2x2",
     "machine_type": "ct3-hightpu-4t"},
    {"pool": "cpu", "gpus": 0, "accelerator": "", "machine_type": "n1-standard-8", "cpu": "8"},
)  # fmt: skip


@pytest.mark.integration
def test_samples_run_to_success(runs: Runs, add_nodes: Callable[..., list[str]]) -> None:
    for pool in POOLS:
        add_nodes(**pool)
    runs.fake_pods("1s")
    paths = [path for path in sorted(SAMPLES.glob("*.yaml")) if path.stem != "solver"]  # in test_solver.py
    samples = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]
    runs.plane.apply(samples, namespace=runs.namespace)
    placed = {each["metadata"]["name"]: runs.phase(each["metadata"]["name"], "Succeeded") for each in samples}
    pools = {name: (status["placement"]["pool"], status["placement"]["backend"]) for name, status in placed.items()}
    assert pools == {
        "cpu": ("cpu", "TFJob"),
        "l4-one": ("l4-1-spot", "TFJob"),
        "tpu-v3": ("tpu-v3-2x2-4t", "JobSet"),
        "v100-jobset": ("v100-8", "JobSet"),
        "v100-spot": ("v100-8-spot", "TFJob"),
    }
    assert all(float(status["cost"]["usd"]) > 0 for name, status in placed.items() if name != "cpu")
