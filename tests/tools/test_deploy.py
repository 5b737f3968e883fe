"""What `make deploy` and `make undeploy` say to the server; it is never asked."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from caloscale.errors import InputError
from tools import deploy
from tools.cluster.programs import folder

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("given", "dry"), [("", False), ("0", False), ("1", True)])
def test_only_a_value_other_than_zero_makes_a_trial(given: str, dry: bool) -> None:
    command = ["make", "--dry-run", "deploy", f"DRY_RUN={given}"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = [each for each in shown.splitlines() if "tools.deploy" in each]
    assert line.endswith("--dry-run") is dry


@pytest.fixture
def kubectl() -> None:
    if shutil.which("kubectl") is None and not (folder() / "bin" / "kubectl").is_file():
        pytest.skip("no kubectl")


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize(
    ("overlay", "runs"), [("kind", ["caloscale-runs"]), ("on-prem", ["caloscale-runs"]), ("all-namespaces", [])]
)
def test_an_operator_of_any_namespace_has_its_rights(overlay: str, runs: list[str]) -> None:
    bindings = [each for each in deploy.render(overlay, namespace="mine") if each["kind"].endswith("RoleBinding")]
    assert {subject["namespace"] for each in bindings for subject in each["subjects"]} == {"mine"}
    elsewhere = [each for each in bindings if each["metadata"].get("namespace", "mine") != "mine"]
    assert [each["metadata"]["namespace"] for each in elsewhere] == runs
    assert all(each["roleRef"] == {**each["roleRef"], "kind": "ClusterRole", "name": "caloscale-operator"}
               for each in elsewhere)  # fmt: skip


class Server:
    """Notes what it is given, and knows operators in some namespaces."""

    def __init__(self, *operators: str) -> None:
        self.operators = self.namespaces = operators
        self.given: list[tuple[str, ...]] = []
        self.documents: list[str] = []

    def __call__(self, context: str, *words: str, stdin: str = "", **_: Any) -> str:
        self.given.append(words)
        self.documents.append(stdin)
        items = [{"metadata": {"namespace": name}} for name in self.operators]
        if words[:2] == ("get", "deployments"):
            return json.dumps({"items": items})
        return f"namespace/{words[2]}" if words[:2] == ("get", "namespace") and words[2] in self.namespaces else ""

    @property
    def deletions(self) -> list[tuple[str, ...]]:
        return [words for words in self.given if words[0] == "delete"]


def connect(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(deploy, "kubectl", server)
    monkeypatch.setattr(deploy, "check_context", lambda _: None)
    monkeypatch.setattr(deploy, "render", lambda *_, **__: [{"kind": "Namespace", "metadata": {"name": "n"}}])
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


def test_rights_in_a_namespace_that_is_not_there_are_refused_before_anything_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = connect(Server("mine"), monkeypatch)
    binding = {"kind": "RoleBinding", "metadata": {"name": "b", "namespace": "runs"}}
    monkeypatch.setattr(deploy, "render", lambda *_, **__: [binding])
    with pytest.raises(InputError, match="belong into runs, which is not there") as caught:
        deploy.deploy(context="c", namespace="mine")
    assert "apply --server-side -k manifests/run-namespace" in caught.value.remedy
    assert caught.value.field == "NAMESPACE"
    assert all(words[0] == "get" for words in server.given)


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize("dry", [True, False])
def test_the_rights_of_the_overlay_before_are_deleted(dry: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = {name: deploy.render(name, namespace="here") for name in ("kind", "all-namespaces")}
    server = connect(Server("here"), monkeypatch)
    monkeypatch.setattr(deploy, "render", lambda overlay, **_: objects.get(overlay, objects["kind"]))
    monkeypatch.setattr(deploy, "_exists", lambda *_: True)
    deploy.deploy(context="c", namespace="here", dry_run=dry)
    (words,) = server.deletions
    assert ("--dry-run=server" in words) is dry and words is server.given[-1]
    (binding,) = yaml.safe_load_all(server.documents[-1])
    assert (binding["kind"], binding["metadata"]["name"]) == ("ClusterRoleBinding", "caloscale-operator")
    deploy.deploy(context="c", overlay="all-namespaces", namespace="here", dry_run=dry)
    (binding,) = yaml.safe_load_all(server.documents[-1])
    assert (binding["kind"], binding["metadata"]["namespace"]) == ("RoleBinding", "caloscale-runs")
