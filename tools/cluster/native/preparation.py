"""The folder of a real node, before it boots for the first time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from tools.cluster.certificates import Authority, KeyPair, embedded, write_kubeconfig
from tools.cluster.native import requirements
from tools.cluster.native.configuration import CONTEXT, DISK, Node, machine_description, node_files
from tools.cluster.native.images import put_pause
from tools.cluster.native.machine import DESCRIPTION, NodeProcess
from tools.cluster.programs import folder as programs_folder


def prepare(
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
