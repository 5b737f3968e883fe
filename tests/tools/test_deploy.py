"""What `make deploy` and `make undeploy` say to the server; it is never asked."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from caloscale.errors import InputError
from tools import deploy

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("given", "dry"), [("", False), ("0", False), ("1", True)])
def test_only_a_value_other_than_zero_makes_a_trial(given: str, dry: bool) -> None:
    command = ["make", "--dry-run", "deploy", f"DRY_RUN={given}"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = [each for each in shown.splitlines() if "tools.deploy" in each]
    assert line.endswith("--dry-run") is dry


class Server:
    """Notes what it is told, and knows operators in some namespaces."""

    def __init__(self, *operators: str) -> None:
        self.operators = operators
        self.told: list[tuple[str, ...]] = []

    def __call__(self, context: str, *words: str, **_: Any) -> str:
        self.told.append(words)
        items = [{"metadata": {"namespace": name}} for name in self.operators]
        return json.dumps({"items": items}) if words[:2] == ("get", "deployments") else ""

    @property
    def deletions(self) -> list[tuple[str, ...]]:
        return [words for words in self.told if words[0] == "delete"]


def connect(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(deploy, "kubectl", server)
    monkeypatch.setattr(deploy, "check_context", lambda _: None)
    monkeypatch.setattr(deploy, "render", lambda *_, **__: [{"kind": "Namespace"}])
    return server


@pytest.mark.parametrize(
    ("operators", "said", "remedy"),
    [
        (["other"], "the operator is in other", "NAMESPACE=other"),
        (["here", "other"], "left without their custom resource, in other", "-n other delete deployment"),
        ([], "no namespace has the operator", "delete -k manifests/overlays"),
    ],
)
def test_an_operator_of_another_namespace_keeps_its_custom_resource(
    operators: list[str], said: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = connect(Server(*operators), monkeypatch)
    with pytest.raises(InputError, match=said) as caught:
        deploy.undeploy(context="c", namespace="here", force=True)
    assert remedy in caught.value.remedy and "NAMESPACE" in str(caught.value)
    assert not server.deletions


def test_the_only_operator_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = connect(Server("here"), monkeypatch)
    deploy.undeploy(context="c", namespace="here")
    assert len(server.deletions) == 1
