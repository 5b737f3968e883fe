"""A page of headless Chromium for the tests of what people see; programs without which tests are skipped."""

import json
import shutil
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.processes import running, wait_for
from tools.images import ImageError
from tools.images.buildah import program

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
SECONDS = 300.0


class Browser:
    """A page of Chromium, by the DevTools protocol."""

    def __init__(self, address: str) -> None:
        import websocket  # a dependency of kubernetes

        self.socket = websocket.create_connection(address, timeout=SECONDS)
        self.calls = 0

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.calls += 1
        self.socket.send(json.dumps({"id": self.calls, "method": method, "params": parameters}))
        while (answer := json.loads(self.socket.recv())).get("id") != self.calls:
            pass
        assert "error" not in answer, answer
        return answer["result"]

    def value(self, expression: str) -> Any:
        return self.call("Runtime.evaluate", expression=expression, returnByValue=True)["result"].get("value")

    def wait(self, expression: str) -> None:
        end = time.monotonic() + SECONDS
        while not self.value(f"!!({expression})"):
            assert time.monotonic() < end, expression
            time.sleep(0.05)

    def open(self, address: str, width: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.call("Page.navigate", url=address)
        self.wait(f"location.href == {json.dumps(address)} && document.readyState == 'complete'")


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A page that is not loaded yet."""
    if CHROMIUM is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    profile = tmp_path_factory.mktemp("profile")
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-proxy-server",
        "--disable-dev-shm-usage",
        "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={profile}", "about:blank",
    ]  # fmt: skip
    file = profile / "DevToolsActivePort"
    with (profile / "log").open("wb") as log, running(command, stdout=log, stderr=log) as process:
        wait_for(lambda: file.exists() and len(file.read_text().splitlines()) > 1, process)
        port = file.read_text().splitlines()[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json") as answer:
            page = next(one for one in json.load(answer) if one["type"] == "page")
        made = Browser(page["webSocketDebuggerUrl"])
        made.call("Page.enable")
        yield made
        made.socket.close()
        process.terminate()
        process.wait()


@pytest.fixture(scope="session")
def buildah() -> str:
    """Where it is."""
    try:
        return program()
    except ImageError as error:
        pytest.skip(str(error))
