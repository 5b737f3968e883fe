"""Real nodes on one machine, without Docker: for root, on Linux.

Each node is containerd, kubelet and kube-proxy in network, mount and process namespaces of its own on a bridge, so
containers, logs, evictions, DNS and lost machines are what they are in a cluster. Network policies are not enforced.
"""

from tools.cluster.native.cluster import NativeCluster

__all__ = ["NativeCluster"]
