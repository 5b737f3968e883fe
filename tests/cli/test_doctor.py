"""caloscale doctor, and the first steps that `caloscale` alone prints."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from caloscale.cli import measure
from caloscale.installation import install_command
from tests.cli.test_main import COMMANDS
from tests.client.server import ApiServer, kubeconfig_of


@pytest.fixture(autouse=True)
def no_tensorflow(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The import takes seconds; and no cluster is at hand."""
    monkeypatch.setattr(measure, "_tensorflow", lambda: measure.Check("TensorFlow", "2.21.0, devices: 1 CPU"))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "absent"))


def test_the_machine_is_described(command: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "installed_version", lambda package: None if package == "calzone" else "1.0")
    done = command("doctor", "--json")
    assert done.code == 0, done.err
    found = {check["what"]: check for check in json.loads(done.out)}
    assert found["memory"]["found"] == f"{psutil.virtual_memory().total / 2**30:.0f} GiB"
    assert found["Geant4"] == {"what": "Geant4", "found": "", "remedy": install_command("simulate")}
    assert found["Kubeflow"]["found"] == "kfp 1.0" and not found["Kubeflow"]["remedy"]
    assert not found["cluster"]["found"] and "kubectl" in found["cluster"]["remedy"]
    shown = command("doctor").out
    assert re.search(r"Geant4 +missing\n +get it: .*pip install", shown)


def test_rights_on_a_cluster(command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It allows everything but deletions, and has no custom resource."""
    review = {"kind": "SelfSubjectAccessReview", "metadata": {}}
    reviews = [review | {"status": {"allowed": allowed}} for allowed in (True, True, False)]
    with ApiServer(*((201, review) for review in reviews), (404, {"kind": "Status", "code": 404})) as server:
        config = kubeconfig_of(server.address)
        config["contexts"][0]["context"]["namespace"] = "physics"
        (tmp_path / "config").write_text(json.dumps(config))
        monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "config"))
        done = command("doctor", "--json")
    verbs = [body["spec"]["resourceAttributes"]["verb"] for *_, body in server.asked if body]
    assert verbs == ["create", "get", "delete"]
    found = {check["what"]: check for check in json.loads(done.out)}
    assert found["cluster"]["found"] == server.address
    assert found["rights"]["found"] == "create, get trainingruns in physics"
    assert "--clusterrole=edit" in found["rights"]["remedy"] and "-n physics" in found["rights"]["remedy"]
    assert not found["operator"]["found"] and "make deploy" in found["operator"]["remedy"]


def test_alone_it_shows_five_things_to_begin_with(command: Callable) -> None:
    done = command()
    assert done.code == 0
    steps = re.findall(r"^  caloscale (\S+)", done.out, re.MULTILINE)
    assert len(steps) == 5 and set(steps) <= set(COMMANDS)
    assert max(map(len, done.out.splitlines())) <= 80
