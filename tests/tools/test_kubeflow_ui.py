"""The pipeline in the UI of Kubeflow Pipelines, in Chromium, on the server of `python -m tools.cluster kubeflow`."""

from __future__ import annotations

import json
import os
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from tests.pipelines.conftest import TINY
from tests.tools.conftest import Browser
from tools.cluster.kubeflow import server, sources

TINY_RUN = yaml.safe_load(TINY)
ROOT = "v2/artifacts/train-calorimeter-gan"
COMPILED = Path(__file__).resolve().parents[2] / "pipelines" / "compiled" / "train_calorimeter_gan.yaml"
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(7200),
    pytest.mark.skipif(not sources.is_built(), reason="no Kubeflow: `python -m tools.cluster kubeflow` builds it once"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the steps run in namespaces"),
]


class UI:
    """The UI in a browser, and the API beside it to see what it did."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser, self.address = browser, address

    def open(self, page: str) -> None:
        self.browser.open("about:blank", 1300)
        self.browser.open(f"{self.address}/#/{page}", 1300)

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
        self.browser.call("Input.insertText" if text else "Input.dispatchKeyEvent", **_typed(text))

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

    def open_run(self, run: str) -> None:
        self.open(f"runs/details/{run}")
        self.sees("Report and bill")

    def sees(self, text: str) -> None:
        self.browser.wait(f"document.body.innerText.includes({json.dumps(text)})")

    def api(self, path: str, **query: str) -> Any:
        url = f"{self.address}/apis/v2beta1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url) as answer:
            return json.load(answer)


def _typed(text: str) -> dict[str, Any]:
    return {"text": text} if text else {"type": "keyDown", "key": "Backspace", "windowsVirtualKeyCode": 8}


@pytest.fixture(scope="module")
def ui(browser: Browser) -> Iterator[UI]:
    with server.kubeflow() as address:
        made = UI(browser, address)
        made.upload("calorimeter", COMPILED)
        yield made


@pytest.fixture(scope="module")
def first(ui: UI) -> str:
    """Id of a run that was started by the form and has succeeded."""
    run = ui.start("first", preset="", run=json.dumps(TINY_RUN))
    assert ui.end(run) == "SUCCEEDED"
    return run


def files(run: str) -> dict[str, str]:
    """Digests of all objects of a run: its folder and its artifacts."""
    page = _store().get_paginator("list_objects_v2").paginate(Bucket=server.BUCKET, Prefix=f"{ROOT}/{run}/")
    return {each["Key"]: each["ETag"] for part in page for each in part.get("Contents", [])}


def _store() -> Any:
    key = {"aws_access_key_id": server.KEY, "aws_secret_access_key": server.SECRET, "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=f"http://{server.ADDRESS}:{server.PORTS['store']}", **key)


def test_the_form_has_an_entry_for_each_parameter_with_its_default(ui: UI) -> None:
    ui.new_run()
    parameters = next(yaml.safe_load_all(COMPILED.read_text()))["root"]["inputDefinitions"]["parameters"]
    for name, parameter in parameters.items():
        default = parameter["defaultValue"]
        number = int(default) if isinstance(default, float) else default
        assert ui.value(name) == (default if isinstance(default, str) else json.dumps(number))


def test_a_run_shows_its_graph_its_verdict_and_its_report(ui: UI, first: str) -> None:
    ui.open_run(first)
    ui.click("document.querySelector('[data-testid=expand-button]')")
    for step in ("Plan machines", "Simulate showers", "Prepare showers", "Train", "Validate against Monte Carlo"):
        ui.sees(step)
    ui.sees("Verdict")
    ui.browser.wait("document.querySelectorAll('.react-flow__node').length > 10")
    ui.click("document.querySelector('[data-testid=expand-button]')")
    ui.sees("Undecided")
    ui.open_run(first)
    ui.browser.wait("document.querySelector('[data-testid=execution-icon-active]')")  # before, a panel stays empty
    ui.click("document.getElementById('artifact.cost-report.report')")
    ui.sees("system.HTML")
    ui.click("[...document.querySelectorAll('button')].find(b => b.innerText == 'Visualization')")
    ui.browser.wait(f"document.querySelector('iframe')?.srcdoc.includes({json.dumps(first)})")


def test_a_clone_with_another_seed_leaves_the_first_run_as_it_was(ui: UI, first: str) -> None:
    before = files(first)
    assert f"{ROOT}/{first}/summary.json" in before
    ui.open_run(first)
    ui.button("cloneBtn")
    assert json.loads(ui.value("run")) == TINY_RUN and ui.value("preset") == ""
    second = ui.submit("second", seed="7")
    assert second != first and ui.end(second) == "SUCCEEDED"
    assert files(first) == before
    assert f"{ROOT}/{second}/summary.json" in files(second)
    ui.open(f"compare?runlist={first},{second}")
    for each in ("first", "second", "seed"):
        ui.sees(each)


def test_a_run_that_is_not_accepted_is_seen_in_the_run_list(ui: UI, first: str) -> None:
    """Networks of two epochs, and the gates of the preset; simulation and preparation come from the cache."""
    validation = {name: value for name, value in TINY_RUN["validation"].items() if name != "gates"}
    judged = json.dumps({**TINY_RUN, "validation": validation})
    run = ui.start("judged", preset="", run=judged, fail_unless_accepted="true")
    assert ui.end(run) == "FAILED"
    states = {task.get("display_name"): task["state"] for task in ui.api(f"runs/{run}")["run_details"]["task_details"]}
    assert states["validate"] == states["cost-report"] == "SUCCEEDED"
    ui.open("runs")
    ui.sees("judged")
    row = "[...document.querySelectorAll('[data-testid=table-row]')].find(r => r.innerText.startsWith('judged'))"
    ui.browser.wait(f"{row}.querySelector('[data-testid=node-status-sign]').style.color == 'rgb(213, 0, 0)'")


def test_a_run_that_is_terminated_ends(ui: UI) -> None:
    run = ui.start("terminated", preset="", run=json.dumps(TINY_RUN), seed="11")
    ui.open_run(run)
    ui.button("terminateRunBtn")
    ui.click("[...document.querySelectorAll('[role=dialog] button')].find(b => b.innerText == 'Terminate')")
    assert ui.end(run) in ("CANCELED", "FAILED")


def test_the_form_makes_a_recurring_run(ui: UI) -> None:
    ui.new_run()
    ui.click("document.querySelector('#recurringToggle input')")
    assert ui.submit("weekly", recurring=True)
    (job,) = ui.api("recurringruns")["recurringRuns"]
    assert job["status"] == "ENABLED" and "periodic_schedule" in job["trigger"]
