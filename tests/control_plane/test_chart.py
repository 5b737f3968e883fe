"""The chart on an API server: installed, upgraded and removed by helm, and what is left behind."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from kubernetes import client

from tools import chart
from tools.cluster import ControlPlane

CHART = Path(__file__).parents[2] / "manifests" / "chart"
DEFINITION = ("CustomResourceDefinition", "<none>", "trainingruns.caloscale.dev")
KEPT = {DEFINITION, ("APIService", "<none>", "v1alpha1.caloscale.dev")}
"""What helm does not remove: a removed definition would delete all runs. The server serves its API group."""
UNRELATED = {"events", "events.events.k8s.io", "leases.coordination.k8s.io"}
"""Kinds that the control plane itself writes all the time."""


def objects(plane: ControlPlane) -> set[tuple[str, ...]]:
    """Kind, namespace and name of all objects of the cluster that a client can list."""
    kinds = set(plane.kubectl("api-resources", "--verbs=list", "--output=name").split()) - UNRELATED
    columns = "custom-columns=KIND:.kind,NAMESPACE:.metadata.namespace,NAME:.metadata.name"
    shown = plane.kubectl("get", ",".join(sorted(kinds)), "--all-namespaces", "--no-headers", f"--output={columns}")
    found = {tuple(line.split()) for line in shown.splitlines()}
    return {each for each in found if each[2] != "kube-root-ca.crt"}  # made for every namespace, some time later


def test_helm_installs_upgrades_and_leaves_nothing_but_the_definition(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    if not chart.helm().is_file():
        pytest.skip("no helm: `python -m tools.chart build` builds it once (a few minutes)")
    homes = {name: str(tmp_path / name) for name in ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME")}
    environment = {**os.environ, **homes, "KUBECONFIG": str(control_plane.kubeconfig)}

    def helm(*arguments: str) -> None:
        command = [str(chart.helm()), *arguments, "--namespace", namespace]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def image() -> str:
        deployment = client.AppsV1Api(control_plane.client()).read_namespaced_deployment(
            "caloscale-operator", namespace
        )
        return str(deployment.spec.template.spec.containers[0].image)

    before = objects(control_plane)
    values = ("caloscale", str(CHART), "--values", str(CHART / "values-kind.yaml"), "--set")
    helm("install", *values, "image=registry.example/operator:1")
    try:
        assert image() == "registry.example/operator:1"
        made = objects(control_plane) - before
        assert {"Deployment", "ClusterRole", "ValidatingAdmissionPolicy", "Secret"} <= {kind for kind, *_ in made}
        helm("upgrade", *values, "image=registry.example/operator:2")
        assert image() == "registry.example/operator:2"
    finally:
        helm("uninstall", "caloscale")
    control_plane.wait_until(lambda: objects(control_plane) - KEPT <= before, "only the definition is left")
    assert DEFINITION in objects(control_plane)
    if DEFINITION not in before:
        control_plane.kubectl("delete", "crd", DEFINITION[2])
