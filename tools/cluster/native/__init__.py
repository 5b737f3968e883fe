"""Real nodes on one machine, without Docker: for root, on Linux.

Each node is containerd, kubelet and kube-proxy in network, mount and process namespaces of its own on a bridge, so
containers, logs, evictions, DNS and lost machines are what they are in a cluster. Network policies are not enforced.
"""

from tools.cluster.native.cluster import NativeCluster, running_folder
from tools.cluster.native.configuration import CONTEXT
from tools.cluster.real import DEFAULT_POOLS

__all__ = ["CONTEXT", "DEFAULT_POOLS", "NativeCluster", "running_folder"]
