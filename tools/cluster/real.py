"""What clusters of real nodes have in common, faults that can be injected; and a cluster of somebody's, as it is."""

import datetime as dt
import shutil
import subprocess
import tempfile
from abc import abstractmethod
from collections.abc import Iterable
from pathlib import Path
from typing import Never

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tools.cluster.access import Access, kubectl_program
from tools.cluster.errors import ClusterError
from tools.cluster.pools import Pool

# As caloscale node-pools names them: a machine for operators, and spot machines with one V100 each.
DEFAULT_POOLS = (
    Pool("system", 1, accelerator="", machine_type="e2-standard-4"),
    Pool("v100-1-spot", 2, per_node=1, spot=True, machine_type="n1-standard-8"),
)
# Where pods find the folder that all nodes share.
SHARED = "/run/shared"
OPERATORS = ("training-operator", "jobset", "mpi-operator")


class NotOursError(ClusterError):
    """Machines of a cluster that is not ours are not disturbed."""


class RealCluster(Access):
    """A cluster whose nodes run containers. Accelerators are advertised, there is nothing behind them.

    What disturbs a node is refused where the machines are not ours.
    """

    @property
    @abstractmethod
    def context(self) -> str:
        """Name of the kubeconfig's context."""

    @property
    @abstractmethod
    def nodes(self) -> list[str]:
        """Names of all nodes for pods, in the order of the pools, also of those that are lost."""

    @abstractmethod
    def import_image(self, archive: Path, *, nodes: Iterable[str] | None = None) -> list[str]:
        """Put the images of an archive (OCI, docker) into nodes, all that run unless some are named; their names."""

    def lose_node(self, name: str) -> None:
        """A node goes without notice: kubelet, containerd and containers are killed at once; its disk stays."""
        self._refuse(name)

    def return_node(self, name: str) -> None:
        """A lost node boots again, with its disk; returns when it is ready and offers its accelerators again."""
        self._refuse(name)

    def cut_off(self, name: str) -> None:
        """A node's cable is pulled: its containers run on, but nobody hears them."""
        self._refuse(name)

    def reconnect(self, name: str) -> None:
        """A node's cable is put back."""
        self._refuse(name)

    def end_program(self, name: str, program: str) -> None:
        """Kill a node's kubelet or containerd, which the node starts again."""
        self._refuse(name)

    def inside(self, name: str, *command: str) -> str:
        """Run a command in a node, as its root; returns what it prints."""
        self._refuse(name)

    def _refuse(self, name: str) -> Never:
        raise NotOursError(f"node {name} of {self.context} is not ours", remedy="make smoke without CONTEXT")

    def drain(self, name: str, *, seconds: int = 120) -> None:
        """Evict a node's pods with notice and let no new ones come; raises ClusterError when they do not go."""
        options = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={seconds}s")
        self.kubectl("drain", name, *options)

    def uncordon(self, name: str) -> None:
        """Let pods come to a drained node again."""
        self.kubectl("uncordon", name)


def is_ready(api: client.ApiClient, name: str, since: dt.datetime) -> bool:
    """Whether the node says so itself, at `since` or later: what it said before it was lost does not count."""
    try:
        node = client.CoreV1Api(api).read_node(name)
    except ApiException as error:
        if error.status == 404:
            return False
        raise
    said = [each for each in node.status.conditions or [] if each.type == "Ready" and each.status == "True"]
    return any(each.last_heartbeat_time >= since.replace(microsecond=0) for each in said)


def advertise(api: client.ApiClient, name: str, pool: Pool) -> None:
    """Let a node offer its pool's accelerators. Kubelets leave alone what no device plugin reports."""
    if pool.accelerator:
        resources = {pool.resource: str(pool.per_node)}
        change = {"status": {"capacity": resources, "allocatable": resources}}
        client.CoreV1Api(api).patch_node_status(name, change)


def offered(api: client.ApiClient, name: str, pool: Pool) -> int:
    """How many of its pool's accelerators a node offers now."""
    status = client.CoreV1Api(api).read_node(name).status
    return int((status.allocatable or {}).get(pool.resource, 0))


NEEDED = {"tfjobs.kubeflow.org": "training-operator", "jobsets.jobset.x-k8s.io": "jobset"}
"""Kinds that must be known, and the folder of manifests/third-party that brings them."""


class NamedCluster(RealCluster):
    """``with NamedCluster("my-context") as cluster`` takes the context of the user's kubeconfig; nothing is started."""

    def __init__(self, context: str) -> None:
        self._context = context

    def start(self) -> None:
        """Look whether it answers and knows what is needed; raises ClusterError with what is missing."""
        self.folder = Path(tempfile.mkdtemp(prefix="caloscale-named-"))
        with self.stopped_on_failure():
            self._note_context()
            kinds = self.kubectl("get", "customresourcedefinitions", "--output=name")
            missing = [folder for kind, folder in NEEDED.items() if f"/{kind}" not in kinds]
            if missing:
                commands = " && ".join(
                    f"kubectl apply --context {self._context} --server-side -k manifests/third-party/{folder}"
                    for folder in missing
                )
                raise ClusterError(f"{self._context} does not have {', '.join(missing)}", remedy=commands)

    def stop(self) -> None:
        """Forget it; what runs there runs on."""
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def kubeconfig(self) -> Path:
        """A copy of the user's kubeconfig with this context alone."""
        return self.folder / "kubeconfig"

    @property
    def context(self) -> str:
        """Name of its context."""
        return self._context

    @property
    def nodes(self) -> list[str]:
        """Names of its nodes."""
        return [str(node["metadata"]["name"]) for node in self.get("nodes")["items"]]

    def import_image(self, archive: Path, *, nodes: Iterable[str] | None = None) -> list[str]:
        """Nothing: its nodes pull images, or have them."""
        del archive, nodes
        return []

    def _note_context(self) -> None:
        command = [kubectl_program(), "config", "view", "--minify", "--flatten", "--raw", f"--context={self._context}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"context {self._context}: {done.stderr.strip()}", remedy="kubectl config get-contexts")
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(done.stdout, encoding="utf-8")
