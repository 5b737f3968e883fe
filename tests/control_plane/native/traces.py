"""All that a cluster of real nodes could leave on a machine, apart from what others do there meanwhile."""

import json
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

import psutil

from tools.cluster.native.cgroups import read_trees

KINDS = ("net", "mnt", "pid", "uts", "ipc")
# Where kubelets, containerd and network plugins write when nobody tells them not to.
USUAL = ("/var/lib/kubelet", "/var/lib/containerd", "/var/lib/cni", "/var/log/pods", "/var/log/containers")
USUAL += ("/run/containerd", "/run/netns", "/run/nri", "/run/cni", "/run/xtables.lock", "/run/flannel")
USUAL += ("/opt/containerd", "/opt/cni", "/etc/cni/net.d", "/etc/kubernetes", "/usr/libexec/kubernetes")


def machine_traces() -> dict[str, set[str]]:
    """What nobody else than a cluster changes on this machine: firewall rules and the usual folders."""
    rules = {line for line in _told("iptables-save").splitlines() if line.startswith("-A")}
    files = {str(path) for name in USUAL for path in (Path(name), *Path(name).glob("*")) if path.exists()}
    return {"rules": rules, "files": files}


def processes_below(pid: int) -> set[int]:
    """All that a process has started: a cluster's programs, nodes, and all that runs in these."""
    return {each.pid for each in psutil.Process(pid).children(recursive=True)}


def traces(folder: Path, bridge: str, processes: Iterable[int], namespaces: Iterable[str]) -> dict[str, set[str]]:
    """What there is now of a cluster with a folder, a bridge, and what it had when it ran."""
    # A number may be another process' by now.
    running = {f"{pid} {_name(pid)}" for pid in processes if psutil.pid_exists(pid)}
    links = {each["ifname"] for each in json.loads(_told("ip", "-json", "link"))}
    routes = _told("ip", "route", "show", "table", "all").splitlines()
    mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    found = {
        "processes": running,
        "namespaces": set(namespaces) & {name for pid in psutil.pids() for name in namespaces_of(pid)},
        "mounts": {line for line in mounts if str(folder) in line},
        "links": {name for name in links if name.startswith(bridge)},
        "routes": {line for line in routes if bridge in line},
        "cgroups": {str(path) for path in read_trees().folders(bridge) if path.exists()},
        "folders": {str(folder)} if folder.exists() else set(),
    }
    return {what: names for what, names in found.items() if names}


def namespaces_of(pid: int) -> list[str]:
    """Namespaces of a process, such as net:[4026532000]."""
    try:
        return [os.readlink(f"/proc/{pid}/ns/{kind}") for kind in KINDS]  # noqa: PTH115
    except OSError:
        return []


def own_namespaces(processes: Iterable[int]) -> set[str]:
    """Namespaces of processes that are not this machine's own."""
    return {name for pid in processes for name in namespaces_of(pid)} - set(namespaces_of(os.getpid()))


def _name(pid: int) -> str:
    try:
        return str(psutil.Process(pid).name())
    except psutil.Error:
        return "gone"


def _told(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
