"""What Prometheus reads."""

import re
import shutil
import subprocess
import threading
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from caloscale.operator.metrics import MOST_RUNS, Metrics, RunsCollector
from caloscale.operator.store import Store
from tests.cluster import examples as ex
from tests.operator.test_store import pod, run, versioned

MANIFESTS = Path(__file__).parents[2] / "manifests"


def test_runs_accelerators_and_money() -> None:
    store, metrics = Store(), Metrics()
    metrics.registry.register(RunsCollector(store, lambda: True))
    placed = {**ex.PLACED, "capacityType": "spot", "usdPerHour": 19.5}
    store.put("TrainingRun", run(1, phase="Running", placement=placed))
    unpriced = {**ex.PLACED, "workers": 1}
    store.put("TrainingRun", named_run("unpriced", phase="Running", placement=unpriced))
    store.put("TrainingRun", named_run("waits", phase="Waiting", placement=placed))
    store.put("Node", versioned(ex.node("n0"), 2))
    half = pod("gan-1-worker-0", 3)
    half["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "6"
    store.put("Pod", half)
    store.put("Pod", pod("gan-1-worker-1", 4, node="gone"))
    store.put("Node", versioned(ex.node("n1"), 5))
    launcher = pod("gan-1-launcher", 6, node="n1")
    launcher["metadata"]["labels"]["app.kubernetes.io/component"] = "launcher"
    del launcher["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
    store.put("Pod", launcher)
    metrics.count("PATCH", "TFJob", 200)
    metrics.events.labels("Pod").inc()
    text = generate_latest(metrics.registry).decode()
    for line in (
        'caloscale_runs{phase="Running"} 2.0',
        'caloscale_runs{phase="Failed"} 0.0',
        'caloscale_accelerators{kind="planned"} 24.0',
        'caloscale_accelerators{kind="used"} 14.0',
        'caloscale_accelerators{kind="wasted"} 2.0',
        "caloscale_usd_per_hour 19.5",
        'caloscale_api_requests_total{code="200",kind="TFJob",method="PATCH"} 1.0',
        'caloscale_events_total{kind="Pod"} 1.0',
    ):
        assert line in text


def named_run(name: str, budget: object = None, **status: object) -> dict[str, object]:
    raw = run(1, **status)
    raw["metadata"] |= {"name": name, "uid": f"u-{name}"}
    return {**raw, "spec": {} if budget is None else {"budget": {"maxUsd": budget}}}


def test_unfinished_runs_have_metrics_of_their_own() -> None:
    store, metrics = Store(), Metrics()
    metrics.registry.register(RunsCollector(store, lambda: True))
    progress, cost = {"step": 30, "steps": 120}, {"usd": "7.25"}
    store.put("TrainingRun", named_run("gan", "20", phase="Running", progress=progress, cost=cost, restarts=2))
    store.put("TrainingRun", named_run("odd", {"not": "money"}, phase="Pending"))
    store.put("TrainingRun", named_run("silent", phase="Running"))
    store.put("TrainingRun", named_run("done", phase="Succeeded", progress={"step": 120, "steps": 120}))
    text = generate_latest(metrics.registry).decode()
    of_gan = '{namespace="physics",run="gan"}'
    for line in (
        'caloscale_run_info{accelerator="",capacity_type="",namespace="physics",phase="Running",run="gan"} 1.0',
        f"caloscale_run_progress{of_gan} 0.25",
        'caloscale_run_progress{namespace="physics",run="silent"} 0.0',
        f"caloscale_run_restarts{of_gan} 2.0",
        f"caloscale_run_usd{of_gan} 7.25",
        f"caloscale_run_budget_usd{of_gan} 20.0",
        'caloscale_run_restarts{namespace="physics",run="odd"} 0.0',
        "caloscale_runs_without_metrics 0.0",
    ):
        assert line in text.splitlines()
    assert 'run="done"' not in text
    assert set(re.findall(r'^(caloscale_run\w+){.*run="odd"', text, re.MULTILINE)) == {
        "caloscale_run_info",
        "caloscale_run_restarts",
    }


def test_an_operator_that_only_follows_counts_no_run() -> None:
    """Sums over all operators would have each run twice."""
    store, metrics, leads = Store(), Metrics(), threading.Event()
    metrics.registry.register(RunsCollector(store, leads.is_set))
    store.put("TrainingRun", named_run("gan", phase="Running"))
    assert "caloscale_run" not in generate_latest(metrics.registry).decode()
    leads.set()
    assert 'caloscale_runs{phase="Running"} 1.0' in generate_latest(metrics.registry).decode()


def test_many_runs_have_metrics_those_with_workers_first() -> None:
    store, metrics = Store(), Metrics()
    metrics.registry.register(RunsCollector(store, lambda: True))
    for number in range(MOST_RUNS + 3):
        store.put("TrainingRun", named_run(f"gan-{number:03d}", phase="Waiting"))
    store.put("TrainingRun", named_run("last", phase="Running"))
    text = generate_latest(metrics.registry).decode()
    shown = re.findall(r'^caloscale_run_restarts{.*run="([\w-]+)"', text, re.MULTILINE)
    assert len(shown) == MOST_RUNS and "last" in shown and "gan-000" in shown
    assert "caloscale_runs_without_metrics 4.0" in text.splitlines()


@pytest.mark.parametrize("page", ["base/dashboard.json", "monitoring/alerts.yaml"])
def test_the_dashboard_and_alerts_ask_for_what_there_is(page: str) -> None:
    asked = set(re.findall(r"\bcaloscale_\w+", (MANIFESTS / page).read_text(encoding="utf-8")))
    metrics, store = Metrics(), Store()
    metrics.registry.register(RunsCollector(store, lambda: True))
    progress, cost = {"step": 1, "steps": 2}, {"usd": "1"}
    store.put("TrainingRun", named_run("gan", 5, phase="Running", progress=progress, cost=cost))
    metrics.count("PATCH", "TFJob", 200)
    served = set(re.findall(r"^(caloscale_\w+)", generate_latest(metrics.registry).decode(), re.MULTILINE))
    assert asked and asked <= served


def test_alerts_name_fields_of_a_run() -> None:
    definition = yaml.safe_load((MANIFESTS / "crd/trainingruns.yaml").read_text(encoding="utf-8"))
    spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    text = (MANIFESTS / "monitoring/alerts.yaml").read_text(encoding="utf-8")
    named = re.findall(rf"\b({'|'.join(spec)})\.(\w+)", text)
    assert named and all(field in spec[block]["properties"] for block, field in named)


@pytest.mark.integration
@pytest.mark.skipif(shutil.which("promtool") is None, reason="no promtool: apt-get install prometheus")
def test_alerts_fire_where_they_should_and_only_there(tmp_path: Path) -> None:
    """Prometheus evaluates the rules on the series of alerts.yaml."""
    rules = yaml.safe_load((MANIFESTS / "monitoring/alerts.yaml").read_text(encoding="utf-8"))["spec"]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules), encoding="utf-8")
    series = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text(encoding="utf-8"))
    tested = {
        alert["alertname"] for test in series["tests"] for alert in test["alert_rule_test"] if alert["exp_alerts"]
    }
    assert tested == {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    for test in series["tests"]:  # the texts are those of the rules; the series decide whether an alert fires
        for alert in test["alert_rule_test"]:
            (rule,) = (r for group in rules["groups"] for r in group["rules"] if r["alert"] == alert["alertname"])
            for expected in alert["exp_alerts"]:
                expected["exp_labels"] = rule["labels"] | (expected.get("exp_labels") or {})
                texts = (rule["annotations"] | (expected.get("exp_annotations") or {})).items()
                values = {f"$labels.{name}": value for name, value in expected["exp_labels"].items()}
                expected["exp_annotations"] = {name: filled(text, values) for name, text in texts}
    (tmp_path / "tests.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], **series}), encoding="utf-8")
    done = subprocess.run(["promtool", "test", "rules", "tests.yaml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def filled(text: str, values: dict[str, str]) -> str:
    return re.sub(r"{{ (\$labels\.\w+) }}", lambda match: values[match[1]], text)


def test_a_strangers_nonsense_is_left_aside() -> None:
    store = Store()
    broken = ex.node("odd", allocatable={"cpu": "many"})
    assert store.put("Node", versioned(broken, 1)) == set() and "odd" not in store.capacity.nodes
