"""Configuration of a real node's programs and of its first process. Pure: values in, text out."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tools.cluster.native.network import PORT_IN_NODE, Network, node_commands
from tools.cluster.pools import Pool, labels_of, taints_of
from tools.cluster.real import SHARED

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
    """Configuration files of a node, by name in its folder."""
    return {
        "containerd.toml": containerd_configuration(cni_folder, snapshotter),
        "net.d/10-pods.conflist": json.dumps(pod_network(node), indent=2),
        "kubelet.yaml": yaml.safe_dump(kubelet_configuration(node), sort_keys=False),
        "kube-proxy.yaml": yaml.safe_dump(proxy_configuration(node), sort_keys=False),
    }


def containerd_configuration(cni_folder: Path, snapshotter: str) -> str:
    """containerd for one node: its own folders, our pause image, no rights that root may lack in a container."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", \
"io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[{cri}]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = true
  restrict_oom_score_adj = true
[{cri}.containerd]
  snapshotter = "{snapshotter}"
  default_runtime_name = "runc"
[{cri}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
  SystemdCgroup = false
[{cri}.cni]
  bin_dir = "{cni_folder}"
  conf_dir = "{OWN}/net.d"
"""


def pod_network(node: Node) -> dict[str, Any]:
    """The network of a node's pods: a bridge in the node with a range of its own; policies are not enforced."""
    pool: dict[str, Any] = {"type": "host-local", "ranges": [[{"subnet": node.network.pod_range(node.number)}]]}
    pool |= {"routes": [{"dst": "0.0.0.0/0"}]}
    bridge: dict[str, Any] = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": pool}
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, ports]}


def kubelet_configuration(node: Node) -> dict[str, Any]:
    """The kubelet, with the pool's taints from its first moment on."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": f"{OWN}/ca.crt"},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": f"{OWN}/node.crt",
        "tlsPrivateKeyFile": f"{OWN}/node.key",
        "registerWithTaints": taints_of(node.pool),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.group}",
        "failSwapOn": False,
        # Root in a container may not lower it.
        "oomScoreAdj": 0,
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        # The usual folder is outside the node's own and would stay on the machine.
        "volumePluginDir": "/var/lib/kubelet/plugins-exec",
        "clusterDomain": CLUSTER_DOMAIN,
        "clusterDNS": [CLUSTER_DNS],
        "resolvConf": "",
        # All nodes share one disk, which is not theirs to clean.
        "evictionHard": {
            "memory.available": "100Mi",
            **dict.fromkeys(("nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree"), "0%"),
        },
        "imageGCHighThresholdPercent": 100,
        "serializeImagePulls": False,
        # It says every 3 s that it lives.
        "nodeLeaseDurationSeconds": 12,
        "nodeStatusUpdateFrequency": "2s",
        "nodeStatusReportFrequency": "1m",
    }


def proxy_configuration(node: Node) -> dict[str, Any]:
    """kube-proxy; it leaves the kernel's limits on connections alone, which a namespace may not change."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "bindAddress": node.address,
        "clusterCIDR": node.network.all_pods,
        "hostnameOverride": node.name,
        "oomScoreAdj": 0,
        "clientConnection": {"kubeconfig": f"{OWN}/kube-proxy.kubeconfig"},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
    }


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
