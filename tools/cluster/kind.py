"""A cluster of real nodes by kind, where Docker or Podman is at hand: the same pools, the same faults.

Not run where this was written: there was no engine. Its configuration is checked in tests.
"""

from __future__ import annotations

import datetime as dt
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from caloscale.progress import bar
from tools.cluster.errors import ClusterError
from tools.cluster.native.archives import full_name, names_in
from tools.cluster.native.operators import OPERATORS as KNOWN_OPERATORS
from tools.cluster.pools import Pool, labels_of, taints_of
from tools.cluster.programs import folder as programs_folder
from tools.cluster.real import DEFAULT_POOLS, OPERATORS, SHARED, RealCluster, advertise, is_ready

NAME = "caloscale"
VERSION = "v0.33.0"
"""The kind with which `NODE_IMAGE` goes together."""
# Of the minor release that tools/cluster/go.mod pins; the digest is that of kind's release notes.
NODE_IMAGE = "kindest/node:v1.34.11@sha256:44e222ee2132dab25ff87301682f89eb82c7880ea3a1bf543bfe9708fd08d67d"
ENGINES = ("docker", "podman")
NETWORK = "kind"
THIRD_PARTY = Path(__file__).resolve().parents[2] / "manifests" / "third-party"
GRACE_SECONDS, TOLERATION_SECONDS = 20, 3
SECONDS_TO_READY = 180.0
# What kind gives its nodes itself.
OWN_LABELS = ("kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch")


def engine() -> str | None:
    """Docker or Podman, whichever is installed."""
    return next((name for name in ENGINES if shutil.which(name)), None)


def kind_configuration(pools: Sequence[Pool], shared: Path) -> dict[str, Any]:
    """kind's configuration: a node for the control plane, and one for each node of the pools."""
    workers = [_worker(pool, name, shared) for pool in pools for name in pool.names()]
    # Unversioned patches: kind uses kubeadm's v1beta3 for this Kubernetes, with maps of arguments.
    tolerations = {
        f"default-{what}-toleration-seconds": str(TOLERATION_SECONDS) for what in ("not-ready", "unreachable")
    }
    patches = [
        {
            "kind": "ClusterConfiguration",
            "apiServer": {"extraArgs": tolerations},
            "controllerManager": {"extraArgs": {"node-monitor-grace-period": f"{GRACE_SECONDS}s"}},
        },
        {
            "kind": "KubeletConfiguration",
            "nodeLeaseDurationSeconds": 12,
            "nodeStatusUpdateFrequency": "2s",
            "nodeStatusReportFrequency": "1m",
        },
    ]
    return {
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "kind": "Cluster",
        "name": NAME,
        "kubeadmConfigPatches": [yaml.safe_dump(patch) for patch in patches],
        "nodes": [{"role": "control-plane", "image": NODE_IMAGE}, *workers],
    }


def _worker(pool: Pool, name: str, shared: Path) -> dict[str, Any]:
    labels = {key: value for key, value in labels_of(pool, name).items() if key not in OWN_LABELS}
    joining = {"kind": "JoinConfiguration", "nodeRegistration": {"taints": taints_of(pool)}}
    return {
        "role": "worker",
        "image": NODE_IMAGE,
        "labels": labels,
        "extraMounts": [{"hostPath": str(shared), "containerPath": SHARED}],
        "kubeadmConfigPatches": [yaml.safe_dump(joining)],
    }


class KindCluster(RealCluster):
    """A cluster in containers of Docker or Podman. It outlives us; `stop` deletes it."""

    def __init__(self, *, pools: Sequence[Pool] = DEFAULT_POOLS, operators: Sequence[str] = OPERATORS) -> None:
        self._pools, self._operators = tuple(pools), tuple(operators)
        self.folder = programs_folder().parent / "kind"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, with the context `kind-caloscale`."""
        return self.folder / "kubeconfig"

    @property
    def context(self) -> str:
        """Name of its context."""
        return f"kind-{NAME}"

    @property
    def nodes(self) -> list[str]:
        """Names that kind gives its workers, in the order of the pools."""
        count = sum(pool.count for pool in self._pools)
        return [f"{NAME}-worker{'' if number == 1 else number}" for number in range(1, count + 1)]

    def exists(self) -> bool:
        """Whether it is there."""
        return NAME in self._kind("get", "clusters").split()

    def start(self) -> None:
        """Make it, advertise accelerators and install the operators; on failure nothing stays."""
        self._check()
        if self.exists():
            raise ClusterError("a kind cluster runs already", remedy="make cluster-status, or make cluster-down")
        self.shared_folder.mkdir(parents=True, exist_ok=True)
        self.shared_folder.chmod(0o777)
        path = self.folder / "kind.yaml"
        path.write_text(yaml.safe_dump(kind_configuration(self._pools, self.shared_folder)), encoding="utf-8")
        try:
            with bar("cluster", 2 + len(self._operators), "steps") as shown:
                shown.set_postfix_str("kind create cluster")
                self._kind("create", "cluster", f"--config={path}", f"--kubeconfig={self.kubeconfig}", "--wait=3m")
                shown.update(1)
                for name in self.nodes:
                    self._wait_for(name, dt.datetime.fromtimestamp(0, dt.UTC))
                shown.update(1)
                for name in self._operators:
                    shown.set_postfix_str(name)
                    self._install(name)
                    shown.update(1)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Delete it."""
        self._kind("delete", "cluster", f"--name={NAME}", f"--kubeconfig={self.kubeconfig}")
        shutil.rmtree(self.folder, ignore_errors=True)

    def import_image(self, archive: Path, *, nodes: Iterable[str] | None = None) -> list[str]:
        """Put an archive's images into nodes, all unless some are named; the names by which pods ask for them."""
        names, targets = names_in(archive), list(self.nodes if nodes is None else nodes)
        self._kind("load", "image-archive", str(archive), f"--name={NAME}", f"--nodes={','.join(targets)}")
        for name in names:
            if full_name(name) != name:
                for node in targets:
                    tag = ("ctr", "--namespace=k8s.io", "images", "tag", "--force", name, full_name(name))
                    self._engine("exec", node, *tag)
        return [full_name(name) for name in names]

    def lose_node(self, name: str) -> None:
        """Its container is killed; what it wrote stays."""
        self._engine("kill", name)

    def return_node(self, name: str) -> None:
        """Its container starts again; returns when the node is ready."""
        since = dt.datetime.now(dt.UTC)
        self._engine("start", name)
        self._wait_for(name, since)

    def cut_off(self, name: str) -> None:
        """Its container is taken out of kind's network."""
        self._engine("network", "disconnect", NETWORK, name)

    def reconnect(self, name: str) -> None:
        """Its container is put back into kind's network; the engine may give it another address."""
        self._engine("network", "connect", NETWORK, name)

    def end_program(self, name: str, program: str) -> None:
        """Kill its kubelet or containerd; systemd starts it again."""
        self._engine("exec", name, "systemctl", "kill", "--signal=SIGKILL", program)

    def inside(self, name: str, *command: str) -> str:
        """Run a command in a node, as its root; returns what it prints."""
        return self._engine("exec", name, *command)

    def _pool_of(self, name: str) -> Pool:
        return [pool for pool in self._pools for _ in range(pool.count)][self.nodes.index(name)]

    def _wait_for(self, name: str, since: dt.datetime) -> None:
        api = self.client()
        self.wait_until(lambda: is_ready(api, name, since), f"{name} is ready", SECONDS_TO_READY)
        advertise(api, name, self._pool_of(name))

    def _install(self, name: str) -> None:
        operator = KNOWN_OPERATORS[name]
        self.kubectl("apply", "--server-side", "--force-conflicts", f"--kustomize={THIRD_PARTY / name}")
        where = ("-n", operator.namespace, "--timeout=300s")
        self.kubectl("rollout", "status", f"deployment/{operator.deployment}", *where)

    def _check(self) -> None:
        problems = []
        if engine() is None:
            problems.append("neither Docker nor Podman is installed")
        if shutil.which("kind") is None:
            problems.append(f"kind is missing: go install sigs.k8s.io/kind@{VERSION}")
        if problems:
            listed = "".join(f"\n  - {problem}" for problem in problems)
            raise ClusterError(
                f"no kind here:{listed}", remedy="install them, or make cluster-up CLUSTER=native (root)"
            )

    def _kind(self, *arguments: str) -> str:
        provider = {"KIND_EXPERIMENTAL_PROVIDER": "podman"} if engine() == "podman" else {}
        return _run("kind", *arguments, **provider)

    def _engine(self, *arguments: str) -> str:
        return _run(engine() or ENGINES[0], *arguments)


def _run(*command: str, **environment: str) -> str:
    try:
        done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ClusterError(f"{command[0]} is missing", remedy="make cluster-status says what to install") from error
    if done.returncode:
        raise ClusterError(f"{' '.join(command[:3])}: {done.stderr.strip()[-2000:]}", remedy="see the message")
    return done.stdout
