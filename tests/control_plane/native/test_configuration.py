"""Configuration of real nodes."""

import ipaddress
import json
import tomllib
from pathlib import Path

import yaml

from tools.cluster.native.configuration import (
    DEFAULT_POOLS,
    TEMPLATES,
    corefile,
    dns_objects,
    node_environment,
    node_files,
    planned_nodes,
)
from tools.cluster.native.network import Network
from tools.cluster.pools import Pool, node_objects
from tools.cluster.servers import SERVICES

NODES = planned_nodes(DEFAULT_POOLS, Network(3))
FOLDERS = {"folder": Path("/cache/nodes/x"), "programs": Path("/cache/bin"), "shared": Path("/cache/shared")}


def files(index: int) -> dict[str, str]:
    return node_files(NODES[index], cni_folder=Path("/usr/lib/cni"), snapshotter="overlayfs")


def test_real_nodes_register_as_fake_ones_look() -> None:
    """The same labels and taints, whether kwok or a kubelet stands behind a node."""
    for pool in (*DEFAULT_POOLS, Pool("tpu", 1, accelerator="tpu-v3-slice", topology="4x4", per_node=4)):
        (fake, *_), (real, *_) = node_objects(pool), planned_nodes([pool], Network(0))
        labels = node_environment(real, [real], **FOLDERS)["LABELS"]
        assert dict(pair.split("=") for pair in labels.split(",")) == fake["metadata"]["labels"]
        shown = yaml.safe_load(node_files(real, cni_folder=Path("/x"), snapshotter="native")["kubelet.yaml"])
        assert shown["registerWithTaints"] == fake["spec"]["taints"]


def test_containerd_is_configured_in_toml() -> None:
    shown = tomllib.loads(files(1)["containerd.toml"])
    cri = shown["plugins"]["io.containerd.grpc.v1.cri"]
    assert cri["cni"]["bin_dir"] == "/usr/lib/cni"
    assert cri["containerd"]["snapshotter"] == "overlayfs"
    assert cri["sandbox_image"] == "docker.io/caloscale/pause:1"


def test_pods_of_two_nodes_have_different_ranges_in_the_cluster() -> None:
    ranges = []
    for index in (1, 2):
        bridge = json.loads(files(index)["net.d/10-pods.conflist"])["plugins"][0]
        ranges.append(ipaddress.ip_network(bridge["ipam"]["ranges"][0][0]["subnet"]))
    assert not ranges[0].overlaps(ranges[1])
    everything = ipaddress.ip_network(yaml.safe_load(files(1)["kube-proxy.yaml"])["clusterCIDR"])
    assert all(each.subnet_of(everything) for each in ranges)


def test_nothing_of_a_node_lies_outside_its_folder() -> None:
    """What kubelets and containerd write goes below /run, /var/lib or /var/log, and these are the node's own."""
    lines = (TEMPLATES / "init.sh").read_text(encoding="utf-8").splitlines()
    mounted = {line.split()[-1].strip('"') for line in lines if line.strip().startswith("mount ")}
    assert {"/run", "/var/lib", "/var/log", "/var/lib/$each"} <= mounted
    assert {"kubelet", "containerd"} <= set(node_environment(NODES[1], NODES, **FOLDERS)["DISK"].split())
    assert yaml.safe_load(files(1)["kubelet.yaml"])["volumePluginDir"].startswith("/var/lib/")
    containerd = tomllib.loads(files(1)["containerd.toml"])
    written = [containerd["root"], containerd["state"], containerd["plugins"]["io.containerd.internal.v1.opt"]["path"]]
    assert all(path.startswith(("/var/lib/", "/run/")) for path in written)


def test_a_node_knows_the_way_to_all_pods_but_its_own() -> None:
    ways = node_environment(NODES[1], NODES, **FOLDERS)["ROUTES"].split()
    assert ways == [f"{Network(3).pod_range(number)}={Network(3).node_address(number)}" for number in (1, 3)]


def test_dns_is_where_kubelets_tell_pods_it_is() -> None:
    service, endpoint = dns_objects("172.30.103.1", 5353)
    (asked,) = yaml.safe_load(files(0)["kubelet.yaml"])["clusterDNS"]
    assert service["spec"]["clusterIP"] == asked
    assert ipaddress.ip_address(asked) in ipaddress.ip_network(SERVICES)
    assert endpoint["endpoints"][0]["addresses"] == ["172.30.103.1"]
    assert {port["port"] for port in endpoint["ports"]} == {5353}
    text = corefile("172.30.103.1", 5353, 5354, Path("/k"))
    assert text.startswith(".:5353 {\n  bind 172.30.103.1\n")
    assert text.count("{") == text.count("}")
