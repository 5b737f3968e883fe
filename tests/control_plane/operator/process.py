"""The operator as a process that a test starts, kills and starts again."""

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from caloscale.connection import Connection
from caloscale.ports import free_ports
from tools.cluster import ControlPlane

ROOT = Path(__file__).parents[3]
SYSTEM = "caloscale-system"
SECONDS_TO_START = 600.0
OF_PODS = ("ConfigMap", "Deployment", "NetworkPolicy", "Service")
"""Kinds of the bundle that an operator outside of a pod does not need."""


class OperatorProcess:
    """`python -m caloscale.operator` with the rights that the manifests give it."""

    def __init__(self, plane: ControlPlane, folder: Path, **environment: str) -> None:
        self.plane, self.folder = plane, folder
        self.log = folder / "operator.log"
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self.port, self.metrics_port = free_ports(2)

    def start(self, *, wait: bool = True, program: Sequence[str] = ("-m", "caloscale.operator")) -> None:
        """Start it, or what Python is to run instead, and wait until it knows the cluster."""
        environment = {
            **os.environ,
            "KUBECONFIG": str(self._kubeconfig()),
            "CALOSCALE_HEALTH_PORT": str(self.port),
            "CALOSCALE_METRICS_PORT": str(self.metrics_port),
            "CALOSCALE_IMAGE": "registry.example/caloscale/trainer:1.0.0",
            "POD_NAME": "operator-0",
            "POD_NAMESPACE": SYSTEM,
            **self._environment,
        }
        with self.log.open("ab") as log:
            command = [sys.executable, *program]
            # a session of its own has a share of the processors of its own, as a pod on its node
            self._process = subprocess.Popen(
                command, env=environment, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
            )
        end = time.monotonic() + SECONDS_TO_START
        while wait and not self.is_ready():
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise AssertionError(f"the operator does not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.1)

    def kill(self) -> None:
        """As a machine that fails."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def wait(self) -> int:
        """Wait until it ends; returns the exit code."""
        return self._process.wait()

    def stop(self) -> int:
        """As Kubernetes ends a pod; returns the exit code, 0 where none was started."""
        if self._process is None:
            return 0
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self._process.wait()

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    def is_ready(self) -> bool:
        """As its readiness probe sees it."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=1) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _kubeconfig(self) -> Path:
        """A kubeconfig with the token of the operator's service account."""
        path = self.folder / "kubeconfig"
        if not path.exists():
            path.write_bytes(self.plane.kubeconfig_of("caloscale-operator", SYSTEM).read_bytes())
        return path


def install_worker_account(server: Connection, namespace: str) -> None:
    """The workers' account with its rights, as manifests/run-namespace has it."""
    file = ROOT / "manifests" / "run-namespace" / "service-account.yaml"
    for each in yaml.safe_load_all(file.read_text(encoding="utf-8")):
        subjects = [{**subject, "namespace": namespace} for subject in each.get("subjects", ())]
        made = {**each, "metadata": {**each["metadata"], "namespace": namespace}}
        server.apply({**made, "subjects": subjects} if subjects else made, manager="test")


def install_rights(plane: ControlPlane) -> list[dict[str, Any]]:
    """The custom resources, account, rights in all namespaces and admission policy, without the deployment."""
    text = plane.kubectl("kustomize", str(ROOT / "manifests" / "overlays" / "all-namespaces"))
    objects = [each for each in yaml.safe_load_all(text) if each["kind"] not in OF_PODS]
    plane.apply(objects)
    plane.wait_for_kind(next(each for each in objects if each["kind"] == "CustomResourceDefinition"))
    return objects
