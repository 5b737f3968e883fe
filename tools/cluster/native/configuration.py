"""Configuration of a real node's programs and of its first process. Pure: values in, text out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from tools.cluster.native.network import PORT_IN_NODE, Network, node_commands
from tools.cluster.pools import Pool, labels_of, taints_of
from tools.cluster.real import SHARED

TEMPLATES = Path(__file__).with_name("node")
FILES = ("containerd.toml", "net.d/10-pods.conflist", "kubelet.yaml", "kube-proxy.yaml")
CONTEXT = "caloscale-native"
CLUSTER_DNS = "10.96.0.10"
CLUSTER_DOMAIN = "cluster.local"
PAUSE_IMAGE = "docker.io/caloscale/pause:1"
# What a node sees of its own folder on this machine, and of the built programs.
OWN, PROGRAMS = "/run/node", "/run/programs"
# Folders that survive when a node is lost and comes back: its disk.
DISK = ("kubelet", "containerd", "cni")
SEARCH_PATH = f"{PROGRAMS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Node:
    """A real node as it is planned."""

    name: str
    number: int
    """From 1; addresses follow from it."""
    pool: Pool
    network: Network

    @property
    def address(self) -> str:
        """Where its kubelet listens."""
        return self.network.node_address(self.number)

    @property
    def group(self) -> str:
        """Its group of cgroups, below the cluster's."""
        return f"{self.network.bridge}/{self.name}"


def planned_nodes(pools: Sequence[Pool], network: Network) -> list[Node]:
    """The nodes of all pools, numbered."""
    named = [(name, pool) for pool in pools for name in pool.names()]
    return [Node(name, number, pool, network) for number, (name, pool) in enumerate(named, start=1)]


def node_files(node: Node, *, cni_folder: Path, snapshotter: str) -> dict[str, str]:
    """Configuration files of a node, by name in its folder: the templates beside this file with its values."""
    values = {
        "name": node.name,
        "address": node.address,
        "group": node.group,
        "taints": json.dumps(taints_of(node.pool)),
        "pod_range": node.network.pod_range(node.number),
        "all_pods": node.network.all_pods,
        "own": OWN,
        "cluster_domain": CLUSTER_DOMAIN,
        "cluster_dns": CLUSTER_DNS,
        "pause_image": PAUSE_IMAGE,
        "cni_folder": str(cni_folder),
        "snapshotter": snapshotter,
    }
    return {name: Template((TEMPLATES / name).read_text(encoding="utf-8")).substitute(values) for name in FILES}


def machine_description(
    node: Node, others: Sequence[Node], *, folder: Path, programs: Path, shared: Path
) -> dict[str, Any]:
    """What init.py does as the first process of the node."""
    return {
        "hostname": node.name,
        "environment": {"PATH": SEARCH_PATH},
        "mounts": _mounts(folder, programs, shared),
        "port": PORT_IN_NODE,
        "network": node_commands(node.network, node.number, [other.number for other in others]),
        "values": {
            "/proc/sys/net/ipv4/ip_forward": "1",
            # Else a pod that calls a service of its own node gets the answer from an address that it never called.
            "/proc/sys/net/bridge/bridge-nf-call-iptables": "1",
        },
        "programs": [
            _program(
                "containerd",
                [f"--config={OWN}/containerd.toml"],
                ready=["ctr", "version"],
                after=[["ctr", "--namespace=k8s.io", "images", "import", f"{OWN}/pause.tar"]],
            ),
            _program("kubelet", _kubelet_options(node)),
            _program("kube-proxy", [f"--config={OWN}/kube-proxy.yaml"]),
        ],
    }


def _kubelet_options(node: Node) -> list[str]:
    labels = ",".join(f"{name}={value}" for name, value in labels_of(node.pool, node.name).items())
    options = [f"--config={OWN}/kubelet.yaml", f"--kubeconfig={OWN}/kubelet.kubeconfig"]
    options += [f"--hostname-override={node.name}", f"--node-ip={node.address}", f"--node-labels={labels}"]
    return [*options, "--root-dir=/var/lib/kubelet", "--v=1"]


def _mounts(folder: Path, programs: Path, shared: Path) -> list[list[str]]:
    """A /run and a /var/lib of the node's own, so that nothing of it lies outside its folder."""
    empty = ["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs"]
    seen = {OWN: folder, PROGRAMS: programs, SHARED: shared}
    kept = [f"/var/lib/{name}" for name in DISK]
    return [
        # Kubelets want mounts in here to be seen by containers; unshare cut the ties to the machine before.
        ["mount", "--make-rshared", "/"],
        [*empty, "/run"],
        ["mkdir", "-p", *seen, "/run/lock", "/run/netns"],
        *(["mount", "--bind", str(source), target] for target, source in seen.items()),
        [*empty, "/var/lib"],
        ["mkdir", "-p", *kept],
        *(["mount", "--bind", f"{OWN}/{name}", target] for name, target in zip(DISK, kept, strict=True)),
        ["mount", "--bind", f"{OWN}/log", "/var/log"],
    ]


def _program(name: str, options: list[str], **more: object) -> dict[str, Any]:
    return {"name": name, "command": [name, *options], "log": f"/var/log/{name}.log", **more}
