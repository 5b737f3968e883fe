"""A cluster of real nodes by kind, where Docker or Podman is at hand; its machines are left alone.

Not run where this was written: there was no engine. Its configuration is checked in tests.
"""

import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from tools.cluster.errors import ClusterError
from tools.cluster.native.archives import full_name, names_in
from tools.cluster.pools import Pool, labels_of, taints_of
from tools.cluster.programs import folder
from tools.cluster.real import DEFAULT_POOLS, OPERATORS, SHARED, NamedCluster, advertise
from tools.cluster.upstream import OPERATORS as KNOWN_OPERATORS

NAME, VERSION = "caloscale", "v0.33.0"
# Of that kind, and of the minor release that tools/cluster/go.mod pins; the digest is that of kind's release notes.
NODE_IMAGE = "kindest/node:v1.34.11@sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d"
THIRD_PARTY = Path(__file__).resolve().parents[2] / "manifests" / "third-party"
# What kind gives its nodes itself.
OWN_LABELS = ("kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch")
POOL_OF_WORKER = [pool for pool in DEFAULT_POOLS for _ in range(pool.count)]


def engine() -> str | None:
    """Docker or Podman, whichever is installed."""
    return next((name for name in ("docker", "podman") if shutil.which(name)), None)


def kind_configuration(shared: Path) -> dict[str, Any]:
    """kind's configuration: a node for the control plane, and one for each node of the pools."""
    workers = [_worker(pool, name, shared) for pool in DEFAULT_POOLS for name in pool.names()]
    nodes = [{"role": "control-plane", "image": NODE_IMAGE}, *workers]
    return {"apiVersion": "kind.x-k8s.io/v1alpha4", "kind": "Cluster", "name": NAME, "nodes": nodes}


def _worker(pool: Pool, name: str, shared: Path) -> dict[str, Any]:
    joining = {"kind": "JoinConfiguration", "nodeRegistration": {"taints": taints_of(pool)}}
    return {
        "role": "worker",
        "image": NODE_IMAGE,
        "labels": {key: value for key, value in labels_of(pool, name).items() if key not in OWN_LABELS},
        "extraMounts": [{"hostPath": str(shared), "containerPath": SHARED}],
        "kubeadmConfigPatches": [yaml.safe_dump(joining)],
    }


class KindCluster(NamedCluster):
    """A cluster in containers of Docker or Podman. It outlives us; `stop` deletes it."""

    def __init__(self) -> None:
        super().__init__(f"kind-{NAME}")
        self.folder = folder().parent / "kind"

    @property
    def nodes(self) -> list[str]:
        """Names that kind gives its workers, in the order of the pools."""
        return [f"{NAME}-worker{number or ''}" for number in (0, *range(2, len(POOL_OF_WORKER) + 1))]

    def exists(self) -> bool:
        """Whether it is there."""
        return NAME in _kind("get", "clusters").split()

    def start(self) -> None:
        """Make it, advertise accelerators and install the operators; on failure nothing stays."""
        if engine() is None:
            raise ClusterError("neither Docker nor Podman is installed", remedy="install one, or CLUSTER=native (root)")
        if self.exists():
            raise ClusterError("a kind cluster runs already", remedy="make cluster-status")
        self.shared_folder.mkdir(parents=True, exist_ok=True)
        self.shared_folder.chmod(0o777)
        path = self.folder / "kind.yaml"
        path.write_text(yaml.safe_dump(kind_configuration(self.shared_folder)), encoding="utf-8")
        with self.stopped_on_failure():
            _kind("create", "cluster", f"--config={path}", f"--kubeconfig={self.kubeconfig}", "--wait=3m")
            for name, pool in zip(self.nodes, POOL_OF_WORKER, strict=True):
                self.kubectl("wait", "--for=condition=Ready", f"node/{name}", "--timeout=180s")
                advertise(self.client(), name, pool)
            for operator in OPERATORS:
                self.kubectl("apply", "--server-side", "--force-conflicts", f"--kustomize={THIRD_PARTY / operator}")
                known = KNOWN_OPERATORS[operator]
                where = ("-n", known.namespace, "--timeout=300s")
                self.kubectl("rollout", "status", f"deployment/{known.deployment}", *where)

    def stop(self) -> None:
        """Delete it."""
        _kind("delete", "cluster", f"--name={NAME}", f"--kubeconfig={self.kubeconfig}")
        super().stop()

    def import_image(self, archive: Path, *, nodes: Iterable[str] | None = None) -> list[str]:
        """Put an archive's images into nodes, all unless some are named."""
        targets = ",".join(self.nodes if nodes is None else nodes)
        _kind("load", "image-archive", str(archive), f"--name={NAME}", f"--nodes={targets}")
        return [full_name(name) for name in names_in(archive)]


def _kind(*arguments: str) -> str:
    provider = {"KIND_EXPERIMENTAL_PROVIDER": "podman"} if engine() == "podman" else {}
    command = ["kind", *arguments]
    try:
        done = subprocess.run(command, env={**os.environ, **provider}, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError("kind is missing", remedy=f"go install sigs.k8s.io/kind@{VERSION}") from error
    if done.returncode:
        raise ClusterError(f"{' '.join(command[:3])}: {done.stderr.strip()[-2000:]}", remedy="see the message")
    return done.stdout
