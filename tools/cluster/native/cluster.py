"""A cluster of real nodes on one machine: started, used, disturbed, and ended without a trace."""

import datetime as dt
import json
import shutil
import socket
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from kubernetes import client
from kubernetes.client.exceptions import ApiException

from caloscale.ports import free_ports
from tools.cluster.certificates import CONTEXT, Authority, KeyPair, write_kubeconfig
from tools.cluster.daemons import answers
from tools.cluster.errors import ClusterError
from tools.cluster.native import requirements
from tools.cluster.native.cgroups import read_trees, remove_group
from tools.cluster.native.configuration import (
    DEFAULT_POOLS,
    DISK,
    PAUSE_IMAGE,
    Node,
    corefile,
    dns_objects,
    node_environment,
    node_files,
    planned_nodes,
)
from tools.cluster.native.machine import NodeProcess, quietly, run, run_all
from tools.cluster.native.network import Network, bridge_commands, free_networks
from tools.cluster.plane import ControlPlane
from tools.cluster.pools import Pool
from tools.cluster.programs import folder as programs_folder
from tools.cluster.programs import program
from tools.images.archives import names_in, write_archive
from tools.images.targets import qualified

# Nodes say every 3 s that they live; on a busy machine such words come late.
GRACE_SECONDS = 20
OPERATORS = ("training-operator", "jobset", "mpi-operator")
SECONDS_TO_READY = 120.0
CTR = ("ctr", "--namespace=k8s.io", "images")
# The processors are few, and unpacking keeps each busy.
IMPORTS = 2


class NativeCluster(ControlPlane):
    """A control plane and real nodes: containerd, kubelet and kube-proxy, each in namespaces of its own, on a bridge.

    ``with NativeCluster() as cluster`` starts it in a folder of the cache; on leaving nothing stays. What a killed
    program leaves (bridge, cgroups, folder) is removed by the next. Root only. Accelerators are advertised, there is
    nothing behind them.
    """

    context = CONTEXT

    def __init__(self, *, pools: Sequence[Pool] = DEFAULT_POOLS, operators: Sequence[str] = OPERATORS) -> None:
        super().__init__(operators=operators, grace_seconds=GRACE_SECONDS)
        self._pools = tuple(pools)
        self._machines: dict[str, NodeProcess] = {}

    def start(self) -> None:
        """Start everything and wait until it is ready; on failure nothing stays."""
        requirements.check()
        self.network = self._claim_network()
        self._folder = _folder(self.network)
        self._address = self.network.host_address
        _remove(self.network)
        with self.stopped_on_failure():
            run_all(bridge_commands(self.network))
            super().start()
            self.shared_folder.mkdir()
            self.shared_folder.chmod(0o777)
            self._start_dns()
            self._start_nodes()

    def stop(self) -> None:
        """End all of it and remove the folder: no process, mount, namespace, link, route, rule or cgroup stays."""
        with ThreadPoolExecutor(max(1, len(self._machines))) as threads:
            list(threads.map(NodeProcess.kill, self._machines.values()))
        super().stop()
        self._machines = {}
        _remove(self.network)
        self._claim.close()

    @property
    def nodes(self) -> list[str]:
        """Names of all nodes, also of those that are lost."""
        return list(self._machines)

    @property
    def shared_folder(self) -> Path:
        """A folder that every node sees as SHARED, as it would see a network disk."""
        return self.folder / "shared"

    def import_image(self, archive: Path, *, nodes: Iterable[str] | None = None) -> list[str]:
        """Put the images of an archive (OCI, docker) into nodes, all that run unless some are named; returns the names
        by which pods ask for them."""
        machines = [self._machine(name) for name in (self.running_nodes() if nodes is None else nodes)]
        names = names_in(archive)

        def put(machine: NodeProcess) -> None:
            # Read here: a node does not see all of this machine's folders.
            machine.inside([*CTR, "import", "-"], stdin=archive)
            for name in names:
                if qualified(name) != name:
                    machine.inside([*CTR, "tag", "--force", name, qualified(name)])

        with ThreadPoolExecutor(IMPORTS) as threads:
            list(threads.map(put, machines))
        return [qualified(name) for name in names]

    def running_nodes(self) -> list[str]:
        """Names of the nodes that are not lost."""
        return [name for name, machine in self._machines.items() if machine.first_process() is not None]

    def lose_node(self, name: str) -> None:
        """A node goes without notice: kubelet, containerd and containers are killed at once; its disk stays."""
        self._machine(name).kill()

    def return_node(self, name: str) -> None:
        """A lost node boots again, with its disk; returns when it is ready and offers its accelerators again."""
        since = dt.datetime.now(dt.UTC)
        self._machine(name).boot()
        self._wait_for_node(name, since)

    def inside(self, name: str, *command: str) -> str:
        """Run a command in a node, as its root; returns what it prints."""
        return self._machine(name).inside(command)

    def ended_programs(self) -> list[str]:
        """Programs of the control plane, and nodes, that should run and do not."""
        return [*super().ended_programs(), *(name for name in self.nodes if name not in self.running_nodes())]

    def _claim_network(self) -> Network:
        """The first network that no other program has: a claim is a socket's name, which ends with its program."""
        for network in free_networks(json.loads(run(["ip", "-json", "-4", "route"]))):
            self._claim = socket.socket(socket.AF_UNIX)
            try:
                self._claim.bind(f"\0{network.bridge}")
                return network
            except OSError:
                self._claim.close()
        raise ClusterError("no addresses are free for nodes and pods", remedy="ip route shows which are used")

    def _start_dns(self) -> None:
        """CoreDNS as a process of this machine behind the usual service."""
        address, (port, ready) = self.network.host_address, free_ports(2)
        path = self.folder / "Corefile"
        path.write_text(corefile(address, port, ready, self.kubeconfig), encoding="utf-8")
        answering = partial(answers, f"http://127.0.0.1:{ready}/ready")
        self.run(self.servers.daemon("coredns", ["-conf", str(path)], answering), wait=False)
        self.apply(dns_objects(address, port))

    def _start_nodes(self) -> None:
        """Boot all at once, and wait until they are ready."""
        nodes = planned_nodes(self._pools, self.network)
        since = dt.datetime.now(dt.UTC)
        proxy = self.servers.authority.issue("kube-proxy", "system:kube-proxy")
        for node in nodes:
            folder = self.folder / "nodes" / node.name
            _prepare(folder, node, self.servers.authority, self.servers.url, proxy)
            places = {"folder": folder, "programs": programs_folder() / "bin", "shared": self.shared_folder}
            self._machines[node.name] = NodeProcess(node, folder, node_environment(node, nodes, **places))
            self._machines[node.name].boot()
        for name in self._machines:
            self._wait_for_node(name, since)

    def _wait_for_node(self, name: str, since: dt.datetime) -> None:
        machine, api = self._machine(name), self.client()

        def ready() -> bool:
            machine.check()
            return is_ready(api, name, since)

        try:
            self.wait_until(ready, f"{name} is ready", SECONDS_TO_READY)
        except ClusterError as error:
            log = machine.folder / "log" / "kubelet.log"
            raise ClusterError(f"{name} is not ready", log=log, remedy="read the kubelet's words above") from error
        advertise(api, name, machine.node.pool)

    def _machine(self, name: str) -> NodeProcess:
        try:
            return self._machines[name]
        except KeyError:
            raise ClusterError(f"no node {name}", remedy=f"one of: {', '.join(self._machines)}") from None


def _folder(network: Network) -> Path:
    return programs_folder().parent / network.bridge


def _remove(network: Network) -> None:
    """Remove what is on this machine of a cluster whose programs have ended."""
    # With the bridge go the routes and the cables that are still in it.
    quietly(["ip", "link", "delete", network.bridge])
    remove_group(read_trees(), network.bridge)
    # What containers wrote may be without the owner's right to write.
    shutil.rmtree(_folder(network), ignore_errors=True)


def _prepare(folder: Path, node: Node, authority: Authority, url: str, proxy: KeyPair) -> None:
    """Write a node's folder: its configuration, its identity, and an empty disk."""
    for name in (*DISK, "log", "net.d"):
        (folder / name).mkdir(parents=True)
    cni = requirements.cni_folder()
    assert cni is not None
    for name, text in node_files(node, cni_folder=cni, snapshotter=requirements.snapshotter(folder)).items():
        (folder / name).write_text(text, encoding="utf-8")
    hosts = [node.name, node.address]
    kubelet = authority.issue(node.name, f"system:node:{node.name}", groups=["system:nodes"], hosts=hosts)
    shutil.copy(kubelet.certificate, folder / "node.crt")
    shutil.copy(kubelet.key, folder / "node.key")
    shutil.copy(authority.certificate, folder / "ca.crt")
    for pair, name in ((kubelet, "kubelet.kubeconfig"), (proxy, "kube-proxy.kubeconfig")):
        write_kubeconfig(folder / name, url, authority, pair)
    pause = {"/pause": program("pause")}
    write_archive(folder / "pause.tar", PAUSE_IMAGE, pause, entrypoint=["/pause"], user="65532")


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
