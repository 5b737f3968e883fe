"""What a cluster of real nodes consists of, noted in its folder, so that whoever comes later can use it or end it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from caloscale.storage.atomic import write_text
from tools.cluster.daemons import end_process
from tools.cluster.native.cgroups import read_trees, remove_group
from tools.cluster.native.configuration import Node, planned_nodes
from tools.cluster.native.machine import NodeProcess, erase, quietly, run
from tools.cluster.native.network import MOST_NETWORKS, Network
from tools.cluster.native.requirements import UNSHARE
from tools.cluster.pools import Pool
from tools.cluster.programs import CONTROL_PLANE, NODE

FILE = "cluster.json"


@dataclass(frozen=True)
class ClusterPlan:
    """A cluster's network and pools."""

    network: Network
    pools: tuple[Pool, ...]

    @property
    def nodes(self) -> list[Node]:
        """All nodes."""
        return planned_nodes(self.pools, self.network)

    def machines(self, folder: Path, *, outlive_us: bool = False) -> dict[str, NodeProcess]:
        """The nodes as machines, by name, whether they run or not."""
        return {
            node.name: NodeProcess(node, folder / "nodes" / node.name, outlives_us=outlive_us) for node in self.nodes
        }

    def write(self, folder: Path) -> None:
        """Note it in the cluster's folder."""
        document = {"network": self.network.index, "pools": [asdict(pool) for pool in self.pools]}
        write_text(folder / FILE, json.dumps(document, indent=2))


def read_plan(folder: Path) -> ClusterPlan | None:
    """The plan of the cluster in a folder; None when there is none."""
    try:
        noted = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return ClusterPlan(Network(noted["network"]), tuple(Pool(**pool) for pool in noted["pools"]))


def programs_of(folder: Path) -> dict[int, str]:
    """Programs of the cluster in a folder that run: process id and name; a node counts as its outermost process.

    An operator without a file among its options has its folder for temporary files there.
    """
    ours, below = {*CONTROL_PLANE, *NODE, UNSHARE[0]}, f"{folder}/"
    found = {}
    for process in psutil.process_iter(["cmdline", "environ"]):
        command: Sequence[str] = process.info["cmdline"] or ()
        words = (*command[1:], (process.info["environ"] or {}).get("TMPDIR", ""))
        if command and Path(command[0]).name in ours and any(below in word for word in words):
            found[process.pid] = Path(command[0]).name
    return found


def abandoned(around: Path) -> list[Path]:
    """Folders of clusters in `around` of which nothing runs: whoever started them was killed."""
    folders = [path.parent for path in around.glob(f"*/{FILE}")]
    return [folder for folder in folders if not programs_of(folder)]


def remove_orphans() -> list[str]:
    """Remove bridges and cgroups whose clusters' folders are gone, too; returns their names."""
    links = {link["ifname"] for link in json.loads(run(["ip", "-json", "link"]))}
    words = {word for process in psutil.process_iter(["cmdline"]) for word in process.info["cmdline"] or ()}
    removed = []
    for network in (Network(index) for index in range(MOST_NETWORKS)):
        # The API server of a cluster that runs has the address among its options.
        if network.bridge in links and not any(network.host_address in word for word in words):
            _remove_network(network)
            removed.append(network.bridge)
    return removed


def _remove_network(network: Network) -> None:
    # With the bridge go the routes and the cables that are still in it.
    quietly(["ip", "link", "delete", network.bridge])
    remove_group(read_trees(), network.bridge)


def remove_cluster(folder: Path) -> list[str]:
    """End all that belongs to the cluster in a folder, however it was left, and the folder; returns what it ended."""
    plan, ended = read_plan(folder), []
    if plan is not None:
        for name, machine in plan.machines(folder).items():
            if machine.first_process() is not None:
                ended.append(name)
            machine.kill()
    for pid, name in programs_of(folder).items():
        end_process(pid, kill=True)
        ended.append(name)
    if plan is not None:
        _remove_network(plan.network)
    erase(folder)
    return ended
