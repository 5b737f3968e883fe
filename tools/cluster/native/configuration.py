"""Configuration of a real node's programs and of its first process, and of DNS. Pure: values in, text out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from tools.cluster.native.network import PORT_IN_NODE, Network
from tools.cluster.pools import Pool, labels_of, taints_of

# As caloscale node-pools names them: a machine for operators, and spot machines with one V100 each.
DEFAULT_POOLS = (
    Pool("system", 1, accelerator="", machine_type="e2-standard-4"),
    Pool("v100-1-spot", 2, per_node=1, spot=True, machine_type="n1-standard-8"),
)
# Where pods find the folder that all nodes share.
SHARED = "/run/shared"
TEMPLATES = Path(__file__).with_name("node")
FILES = ("containerd.toml", "net.d/10-pods.conflist", "kubelet.yaml", "kube-proxy.yaml")
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


def node_environment(
    node: Node, others: Sequence[Node], *, folder: Path, programs: Path, shared: Path
) -> dict[str, str]:
    """Values of init.sh, the first process of the node."""
    network, labels = node.network, labels_of(node.pool, node.name)
    ways = ((network.pod_range(other.number), other.address) for other in others if other != node)
    return {
        "PATH": SEARCH_PATH,
        "NAME": node.name,
        "FOLDER": str(folder),
        "PROGRAMS_FOLDER": str(programs),
        "SHARED_FOLDER": str(shared),
        "OWN": OWN,
        "PROGRAMS": PROGRAMS,
        "SHARED": SHARED,
        "DISK": " ".join(DISK),
        "PORT": PORT_IN_NODE,
        "ADDRESS": node.address,
        "HOST": network.host_address,
        "ROUTES": " ".join(f"{pods}={via}" for pods, via in ways),
        "LABELS": ",".join(f"{name}={value}" for name, value in labels.items()),
    }


def corefile(address: str, port: int, ready: int, kubeconfig: Path) -> str:
    """Configuration of CoreDNS. It knows the cluster's names only: pods reach nothing outside this machine."""
    return f""".:{port} {{
  bind {address}
  errors
  ready 127.0.0.1:{ready}
  kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 5
  }}
}}
"""


def dns_objects(address: str, port: int) -> list[dict[str, Any]]:
    """The service by which pods find it."""
    ports = {"dns": ("UDP", 53, port), "dns-tcp": ("TCP", 53, port)}
    return host_service("kube-dns", "kube-system", address, ports, clusterIP=CLUSTER_DNS)


def host_service(
    name: str, namespace: str, address: str, ports: Mapping[str, tuple[str, int, int]], **spec: Any
) -> list[dict[str, Any]]:
    """A service whose only endpoint is a process of this machine; ports by name: protocol, own, that of the process."""
    metadata = {"name": name, "namespace": namespace}
    own = [{"name": each, "protocol": kind, "port": at, "targetPort": to} for each, (kind, at, to) in ports.items()]
    return [
        {"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": own, **spec}},
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {**metadata, "labels": {"kubernetes.io/service-name": name}},
            "addressType": "IPv4",
            "ports": [{"name": each, "protocol": kind, "port": to} for each, (kind, _, to) in ports.items()],
            "endpoints": [{"addresses": [address], "conditions": {"ready": True}}],
        },
    ]
