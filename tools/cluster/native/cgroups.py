"""Groups of processes by which the kernel limits containers: one for each node, in the older or the newer hierarchy.

With version 1 (also "hybrid") each controller is a tree of its own, and a node's group must exist in all of them before
its kubelet starts. With version 2 there is one tree, and each group passes its controllers on to its children.
"""

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from tools.cluster.errors import ClusterError

MOUNTS = Path("/proc/self/mounts")
SECONDS_TO_EMPTY = 20.0
# What a kubelet asks for.
NEEDED = ("cpu", "cpuset", "memory", "pids")


@dataclass(frozen=True)
class Trees:
    """Where the hierarchies are mounted."""

    version: int
    roots: tuple[Path, ...]
    """All trees; of version 1 also those without a controller (systemd, unified)."""

    def folders(self, group: str) -> list[Path]:
        """The folders of a group (such as caloscale0/system-0000), one in each tree."""
        return [root / group for root in self.roots]


def read_trees(mounts: Path = MOUNTS) -> Trees:
    """The hierarchies of this machine."""
    fields = [line.split() for line in mounts.read_text(encoding="utf-8").splitlines()]
    # Spaces in a mount point are written as \040; none of these has any.
    older = [Path(each[1]) for each in fields if each[2] == "cgroup"]
    newer = [Path(each[1]) for each in fields if each[2] == "cgroup2"]
    if older:
        return Trees(1, tuple(older + newer))
    return Trees(2, tuple(newer[:1]))


def missing_controllers(trees: Trees) -> list[str]:
    """Controllers that a kubelet needs and this machine lacks."""
    if trees.version == 1:
        there = {name for root in trees.roots for name in root.name.split(",")}
    else:
        there = {name for root in trees.roots for name in _words(root / "cgroup.controllers")}
    return [name for name in NEEDED if name not in there]


def make_group(trees: Trees, group: str) -> None:
    """Make a group so that containers can be put below it; does nothing for one that is there."""
    for root in trees.roots:
        folder = root
        for part in Path(group).parts:
            if trees.version == 2:
                _pass_on(folder)
            parent, folder = folder, folder / part
            folder.mkdir(exist_ok=True)
            if trees.version == 1:
                _inherit_processors(parent, folder)
        if trees.version == 2:
            _pass_on(folder)


def remove_group(trees: Trees, group: str, seconds: float = SECONDS_TO_EMPTY) -> None:
    """Remove a group and all below it, once their processes are gone; raises ClusterError when they do not go."""
    end = time.monotonic() + seconds
    while True:
        try:
            for folder in trees.folders(group):
                _remove(folder)
            return
        except OSError as error:
            if time.monotonic() > end:
                remedy = f"cat {error.filename}/cgroup.procs says which processes are in it"
                raise ClusterError(f"the cgroup {group} cannot be removed: {error.strerror}", remedy=remedy) from error
            time.sleep(0.05)


def _remove(folder: Path) -> None:
    if not folder.is_dir():
        return
    for child in folder.iterdir():
        if child.is_dir():
            _remove(child)
    folder.rmdir()


def _inherit_processors(parent: Path, folder: Path) -> None:
    """A group of version 1 begins without processors and memory nodes, and then no process may enter it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        if (folder / name).is_file() and not _words(folder / name):
            (folder / name).write_text((parent / name).read_text(encoding="utf-8"), encoding="utf-8")


def _pass_on(folder: Path) -> None:
    """Give a group's controllers to its children. Each by itself: some (of real time) cannot be passed on."""
    for name in _words(folder / "cgroup.controllers"):
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{name}", encoding="utf-8")


def _words(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split()
