"""What `make deploy` and `make undeploy` say to the server; it is never asked."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from caloscale.errors import InputError
from caloscale.operator.settings import settings_of
from tools import deploy

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("given", "is_on"), [("", False), ("0", False), ("1", True)])
@pytest.mark.parametrize(
    ("target", "variable", "option"), [("deploy", "DRY_RUN", "--dry-run"), ("images", "PUSH", "--push")]
)
def test_a_variable_of_make_is_off_with_zero(target: str, variable: str, option: str, given: str, is_on: bool) -> None:
    command = ["make", "--dry-run", target, f"{variable}={given}"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (_, _, arguments) = shown.partition(f"-m tools.{target}")
    assert (option in arguments.split()) is is_on and arguments


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


@pytest.mark.usefixtures("kubectl")
def test_two_deployments_from_a_clone_do_not_meet() -> None:
    with ThreadPoolExecutor(4) as threads:
        first, other, *again = threads.map(lambda name: deploy.render(name, namespace="x"), ["kind", "on-prem"] * 3)
    assert again == [first, other] * 2 and first != other


class Server:
    """Notes what it is given, and knows operators in some namespaces, which deploy made."""

    def __init__(self, *operators: str) -> None:
        self.operators = operators
        self.namespaces = dict.fromkeys(operators, deploy.MADE)
        self.pods: list[dict[str, Any]] | None = None
        """Those of a rollout that takes too long."""
        self.given: list[tuple[str, ...]] = []
        self.documents: list[str] = []

    def __call__(self, context: str, *words: str, stdin: str = "", **_: Any) -> str:
        self.given.append(words)
        self.documents.append(stdin)
        items = [{"metadata": {"namespace": name}} for name in self.operators]
        if words[:2] == ("get", "deployments"):
            return json.dumps({"items": items})
        if words[:2] == ("get", "namespace") and words[2] in self.namespaces:
            return json.dumps({"metadata": {"labels": self.namespaces[words[2]]}})
        if words[0] == "rollout" and self.pods is not None:
            raise InputError("kubectl rollout: timed out waiting for the condition")
        return json.dumps({"items": self.pods}) if words[:2] == ("get", "pods") else ""

    @property
    def deletions(self) -> list[tuple[str, ...]]:
        return [words for words in self.given if words[0] == "delete"]


def connect(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setattr(deploy, "kubectl", server)
    monkeypatch.setattr(deploy, "check_context", lambda _: None)
    objects = [{"kind": "Namespace", "metadata": {"name": "here"}}, {"kind": "Service", "metadata": {"name": "s"}}]
    monkeypatch.setattr(deploy, "render", lambda *_, **__: objects)
    return server


@pytest.mark.parametrize(
    ("operators", "said", "remedy"),
    [
        (["other"], "the operator is in other", "NAMESPACE=other"),
        (["here", "other"], "left without their custom resource, in other", "-n other delete deployment"),
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


OTHERS = {"team": "physics", "app.kubernetes.io/part-of": "caloscale"}


@pytest.mark.parametrize("operators", [["here"], []])
@pytest.mark.parametrize("labels", [{}, OTHERS, deploy.MADE, None])
def test_the_only_operator_is_removed_and_a_namespace_that_deploy_did_not_make_stays(
    labels: dict[str, str] | None,
    operators: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """So is what is left of an operator, as of a deployment that failed."""
    server = connect(Server(*operators), monkeypatch)
    server.namespaces = {} if labels is None else {"here": labels}
    deploy.undeploy(context="c", namespace="here")
    made = labels in (deploy.MADE, None)
    assert len(server.deletions) == 1
    kinds = [each["kind"] for each in yaml.safe_load_all(server.documents[-1])]
    assert kinds == (["Namespace", "Service"] if made else ["Service"])
    assert ("kubectl --context=c delete namespace here" in capsys.readouterr().out) is not made


def test_rights_of_another_overlay_than_the_one_that_is_named_are_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    server = connect(Server("here"), monkeypatch)
    binding = {"kind": "ClusterRoleBinding", "metadata": {"name": "everywhere"}}
    monkeypatch.setattr(deploy, "render", lambda overlay, **_: [binding] if overlay == "all-namespaces" else [])
    deploy.undeploy(context="c", namespace="here")
    assert list(yaml.safe_load_all(server.documents[-1])) == [binding]


@pytest.mark.parametrize("labels", [None, deploy.MADE, OTHERS])
def test_only_a_namespace_of_deploy_is_changed(labels: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    server = connect(Server(), monkeypatch)
    if labels is not None:
        server.namespaces["here"] = labels
    deploy.deploy(context="c", namespace="here")
    applied = [text for words, text in zip(server.given, server.documents, strict=True) if words[0] == "apply"]
    assert ("kind: Namespace" in applied[0]) is (labels != OTHERS)
    assert "kind: Namespace" not in applied[1] and "kind: Service" in applied[1]
    assert not server.deletions


def test_an_operator_beside_another_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    server = connect(Server("other"), monkeypatch)
    with pytest.raises(InputError, match="other has an operator") as caught:
        deploy.deploy(context="c", namespace="here")
    assert caught.value.remedy.startswith("NAMESPACE=other") and "-n other delete deployment" in caught.value.remedy
    assert all(words[0] == "get" for words in server.given)


@pytest.mark.usefixtures("kubectl")
def test_objects_of_an_own_overlay_are_not_deleted_by_the_deploy_of_another(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is not even rendered."""
    own = tmp_path / "manifests" / "overlays" / "own"
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    own.mkdir()
    (own / "kustomization.yaml").write_text("resources: [missing.yaml]\n")
    monkeypatch.setattr(deploy, "ROOT", tmp_path)
    monkeypatch.setattr(deploy, "OVERLAYS", own.parent)
    assert deploy._of_other_overlays("gke-tpu", [], "here")


def test_overlays_of_the_repository_are_known_as_such() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "manifests/overlays"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert {Path(line).parent.name for line in listed.stdout.split()} == set(deploy.SHIPPED)


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize("namespace", ["caloscale-system", "mine"])
def test_a_namespace_of_runs_that_is_not_there_is_refused_before_anything_changes(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The operator could not list its runs, and would never be ready."""
    objects = deploy.render("kind", namespace=namespace)
    server = connect(Server(namespace), monkeypatch)
    monkeypatch.setattr(deploy, "render", lambda *_, **__: objects)
    with pytest.raises(InputError, match="names a namespace that is not there") as caught:
        deploy.deploy(context="c", namespace=namespace)
    assert "apply --server-side -k manifests/run-namespace" in caught.value.remedy
    assert (caught.value.field, caught.value.value) == ("CALOSCALE_NAMESPACES", "caloscale-runs")
    assert all(words[0] == "get" for words in server.given)


@pytest.mark.parametrize("text", ["physics,muons", "physics, muons", " physics muons,"])
def test_namespaces_are_read_as_the_operator_reads_them(text: str) -> None:
    container = {"env": [{"name": "CALOSCALE_NAMESPACES", "value": text}]}
    deployment = {"kind": "Deployment", "spec": {"template": {"spec": {"containers": [container]}}}}
    known = settings_of({"CALOSCALE_NAMESPACES": text}).namespaces
    assert tuple(deploy._namespaces_of_runs([deployment])) == known == ("physics", "muons")


@pytest.mark.usefixtures("kubectl")
@pytest.mark.parametrize("dry", [True, False])
def test_the_rights_of_the_overlay_before_are_deleted(dry: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    objects = {name: deploy.render(name, namespace="here") for name in ("kind", "all-namespaces")}
    server = connect(Server("here"), monkeypatch)
    monkeypatch.setattr(deploy, "render", lambda overlay, **_: objects.get(overlay, objects["kind"]))
    server.namespaces["caloscale-runs"] = {}
    deploy.deploy(context="c", namespace="here", dry_run=dry)
    (words,) = server.deletions
    assert ("--dry-run=server" in words) is dry and words is server.given[-1]
    (binding,) = yaml.safe_load_all(server.documents[-1])
    assert (binding["kind"], binding["metadata"]["name"]) == ("ClusterRoleBinding", "caloscale-operator")
    deploy.deploy(context="c", overlay="all-namespaces", namespace="here", dry_run=dry)
    (binding,) = yaml.safe_load_all(server.documents[-1])
    assert (binding["kind"], binding["metadata"]["namespace"]) == ("RoleBinding", "caloscale-runs")


def pod_with(**status: Any) -> dict[str, Any]:
    return {"metadata": {"name": "operator-1"}, "status": status}


WAITING = {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}


@pytest.mark.parametrize(
    ("pods", "said"),
    [
        ([], "it has no pod"),
        ([pod_with(containerStatuses=[{"state": WAITING, "restartCount": 0}])], "ImagePullBackOff, no such image"),
        (
            [pod_with(conditions=[{"type": "PodScheduled", "status": "False", "message": "0/3 nodes have memory"}])],
            "operator-1: 0/3 nodes",
        ),
        # it cannot reach the API server, or read a namespace of runs
        (
            [pod_with(containerStatuses=[{"state": {"running": {}}, "ready": False}])],
            "operator-1 runs and is not ready",
        ),
    ],
)
def test_a_rollout_that_takes_too_long_names_the_pods_and_the_next_command(
    pods: list[dict[str, Any]], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = connect(Server(), monkeypatch)
    server.pods = pods
    with pytest.raises(InputError, match=said) as caught:
        deploy.deploy(context="c")
    for command in ("describe", "logs"):
        assert f"kubectl --context=c -n caloscale-system {command}" in caught.value.remedy


def test_a_trial_asks_the_server_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    server = connect(Server(), monkeypatch)
    deploy.deploy(context="c", namespace="here", dry_run=True)
    changing = [words for words in server.given if words[0] != "get"]
    assert len(changing) == 2 and all(any(word.startswith("--dry-run=") for word in words) for words in changing)


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("caloscale/operator:0.1.0", {"newName": "caloscale/operator", "newTag": "0.1.0"}),
        ("host:5000/operator:a-b", {"newName": "host:5000/operator", "newTag": "a-b"}),
        (f"host/operator@sha256:{'a' * 64}", {"newName": "host/operator", "digest": f"sha256:{'a' * 64}"}),
    ],
)
def test_images_are_taken_apart(image: str, parts: dict[str, str]) -> None:
    assert deploy.split_image(image) == parts


@pytest.mark.parametrize("image", ["operator", "host:5000/operator", "operator@sha256:abc", "a b:1"])
def test_images_without_a_version_are_refused(image: str) -> None:
    with pytest.raises(InputError, match="tag or a digest"):
        deploy.split_image(image)


@pytest.mark.usefixtures("kubectl")
def test_make_deploy_refuses_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr(sys, "argv", ["deploy", "deploy", "--context", ""])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(deploy.__file__, run_name="__main__")
    written = capsys.readouterr().err
    assert ended.value.code == 2 and "CONTEXT: no context was named" in written and "Traceback" not in written


def test_a_server_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "kubectl"
    program.write_text("#!/bin/sh\necho 'The connection to the server was refused' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(InputError, match="refused") as caught:
        deploy.kubectl("here", "get", "pods")
    assert "kubectl --context=here cluster-info" in caught.value.remedy
