"""The pipeline in the UI of Kubeflow Pipelines, in Chromium, on the server of `python -m tools.cluster kubeflow`."""

from __future__ import annotations

import json
import os
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tools.conftest import Browser
from tools.cluster.kubeflow import server, sources

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


def test_the_form_has_an_entry_for_each_parameter_with_its_default(ui: UI) -> None:
    ui.open("pipelines")
    ui.click("[...document.querySelectorAll('a')].find(a => a.innerText == 'calorimeter')")
    ui.browser.wait("document.body.innerText.includes('Report and bill')")
    ui.button("createNewRunBtn")
    parameters = next(yaml.safe_load_all(COMPILED.read_text()))["root"]["inputDefinitions"]["parameters"]
    for name, parameter in parameters.items():
        default = parameter["defaultValue"]
        shown = (
            default if isinstance(default, str) else json.dumps(int(default) if isinstance(default, float) else default)
        )
        assert ui.value(name) == shown
