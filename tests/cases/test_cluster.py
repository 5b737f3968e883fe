"""Kubeconfigs and answers of servers from which nothing right can follow: refused with exit code 4."""

import json
import re
import socketserver
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.client.server import ApiServer
from tests.conftest import Command

INPUTS = Path(__file__).parent / "inputs"
LIST = {"kind": "TrainingRunList", "apiVersion": "caloscale.dev/v1alpha1", "items": []}
EMPTY = {**LIST, "metadata": {"resourceVersion": "7"}}


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[object], Path]:
    """Makes a file the kubeconfig; what is no text is written as YAML."""

    def use(content: object) -> Path:
        file = tmp_path / "config"
        file.write_bytes(content if isinstance(content, bytes) else yaml.safe_dump(content).encode())
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
        return file

    return use


def config(server: object = "https://127.0.0.1:1", user: object = None, **cluster: object) -> dict[str, Any]:
    return {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user or {"token": "abc"}}],
    }


def test_a_kubeconfig_that_is_none_is_named(command: Command, kubeconfig: Callable[[object], Path]) -> None:
    """Case kubeconfig-traceback."""
    here = config()
    broken: list[tuple[object, str]] = [
        *[(file.read_bytes(), "") for file in sorted((INPUTS / "kubeconfig-traceback").iterdir())],
        (config(user={"auth-provider": {"name": "gcp"}}), "auth-provider 'gcp'"),
        (config(user={"client-certificate-data": "!!!notb64"}), "client-certificate-data .* not base64"),
        (config(**{"certificate-authority-data": "YQ==YQ"}), "certificate-authority-data .* not base64"),
        ({**here, "users": []}, "object with name u in .*users"),
        ({**here, "contexts": "c"}, ""),
        ({**here, "clusters": [{"name": "k", "cluster": {}}]}, "server"),
        ({**here, "clusters": [{"name": "k", "cluster": None}]}, ""),
        ({**here, "current-context": "elsewhere"}, "elsewhere"),
        (config(server="127.0.0.1:1"), "no URL"),
        (config(server=7), "no URL"),
        (config(**{"proxy-url": "ftp://127.0.0.1:9"}), "proxy-url 'ftp"),
        ({}, "current-context"),
        (b"", "empty"),
    ]
    for content, problem in broken:
        file = kubeconfig(content)
        done = command("status")
        assert done.code == 4 and not done.out, content
        assert f"{file}: no cluster is configured" in done.err and "remedy" in done.err
        assert re.search(problem, done.err), done.err


PAGE = "does not answer as an API server"
ANSWERS: dict[str, tuple[int, object, str]] = {
    "a login page": (200, b"<html><body>Please log in</body></html>", PAGE),
    "cut off": (200, b'{"kind":"TrainingRunList","items":[{"metadata"', PAGE),
    "no version": (200, {**LIST, "metadata": {}}, PAGE),
    "items null": (200, {**EMPTY, "items": None}, PAGE),
    "items without names": (200, {**EMPTY, "items": [{"metadata": {}}]}, PAGE),
    "a Status": (200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}, PAGE),
    "a list": (200, [], PAGE),
    "not UTF-8": (200, b"\xff\xfe", PAGE),
    "items that are no list": (200, {**EMPTY, "items": {}}, PAGE),
    "a name that is no text": (200, {**EMPTY, "items": [{"metadata": {"name": 7, "namespace": "b"}}]}, PAGE),
    "nested without end": (200, b"[" * 100_000, PAGE),
    "a list for one": (200, EMPTY, ""),
    "too many requests": (429, {"kind": "Status", "message": "later"}, "later\n.*try again"),
    "an error of its own": (500, {"kind": "Status", "message": "etcdserver: leader changed"}, "leader.*\n.*try again"),
    "of another kind": (200, {**EMPTY, "kind": "PodList"}, PAGE),
    "a page that refuses": (403, b"<html>Blocked by policy</html>", "403 Forbidden, on a page"),
    "a page that is not found": (404, b"<html>Not found</html>", "404 Not Found, on a page"),
    "no TrainingRun": (404, b"404 page not found\n", "does not know TrainingRun"),
    "no rights": (403, {"kind": "Status", "message": "u cannot list trainingruns"}, "u cannot list.*\n.*auth can-i"),
    "no login": (401, {"kind": "Status", "message": "Unauthorized"}, "Unauthorized\n.*log in"),
    "a status of another version": (
        200,
        {**EMPTY, "items": [{"metadata": {"name": "a", "namespace": "b"}, "status": {"phase": "Dreaming"}}]},
        "status of run a cannot be read",
    ),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_what_is_no_answer_of_an_api_server_is_an_error(
    command: Command, kubeconfig: Callable[[object], Path], answer: str
) -> None:
    """Case cluster-html, for each command that asks a cluster: no traceback, no empty table with exit code 0."""
    code, body, problem = ANSWERS[answer]
    with ApiServer((code, body)) as server:
        kubeconfig(config(server.address))
        submit = ("submit", "--preset", "compact", "--set", "hardware={}", "--name", "a", "-y")
        found = [command("status")] if answer != "a list for one" else []
        if answer != "a status of another version":
            found += [command(*one) for one in (("status", "a"), ("logs", "a"), ("stop", "a"), ("fetch", "a"), submit)]
    for done in found:
        assert (done.code, done.out) == (4, ""), done
        assert "Traceback" not in done.err and "remedy" in done.err
    assert re.search(problem, found[0].err), found[0].err


class Socks(socketserver.StreamRequestHandler):
    """SOCKS5 that answers itself instead of the server; ``server.asked``: the names that were asked for."""

    def handle(self) -> None:
        self.rfile.read(self.rfile.read(2)[1])
        self.wfile.write(b"\x05\x00")
        *_, kind, length = self.rfile.read(5)
        assert kind == 3, "a name, not an address"
        self.server.asked.append(self.rfile.read(length).decode())  # type: ignore[attr-defined]
        self.rfile.read(2)
        self.wfile.write(b"\x05\x00\x00\x01" + bytes(6))
        while self.rfile.readline().strip():
            pass
        content = json.dumps(EMPTY).encode()
        self.wfile.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(content) + content)


def test_the_proxy_of_a_kubeconfig_is_used(
    command: Command, kubeconfig: Callable[[object], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case kubeconfig-proxy-url; as kubectl does, whatever NO_PROXY is, and names are resolved by the proxy."""
    monkeypatch.setenv("NO_PROXY", "*")
    with ApiServer((200, EMPTY)) as proxy:
        address = proxy.address.replace("http://", "http://me:p%40ss@")
        kubeconfig(config("http://api.invalid", **{"proxy-url": address}))
        assert command("status").code == 0
        ((verb, path, *_),) = proxy.asked
        assert verb == "GET" and path.startswith("http://api.invalid/apis/caloscale.dev/")
        assert proxy.headers[0]["Proxy-Authorization"] == "Basic bWU6cEBzcw=="
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Socks) as proxy:
        proxy.asked = []
        threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        kubeconfig(config("http://api.invalid", **{"proxy-url": f"socks5://127.0.0.1:{proxy.server_address[1]}"}))
        assert command("status").code == 0 and proxy.asked == ["api.invalid"]
        proxy.shutdown()
    kubeconfig((INPUTS / "kubeconfig-proxy-url/proxy").read_bytes())
    done = command("status")
    assert done.code == 4 and "SOCKS" in done.err
