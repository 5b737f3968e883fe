"""The chart on an API server: installed, upgraded and removed by helm, and what is left behind."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes import client

from tools import chart
from tools.cluster import ControlPlane, is_built

DEFINITIONS = {
    ("CustomResourceDefinition", "<none>", f"{plural}.caloscale.dev")
    for plural in ("trainingruns", "trainingprogresses")
}
KEPT = {*DEFINITIONS, ("APIService", "<none>", "v1alpha1.caloscale.dev")}
"""What helm does not remove: a removed definition would delete all runs. The server serves its API group."""


@pytest.fixture
def control_plane() -> Iterator[ControlPlane]:
    """A control plane of the test's own: helm refuses objects that it has not made, and other tests make the same."""
    if not is_built():
        pytest.skip("no control plane: `make control-plane-build` builds it once (up to half an hour)")
    with ControlPlane(operators=()) as plane:
        yield plane


def ours(plane: ControlPlane) -> set[tuple[str, ...]]:
    """Kind, namespace and name of all objects of the cluster whose name has our name in it."""
    kinds = plane.kubectl("api-resources", "--verbs=list", "--output=name").split()
    columns = "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name"
    shown = plane.kubectl("get", ",".join(sorted(kinds)), "--all-namespaces", "--no-headers", f"--output={columns}")
    found = {tuple(line.split()) for line in shown.splitlines()}
    return {each for each in found if "caloscale" in each[2] and each[0] != "Event"}


@pytest.mark.integration
def test_helm_installs_upgrades_and_leaves_nothing_but_the_definitions(
    control_plane: ControlPlane, tmp_path: Path
) -> None:
    if not chart.helm().is_file():
        pytest.skip("no helm: `python -m tools.chart build` builds it once (a few minutes)")
    packed = tmp_path / "chart"
    chart.write_chart("kind", packed)
    homes = {name: str(tmp_path / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
    environment = {**os.environ, **homes, "KUBECONFIG": str(control_plane.kubeconfig)}

    def helm(*arguments: str) -> str:
        command = [str(chart.helm()), *arguments, "--namespace", "default"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def image() -> str:
        apps = client.AppsV1Api(control_plane.client())
        deployment = apps.read_namespaced_deployment("caloscale-operator", "default")
        return str(deployment.spec.template.spec.containers[0].image)

    assert ours(control_plane) == set()
    values = ("caloscale", str(packed), "--set")
    helm("install", *values, "image=registry.example/operator:1")
    try:
        assert image() == "registry.example/operator:1"
        installed = list(yaml.safe_load_all(helm("get", "manifest", "caloscale")))
        made = {(each[0], each[2]) for each in ours(control_plane)}
        assert {(each["kind"], each["metadata"]["name"]) for each in installed if each} <= made
        helm("upgrade", *values, "image=registry.example/operator:2")
        assert image() == "registry.example/operator:2"
    finally:
        helm("uninstall", "caloscale")
    control_plane.wait_until(lambda: ours(control_plane) == KEPT, "only the definitions are left")
