"""Requirements of real nodes on this machine, and the error that lists what is missing."""

import os
import platform
import shutil
import subprocess
from pathlib import Path

import psutil

from tools.cluster.errors import ClusterError
from tools.cluster.native.cgroups import make_group, missing_controllers, read_trees, remove_group
from tools.cluster.programs import folder, is_built

# Command: its Debian package.
COMMANDS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "ip": "iproute2",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
    "hostname": "hostname",
}
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"), Path("/usr/libexec/cni"))
CNI_PLUGINS = ("bridge", "host-local", "loopback", "portmap")
CNI_PACKAGE = "containernetworking-plugins"
SYSTEM_FOLDERS = ("/usr/local/sbin", "/usr/sbin", "/sbin")
# Its own network, mounts, processes, names, and messages between processes. With its first process all end.
UNSHARE = ("unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc")
BRIDGE_FILTER = Path("/proc/sys/net/bridge/bridge-nf-call-iptables")


def check(*, programs: bool = True) -> None:
    """Raise ClusterError with a list of what is missing and how to get it; ``programs``: our own programs, too."""
    if platform.system() != "Linux":
        raise ClusterError("real nodes need Linux", remedy="a cluster of yours: make smoke CONTEXT=...")
    problems, packages = missing_of_machine(), missing_packages()
    if packages:
        problems.append(f"packages are missing: apt-get install --no-install-recommends {' '.join(packages)}")
    if programs and not is_built(nodes=True):
        problems.append("kubelet and others are not built: python -m tools.cluster build --nodes")
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise ClusterError(f"no real nodes here:{listed}", remedy="mend these, or make smoke CONTEXT=...")


def missing_packages() -> list[str]:
    """Debian packages to install."""
    missing = {package for command, package in COMMANDS.items() if not where(command)}
    return sorted(missing | (set() if cni_folder() else {CNI_PACKAGE}))


def missing_of_machine() -> list[str]:
    """What no package mends."""
    problems = []
    if os.geteuid() != 0:
        # Root has a cache of its own, in which nothing is built.
        cache = folder().parent.parent
        problems.append(f"only root may make namespaces and bridges: sudo CALOSCALE_CACHE={cache} make cluster-up")
    elif refused := _refused():
        problems.append(f"root may not make a node here ({refused}): leave the container, or give it the rights")
    for module, proof in (("overlay", _knows_overlay), ("br_netfilter", BRIDGE_FILTER.exists)):
        if not proof() and not (_load(module) and proof()):
            problems.append(f"the kernel has no {module}: modprobe {module}")
    if lacking := missing_controllers(read_trees()):
        problems.append(f"no cgroup controllers {', '.join(lacking)}: mount them, or boot with systemd")
    if _drops_bridged():
        problems.append(
            "this machine's firewall drops what passes a bridge (Docker does that): "
            "sysctl net.bridge.bridge-nf-call-iptables=0"
        )
    return problems


def _refused() -> str:
    """What a container's root is refused, tried with a node's namespaces and a group that vanish again."""
    commands = "mount -t tmpfs none /tmp && ip link add probe type bridge"
    unshare, path = where(UNSHARE[0]), os.pathsep.join((os.environ.get("PATH", ""), *SYSTEM_FOLDERS))
    if unshare is None or not where("ip"):
        return ""  # the missing package is shown
    tried = subprocess.run(
        [unshare, *UNSHARE[1:], "sh", "-c", commands],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        return tried.stderr.strip() or f"exit code {tried.returncode}"
    trees, group = read_trees(), f"caloscale-probe-{os.getpid()}"
    try:
        make_group(trees, group)
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    finally:
        remove_group(trees, group)
    return ""


def cni_folder() -> Path | None:
    """Where the plugins lie that give pods their network."""
    return next((place for place in CNI_FOLDERS if all((place / name).is_file() for name in CNI_PLUGINS)), None)


def snapshotter(place: Path) -> str:
    """How containerd keeps layers in a folder: overlay, or copies where the folder itself is an overlay."""
    parts = [part for part in psutil.disk_partitions(all=True) if place.is_relative_to(part.mountpoint)]
    # The last of the longest is what is mounted on top.
    on = max(reversed(parts), key=lambda part: len(part.mountpoint), default=None)
    return "native" if on is not None and on.fstype == "overlay" else "overlayfs"


def where(command: str) -> str | None:
    """Path of a command; root's folders are looked through even where PATH lacks them."""
    return shutil.which(command, path=os.pathsep.join((os.environ.get("PATH", ""), *SYSTEM_FOLDERS)))


def _knows_overlay() -> bool:
    lines = Path("/proc/filesystems").read_text(encoding="utf-8").splitlines()
    return any(line.split()[-1] == "overlay" for line in lines)


def _load(module: str) -> bool:
    modprobe = where("modprobe")
    return modprobe is not None and subprocess.run([modprobe, "-q", module], check=False).returncode == 0


def _drops_bridged() -> bool:
    iptables = where("iptables")
    if iptables is None or os.geteuid() != 0 or not BRIDGE_FILTER.exists():
        return False
    if BRIDGE_FILTER.read_text(encoding="utf-8").strip() != "1":
        return False
    done = subprocess.run([iptables, "-S", "FORWARD"], capture_output=True, text=True, check=False)
    return done.stdout.startswith("-P FORWARD DROP")
