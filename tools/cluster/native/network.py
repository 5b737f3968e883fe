"""The wires of real nodes: one bridge on this machine, a cable from it into each node, routes to each node's pods.

Pure: functions return the commands of ``ip``; machine.py runs them.
"""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Command = list[str]
# Several clusters may live side by side.
MOST_NETWORKS = 8
MOST_NODES = 64
MARK = "caloscale"
PORT_IN_NODE = "eth0"


@dataclass(frozen=True)
class Network:
    """Addresses and names of one cluster; `index` distinguishes it from others on this machine."""

    index: int

    @property
    def bridge(self) -> str:
        """Name of the bridge, and of the cluster's group of cgroups."""
        return f"{MARK}{self.index}"

    @property
    def host_address(self) -> str:
        """Address of this machine (API server, DNS) as the nodes see it."""
        return str(self._nodes[1])

    @property
    def ranges(self) -> list[ipaddress.IPv4Network]:
        """Addresses that this machine must not use otherwise: of nodes and of pods."""
        return [self._nodes, ipaddress.IPv4Network(f"10.{200 + self.index}.0.0/16")]

    def node_address(self, number: int) -> str:
        """Address of the node with a number (from 1)."""
        if not 1 <= number <= MOST_NODES:
            raise ValueError(f"nodes have the numbers 1 to {MOST_NODES}, not {number}")
        return str(self._nodes[10 + number])

    def pod_range(self, number: int) -> str:
        """Addresses of the pods on the node with a number."""
        return f"10.{200 + self.index}.{number}.0/24"

    @property
    def all_pods(self) -> str:
        """Addresses of all pods."""
        return str(self.ranges[1])

    def cable(self, number: int) -> str:
        """Name of this machine's end of a node's cable."""
        return f"{self.bridge}-{number}"

    @property
    def _nodes(self) -> ipaddress.IPv4Network:
        return ipaddress.IPv4Network(f"172.30.{100 + self.index}.0/24")


def bridge_commands(network: Network) -> list[Command]:
    """Make the bridge; the first fails when there is one of this name."""
    return [
        ["ip", "link", "add", network.bridge, "type", "bridge"],
        ["ip", "address", "add", f"{network.host_address}/24", "dev", network.bridge],
        ["ip", "link", "set", network.bridge, "up"],
    ]


def cable_commands(network: Network, number: int, pid: int) -> list[Command]:
    """Plug a node, whose first process is `pid`, into the bridge, and let this machine reach its pods."""
    cable, via = network.cable(number), network.node_address(number)
    peer = ["peer", "name", PORT_IN_NODE, "netns", str(pid)]
    return [
        ["ip", "link", "add", cable, "type", "veth", *peer],
        ["ip", "link", "set", cable, "master", network.bridge, "up"],
        ["ip", "route", "replace", network.pod_range(number), "via", via, "dev", network.bridge],
    ]


def free_networks(routes: Sequence[Mapping[str, Any]]) -> list[Network]:
    """Networks whose addresses nobody uses elsewhere, from what ``ip -json route`` says."""
    used = [
        (ipaddress.ip_network(route["dst"], strict=False), route["dev"])
        for route in routes
        if route["dst"] != "default" and ":" not in route["dst"]
    ]
    return [
        network
        for network in map(Network, range(MOST_NETWORKS))
        if not any(mine.overlaps(other) and dev != network.bridge for mine in network.ranges for other, dev in used)
    ]
