"""What Prometheus reads."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import generate_latest

from caloscale.operator.cache import Store
from caloscale.operator.metrics import Metrics, RunsCollector
from tests.cluster import examples as ex
from tests.operator.test_cache import pod, run, versioned


def test_runs_accelerators_and_money() -> None:
    store, metrics = Store(), Metrics()
    metrics.registry.register(RunsCollector(store))
    placed = {
        "backend": "TFJob",
        "pool": "v100-8",
        "accelerator": "nvidia-tesla-v100",
        "machineType": "n1-standard-64",
        "capacityType": "spot",
        "nodes": 2,
        "workers": 2,
        "perNode": 8,
        "acceleratorsPerWorker": 8,
        "plannedNodes": 2,
        "globalBatch": 1024,
        "batchPerReplica": 64,
        "usdPerHour": 19.5,
    }
    store.put("TrainingRun", run(1, phase="Running", placement=placed))
    store.put("Node", versioned(ex.node("n0"), 2))
    half = pod("gan-1-worker-0", 3)
    half["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "6"
    store.put("Pod", half)
    metrics.count("PATCH", "TFJob", 200)
    text = generate_latest(metrics.registry).decode()
    for line in (
        'caloscale_runs{phase="Running"} 1.0',
        'caloscale_runs{phase="Failed"} 0.0',
        'caloscale_accelerators{kind="planned"} 16.0',
        'caloscale_accelerators{kind="used"} 6.0',
        'caloscale_accelerators{kind="wasted"} 2.0',
        "caloscale_usd_per_hour 19.5",
        'caloscale_api_requests_total{code="200",kind="TFJob",method="PATCH"} 1.0',
    ):
        assert line in text


def test_the_dashboard_shows_what_there_is() -> None:
    dashboard = Path(__file__).parents[2] / "manifests" / "base" / "dashboard.json"
    asked = set(re.findall(r"\bcaloscale_\w+", dashboard.read_text(encoding="utf-8")))
    metrics = Metrics()
    metrics.registry.register(RunsCollector(Store()))
    metrics.count("PATCH", "TFJob", 200)
    served = set(re.findall(r"^(caloscale_\w+)", generate_latest(metrics.registry).decode(), re.MULTILINE))
    assert asked and asked <= served


def test_a_strangers_nonsense_is_left_aside() -> None:
    store = Store()
    broken = ex.node("odd", allocatable={"cpu": "many"})
    assert store.put("Node", versioned(broken, 1)) == set() and "odd" not in store.nodes
