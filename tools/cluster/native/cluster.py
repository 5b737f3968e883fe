"""A cluster of real nodes on one machine: started, used, disturbed, and ended without a trace."""

from __future__ import annotations

import datetime as dt
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from caloscale.progress import bar
from tools.cluster.certificates import Authority, KeyPair, embedded, write_kubeconfig
from tools.cluster.errors import ClusterError
from tools.cluster.native import requirements
from tools.cluster.native.configuration import CONTEXT, DISK, Node, machine_description, node_files
from tools.cluster.native.images import import_archive, put_pause
from tools.cluster.native.machine import DESCRIPTION, NodeProcess, run, run_all
from tools.cluster.native.names import start_dns
from tools.cluster.native.network import Network, bridge_commands, free_networks
from tools.cluster.native.operators import operator_archive, operator_objects
from tools.cluster.native.plan import ClusterPlan, programs_of, read_plan, remove_cluster
from tools.cluster.plane import ControlPlane
from tools.cluster.pools import Pool
from tools.cluster.programs import folder as programs_folder
from tools.cluster.real import DEFAULT_POOLS, RealCluster, advertise, is_ready
from tools.cluster.real import OPERATORS as DEFAULT_OPERATORS
from tools.cluster.servers import Settings
from tools.cluster.upstream import OPERATORS

T = TypeVar("T")
# Nodes say every 3 s that they live; on a busy machine such words come late.
GRACE_SECONDS = 20
SECONDS_TO_READY = 120.0


def running_folder() -> Path:
    """Where the cluster lives that `make cluster-up` starts: one for each user."""
    return programs_folder().parent / "native"


class NativeCluster(RealCluster):
    """A control plane and real nodes: containerd, kubelet and kube-proxy, each in namespaces of its own, on a bridge.

    ``with NativeCluster() as cluster`` starts it in a fresh folder of the cache; on leaving nothing stays. Root only.
    Accelerators are advertised, there is nothing behind them.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        pools: Sequence[Pool] = DEFAULT_POOLS,
        operators: Sequence[str] = DEFAULT_OPERATORS,
        outlives_us: bool = False,
    ) -> None:
        if unknown := set(operators) - set(OPERATORS):
            raise ClusterError(f"unknown operators {sorted(unknown)}", remedy=f"choose among {sorted(OPERATORS)}")
        if operators and all(pool.accelerator for pool in pools):
            raise ClusterError("no node for the operators", remedy="add a pool without accelerators")
        self._folder, self._pools, self._operators = folder, tuple(pools), tuple(operators)
        self._outlives_us = outlives_us
        self._plane: ControlPlane | None = None
        self._machines: dict[str, NodeProcess] = {}
        self._shown: Any = None
        self.seconds: dict[str, float] = {}
        """How long each part of the start took."""

    @classmethod
    def attach(cls, folder: Path | None = None) -> NativeCluster:
        """The cluster that runs in a folder (of `make cluster-up`); raises ClusterError when none does."""
        folder = folder or running_folder()
        plan = read_plan(folder)
        if plan is None or not programs_of(folder):
            raise ClusterError("no cluster of real nodes runs", remedy="make cluster-up")
        cluster = cls(folder, pools=plan.pools, operators=(), outlives_us=True)
        cluster.folder, cluster._machines = folder, plan.machines(folder, outlive_us=True)
        return cluster

    def start(self) -> None:
        """Start everything and wait until it is ready; on failure nothing stays."""
        requirements.check()
        self.folder = self._folder or Path(tempfile.mkdtemp(prefix="native-", dir=programs_folder().parent))
        if programs_of(self.folder):
            raise ClusterError("a cluster runs there already", remedy="make cluster-status, or make cluster-down")
        if self.folder.is_dir() and any(self.folder.iterdir()) and read_plan(self.folder) is None:
            raise ClusterError(f"{self.folder} holds other things", remedy="name an empty folder")
        remove_cluster(self.folder)  # what a cluster left that was killed
        self.folder.mkdir(parents=True)
        self.shared_folder.mkdir(mode=0o777)
        self.shared_folder.chmod(0o777)
        steps = 2 + sum(pool.count for pool in self._pools) + bool(self._operators)
        with self.stopped_on_failure(), bar("cluster", steps, "steps") as shown:
            self._shown = shown
            plan = self._timed("network", self._claim_network)
            self._timed("control plane", partial(self._start_plane, plan.network))
            self._start_nodes(plan)
            if self._operators:
                self._timed("operators", self._install_operators)

    def stop(self) -> None:
        """End all of it and remove the folder: no process, mount, namespace, link, route, rule or cgroup stays."""
        if not hasattr(self, "folder"):
            return
        with ThreadPoolExecutor(max(1, len(self._machines))) as threads:
            list(threads.map(NodeProcess.kill, self._machines.values()))
        if self._plane is not None:
            self._plane.stop()
        remove_cluster(self.folder)
        self._machines = {}

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, with the context `caloscale-native`."""
        return self.folder / "control-plane" / "kubeconfig"

    @property
    def context(self) -> str:
        """Name of its context."""
        return CONTEXT

    @property
    def nodes(self) -> list[str]:
        """Names of all nodes, also of those that are lost."""
        return list(self._machines)

    @property
    def shared_folder(self) -> Path:
        """A folder that every node sees as SHARED, as it would see a network disk."""
        return self.folder / "shared"

    @property
    def log_folder(self) -> Path:
        """Logs of the control plane."""
        return self.folder / "control-plane" / "logs"

    def node_logs(self, name: str) -> Path:
        """Logs of a node: its kubelet, containerd, kube-proxy, first process, and below pods/ those of its pods."""
        return self._machine(name).folder / "log"

    def import_image(self, archive: Path, *, nodes: Iterable[str] | None = None) -> list[str]:
        """Put the images of an archive (OCI, docker) into nodes, all that run unless some are named; their names."""
        machines = [self._machine(name) for name in (self.running_nodes() if nodes is None else nodes)]
        return import_archive(machines, archive)

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
        self._wait_for(name, since)

    def cut_off(self, name: str) -> None:
        """A node's cable is pulled: its containers run on, but nobody hears them."""
        self._machine(name).unplug()

    def reconnect(self, name: str) -> None:
        """A node's cable is put back."""
        self._machine(name).plug_in()

    def end_program(self, name: str, program: str) -> None:
        """Kill a node's kubelet, containerd or kube-proxy; the node starts it again after a second."""
        self._machine(name).end_program(program)

    def inside(self, name: str, *command: str) -> str:
        """Run a command in a node, as its root; returns what it prints."""
        return self._machine(name).inside(command)

    def ended_programs(self) -> list[str]:
        """Programs of the control plane, and nodes, that should run and do not."""
        plane = self._plane.ended_programs() if self._plane else []
        return [*plane, *(name for name in self.nodes if name not in self.running_nodes())]

    def _timed(self, what: str, do: Callable[[], T]) -> T:
        self._shown.set_postfix_str(what)
        started = time.monotonic()
        done = do()
        self.seconds[what] = time.monotonic() - started
        self._shown.update(1)
        return done

    def _claim_network(self) -> ClusterPlan:
        """Make a bridge that nobody else has; the plan is noted first, so that whoever ends us finds it."""
        links, routes = (json.loads(run(["ip", "-json", *what])) for what in (["link"], ["-4", "route"]))
        for network in free_networks(links, routes):
            plan = ClusterPlan(network, self._pools)
            plan.write(self.folder)
            first, *others = bridge_commands(network)
            try:
                run(first)
            except ClusterError:
                (self.folder / "cluster.json").unlink()
                continue
            run_all(others)
            return plan
        raise ClusterError("no addresses are free for nodes and pods", remedy="ip route; make cluster-down")

    def _start_plane(self, network: Network) -> None:
        settings = Settings(
            outlives_us=self._outlives_us,
            grace_seconds=GRACE_SECONDS,
            address=network.host_address,
            has_fake_nodes=False,
            context=CONTEXT,
        )
        self._plane = ControlPlane(self.folder / "control-plane", operators=(), settings=settings)
        self._plane.start()
        daemon, objects = start_dns(self._plane.servers, network.host_address)
        self._plane.run(daemon, wait=False)
        self.apply(objects)

    def _start_nodes(self, plan: ClusterPlan) -> None:
        """Boot all at once; the time of each is that until it was ready."""
        assert self._plane is not None
        machines = plan.machines(self.folder, outlive_us=self._outlives_us)
        servers, since = self._plane.servers, dt.datetime.now(dt.UTC)
        proxy = servers.authority.issue("kube-proxy", "system:kube-proxy")
        for name, machine in machines.items():
            _prepare(machine, plan.nodes, servers.authority, servers.url, proxy, self.shared_folder)
            self._machines[name] = machine
            machine.boot()
        for name in machines:
            self._timed(name, partial(self._wait_for, name, since))

    def _wait_for(self, name: str, since: dt.datetime) -> None:
        machine, api = self._machine(name), self.client()

        def ready() -> bool:
            machine.check()
            return is_ready(api, name, since)

        try:
            self.wait_until(ready, f"{name} is ready", SECONDS_TO_READY)
        except ClusterError as error:
            log = self.node_logs(name) / "kubelet.log"
            raise ClusterError(f"{name} is not ready", log=log, remedy="read the kubelet's words above") from error
        advertise(api, name, machine.node.pool)

    def _install_operators(self) -> None:
        """All at once: most of the time each waits for something else."""
        with ThreadPoolExecutor(len(self._operators)) as threads:
            list(threads.map(self._install, self._operators))

    def _install(self, name: str) -> None:
        operator = OPERATORS[name]
        untainted = [each for each, machine in self._machines.items() if not machine.node.pool.accelerator]
        self.import_image(operator_archive(operator), nodes=untainted)
        self.apply_with_kinds(operator_objects(operator, self.folder / "operators" / name))
        where = ("-n", operator.namespace, "--timeout=120s")
        self.kubectl("rollout", "status", f"deployment/{operator.deployment}", *where)

    def _machine(self, name: str) -> NodeProcess:
        try:
            return self._machines[name]
        except KeyError:
            raise ClusterError(f"no node {name}", remedy=f"one of: {', '.join(self._machines)}") from None


def _prepare(
    machine: NodeProcess, nodes: Sequence[Node], authority: Authority, url: str, proxy: KeyPair, shared: Path
) -> None:
    """Write a node's folder: its configuration, its identity, and an empty disk."""
    node, folder = machine.node, machine.folder
    for name in (*DISK, "log", "net.d"):
        (folder / name).mkdir(parents=True)
    cni = requirements.cni_folder()
    assert cni is not None
    for name, text in node_files(node, cni_folder=cni, snapshotter=requirements.snapshotter(folder)).items():
        (folder / name).write_text(text, encoding="utf-8")
    hosts = [node.name, node.address]
    kubelet = authority.issue(node.name, f"system:node:{node.name}", groups=["system:nodes"], hosts=hosts)
    for source, name in (
        (kubelet.certificate, "node.crt"),
        (kubelet.key, "node.key"),
        (authority.certificate, "ca.crt"),
    ):
        shutil.copy(source, folder / name)
    for pair, name in ((kubelet, "kubelet.kubeconfig"), (proxy, "kube-proxy.kubeconfig")):
        write_kubeconfig(folder / name, url, authority, embedded(pair), context=CONTEXT)
    put_pause(folder)
    description = machine_description(node, nodes, folder=folder, programs=programs_folder() / "bin", shared=shared)
    (folder / DESCRIPTION).write_text(json.dumps(description, indent=2), encoding="utf-8")
