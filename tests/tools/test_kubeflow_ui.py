"""The pipeline in the UI of Kubeflow Pipelines, in Chromium, on the server of `python -m tools.cluster kubeflow`."""

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from tests.pipelines.conftest import TINY
from tests.tools.conftest import Browser
from tools.cluster.errors import ClusterError
from tools.cluster.kubeflow import server, sources
from tools.cluster.native import requirements
from tools.images import ImageError, archives

TINY_RUN = yaml.safe_load(TINY)
ROOT = "v2/artifacts/train-calorimeter-gan"
COMPILED = Path(__file__).resolve().parents[2] / "pipelines" / "compiled" / "train_calorimeter_gan.yaml"
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not sources.is_built(), reason="no Kubeflow: `python -m tools.cluster kubeflow` builds it once"),
]


class UI:
    """The UI in a browser, and the API beside it to see what it did."""

    def __init__(self, browser: Browser, served: server.Server) -> None:
        self.browser, self.server = browser, served
        self.pods = client.CoreV1Api(served.cluster.client())

    def open(self, page: str) -> None:
        self.browser.open("about:blank", 1300)
        self.browser.open(f"{self.server.url}/#/{page}", 1300)

    def click(self, element: str) -> None:
        """element: an expression that gives it; it is waited for."""
        self.browser.wait(f"{element} && !{element}.disabled")
        self.browser.value(f"{element}.click()")

    def button(self, name: str) -> None:
        self.click(f"document.getElementById('{name}')")

    def fill(self, field: str, text: str) -> None:
        element = f"document.getElementById('{field}')"
        self.browser.wait(element)
        self.browser.value(f"{element}.focus(); {element}.select()")
        if text:
            self.browser.call("Input.insertText", text=text)
        else:
            self.browser.call("Input.dispatchKeyEvent", type="keyDown", key="Backspace", windowsVirtualKeyCode=8)

    def value(self, field: str) -> str:
        self.browser.wait(f"document.getElementById('{field}')")
        return str(self.browser.value(f"document.getElementById('{field}').value"))

    def upload(self, name: str, file: Path) -> None:
        self.open("pipeline_versions/new")
        self.click("document.querySelector('#localPackageBtn input')")
        self.fill("newPipelineName", name)
        page = self.browser.call("DOM.getDocument")["root"]["nodeId"]
        chosen = self.browser.call("DOM.querySelector", nodeId=page, selector="input[type=file]")["nodeId"]
        self.browser.call("DOM.setFileInputFiles", files=[str(file)], nodeId=chosen)
        self.browser.value(
            "document.querySelector('input[type=file]').dispatchEvent(new Event('change', {bubbles: true}))"
        )
        self.button("createNewPipelineOrVersionBtn")
        self.browser.wait("location.href.includes('/pipelines/details/')")

    def new_run(self) -> None:
        self.open("pipelines")
        self.click("[...document.querySelectorAll('a')].find(a => a.innerText == 'calorimeter')")
        self.sees("Report and bill")
        self.button("createNewRunBtn")
        self.value("run")

    def start(self, name: str, **entries: Any) -> str:
        """Fill the form and start; the id of the run."""
        self.new_run()
        return self.submit(name, **entries)

    def submit(self, name: str, *, recurring: bool = False, **entries: str) -> str:
        title = "[...document.querySelectorAll('input')].find(e => /^(Run|Clone|Recurring)/.test(e.value)).id"
        for field, text in {self.browser.value(title): name, **entries}.items():
            self.fill(field, text)
        self.button("startNewRunBtn")
        self.browser.wait(f"location.href.includes('/{'recurringrun' if recurring else 'runs'}/details/')")
        return str(self.browser.value("location.href")).rpartition("/")[2]

    def end(self, run: str) -> str:
        """State of a run when it has ended."""
        while (state := self.api(f"runs/{run}").get("state", "PENDING")) in ("PENDING", "RUNNING", "CANCELING"):
            time.sleep(3)
        return str(state)

    def states(self, run: str) -> dict[str, str]:
        """States of the steps that have begun, by name."""
        tasks = self.api(f"runs/{run}").get("run_details", {}).get("task_details", [])
        return {each.get("display_name", ""): each.get("state", "") for each in tasks}

    def open_run(self, run: str) -> None:
        self.open(f"runs/details/{run}")
        self.sees("Report and bill")

    def confirm(self, button: str, answer: str) -> None:
        """Click a button, and an answer in the dialogue that it opens."""
        self.button(button)
        self.click(f"[...document.querySelectorAll('[role=dialog] button')].find(b => b.innerText == '{answer}')")

    def cached(self) -> set[str]:
        """Steps of the opened graph that came from the cache."""
        cached = ".react-flow__node:has([data-testid=CloudDownloadIcon])"
        return set(self.browser.value(f"[...document.querySelectorAll('{cached}')].map(n => n.innerText)"))

    def open_steps(self, run: str) -> None:
        """The graph of a run with the steps in its node Run, when their states are known."""
        self.open_run(run)
        self.click("document.querySelector('[data-testid=expand-button]')")
        self.browser.wait("document.querySelectorAll('.react-flow__node').length > 10")
        self.browser.wait("document.querySelector('[data-testid=execution-icon-active]')")

    def sees(self, text: str) -> None:
        self.browser.wait(f"document.body.innerText.includes({json.dumps(text)})")

    def files(self, run: str) -> dict[str, str]:
        """Digests of all objects of a run by key: its folder and its artifacts."""
        pages = self.server.store().get_paginator("list_objects_v2")
        found = pages.paginate(Bucket=server.BUCKET, Prefix=f"{ROOT}/{run}/")
        return {each["Key"]: each["ETag"] for part in found for each in part.get("Contents", [])}

    def text(self, key: str) -> str:
        """Of an object."""
        return str(self.server.store().get_object(Bucket=server.BUCKET, Key=key)["Body"].read().decode())

    def api(self, path: str, sent: Any = None) -> Any:
        """The answer of the API, to a POST where something is sent."""
        content = None if sent is None else json.dumps(sent).encode()
        asked = urllib.request.Request(
            f"{self.server.url}/apis/v2beta1/{path}", content, {"content-type": "application/json"}
        )
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def ui(browser: Browser) -> Iterator[UI]:
    try:
        archives(["trainer-cpu"])
        requirements.check()
    except (ClusterError, ImageError) as error:
        pytest.skip(str(error))
    with server.kubeflow() as served:
        made = UI(browser, served)
        made.upload("calorimeter", COMPILED)
        yield made


@pytest.fixture(scope="module")
def first(ui: UI) -> str:
    """Id of a run that was started by the form and has succeeded."""
    run = ui.start("first", preset="", run=json.dumps(TINY_RUN))
    assert ui.end(run) == "SUCCEEDED"
    return run


def test_the_form_has_an_entry_for_each_parameter_with_its_default(ui: UI) -> None:
    ui.new_run()
    parameters = next(yaml.safe_load_all(COMPILED.read_text()))["root"]["inputDefinitions"]["parameters"]
    for name, parameter in parameters.items():
        default = parameter["defaultValue"]
        number = int(default) if isinstance(default, float) else default
        assert ui.value(name) == (default if isinstance(default, str) else json.dumps(number))


def test_a_run_shows_its_graph_its_verdict_and_its_report(ui: UI, first: str) -> None:
    ui.open_steps(first)
    assert ui.cached() == set()
    for step in ("Plan machines", "Simulate showers", "Prepare showers", "Train", "Validate against Monte Carlo"):
        ui.sees(step)
    ui.click("document.getElementById('artifact.train.speed')")
    ui.click("[...document.querySelectorAll('button')].find(b => b.innerText == 'Visualization')")
    ui.sees("usd")
    ui.open_steps(first)
    ui.sees("Verdict")
    ui.click("document.querySelector('[data-testid=expand-button]')")
    ui.sees("Undecided")
    ui.open_run(first)
    ui.browser.wait("document.querySelector('[data-testid=execution-icon-active]')")  # before, a panel stays empty
    ui.click("document.getElementById('artifact.cost-report.report')")
    ui.sees("system.HTML")
    ui.click("[...document.querySelectorAll('button')].find(b => b.innerText == 'Visualization')")
    ui.browser.wait(f"document.querySelector('iframe')?.srcdoc.includes({json.dumps(first)})")


def test_a_clone_with_another_seed_leaves_the_first_run_as_it_was(ui: UI, first: str) -> None:
    before = ui.files(first)
    assert f"{ROOT}/{first}/summary.json" in before
    ui.open_run(first)
    ui.button("cloneBtn")
    assert json.loads(ui.value("run")) == TINY_RUN and ui.value("preset") == ""
    second = ui.submit("second", seed="7")
    assert second != first and ui.end(second) == "SUCCEEDED"
    assert ui.files(first) == before
    assert f"{ROOT}/{second}/summary.json" in ui.files(second)
    ui.open_steps(second)
    assert ui.cached() == {"Simulate showers", "Prepare showers"}
    ui.open(f"compare?runlist={first},{second}")
    for each in ("first", "second", "seed"):
        ui.sees(each)


def test_a_run_that_is_not_accepted_is_seen_in_the_run_list(ui: UI, first: str) -> None:
    """Networks of two epochs, and the gates of the preset; simulation and preparation come from the cache."""
    validation = {name: value for name, value in TINY_RUN["validation"].items() if name != "gates"}
    judged = json.dumps({**TINY_RUN, "validation": validation})
    run = ui.start("judged", preset="", run=judged, fail_unless_accepted="true")
    assert ui.end(run) == "FAILED"
    states = ui.states(run)
    assert states["validate"] == states["cost-report"] == "SUCCEEDED"
    ui.open("runs")
    ui.sees("judged")
    row = "[...document.querySelectorAll('[data-testid=table-row]')].find(r => r.innerText.startsWith('judged'))"
    ui.browser.wait(f"{row}.querySelector('[data-testid=node-status-sign]').style.color == 'rgb(213, 0, 0)'")


def test_a_run_that_was_terminated_is_resumed_by_retry(ui: UI, first: str) -> None:
    """Steps that had ended do not run again, nor does the report at the exit; the others continue in the folder of the
    run. Other preparation."""
    other = json.dumps({**TINY_RUN, "data": {**TINY_RUN["data"], "preprocessing": {"power": 0.6}}})
    run = ui.start("terminated", preset="", run=other, seed="11")
    while ui.states(run).get("train") != "RUNNING":
        time.sleep(1)
    ui.open_run(run)
    ui.confirm("terminateRunBtn", "Terminate")
    assert ui.end(run) in ("CANCELED", "FAILED")
    before = ui.files(run)
    assert f"{ROOT}/{run}/stages/validate.json" not in before
    assert "the pipeline run was terminated" in json.loads(ui.text(f"{ROOT}/{run}/summary.json"))["error"]
    ui.open_steps(run)
    assert ui.cached() == {"Simulate showers"}
    ui.confirm("retryBtn", "Retry")
    while ui.api(f"runs/{run}")["state"] in ("CANCELED", "FAILED"):
        time.sleep(1)
    assert ui.end(run) == "SUCCEEDED"
    after = ui.files(run)
    assert json.loads(ui.text(f"{ROOT}/{run}/stages/validate.json"))["outcome"] == "succeeded"
    # A training that had written a checkpoint resumes from it and changes its own files, and removes the record of the
    # report. The folder .holder records which process writes to the folder of the run.
    parts = (".holder/", "training/", "stages/train.json", "stages/report.json")
    resumed = tuple(f"{ROOT}/{run}/{part}" for part in parts)
    assert not [key for key, digest in before.items() if after.get(key) != digest and not key.startswith(resumed)]


def test_the_pod_of_a_training_asks_for_the_gpus_of_the_form(ui: UI, first: str) -> None:
    """Which are not there: the training ends, and does not take the processor in their place."""
    run = ui.start("gpus", preset="", run=json.dumps(TINY_RUN), gpus="2")
    assert ui.end(run) == "FAILED"
    pods = ui.pods.list_namespaced_pod(server.NAMESPACE, label_selector=f"pipeline/runid={run}").items
    limits = [each.resources.limits or {} for pod in pods for each in pod.spec.containers if each.name == "main"]
    assert [each["nvidia.com/gpu"] for each in limits if "nvidia.com/gpu" in each] == ["2"]
    assert "should have 2 accelerators (train.gpus)" in ui.text(f"{ROOT}/{run}/stages/train.json")


def test_a_form_that_is_refused_has_a_report_and_starts_nothing_else(ui: UI) -> None:
    run = ui.start("refused", preset="compct")
    assert ui.end(run) == "FAILED"
    states = ui.states(run)
    assert states["plan"] == "FAILED" and states["cost-report"] == "SUCCEEDED" and not states.get("simulate")
    (page,) = (key for key in ui.files(run) if key.endswith("/report"))
    assert "did you mean" in ui.text(page) and "This run failed" in ui.text(page)


def test_runs_of_a_schedule_have_folders_of_their_own(ui: UI) -> None:
    """The form makes one of every hour; the same by the API, more often, until it has started two runs."""
    ui.new_run()
    ui.click("document.querySelector('#recurringToggle input')")
    assert ui.submit("hourly", recurring=True)
    (job,) = ui.api("recurringruns")["recurringRuns"]
    assert job["status"] == "ENABLED" and "periodic_schedule" in job["trigger"]
    often = {name: job[name] for name in ("pipeline_version_reference", "runtime_config", "mode", "service_account")}
    often |= {"display_name": "often", "max_concurrency": "2"}
    often["trigger"] = {"periodic_schedule": {"interval_second": 20}}
    made = ui.api("recurringruns", often)["recurring_run_id"]
    try:
        while len(runs := [r["run_id"] for r in ui.api("runs")["runs"] if r.get("recurring_run_id") == made]) < 2:
            time.sleep(1)
    finally:
        ui.api(f"recurringruns/{made}:disable", {})
    for run in runs:
        while not any(key == f"{ROOT}/{run}/run.yaml" for key in ui.files(run)):
            assert ui.states(run).get("plan") != "FAILED"
            time.sleep(1)
        ui.api(f"runs/{run}:terminate", {})
