"""Groups of processes in this machine's own hierarchies."""

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.cluster.errors import ClusterError
from tools.cluster.native.cgroups import Trees, make_group, missing_controllers, read_trees, remove_group

HYBRID = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0
cgroup /sys/fs/cgroup/systemd cgroup rw,name=systemd 0 0
cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0
"""
UNIFIED = "proc /proc proc rw 0 0\ncgroup2 {root} cgroup2 rw,nsdelegate 0 0\n"


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_versions_are_told_apart(tmp_path: Path) -> None:
    hybrid = read_trees(write(tmp_path / "1", HYBRID))
    assert hybrid.version == 1
    assert [root.name for root in hybrid.roots] == ["cpu,cpuacct", "cpuset", "memory", "systemd", "unified"]
    assert missing_controllers(hybrid) == ["pids"]
    write(tmp_path / "cgroup.controllers", "cpuset cpu io memory pids\n")
    unified = read_trees(write(tmp_path / "2", UNIFIED.format(root=tmp_path)))
    assert unified == Trees(2, (tmp_path,))
    assert missing_controllers(unified) == []
    write(tmp_path / "cgroup.controllers", "memory pids\n")
    assert missing_controllers(unified) == ["cpu", "cpuset"]


MACHINE = read_trees()
CAN_WRITE = all(os.access(root, os.W_OK) for root in MACHINE.roots)


@pytest.fixture
def group() -> Iterator[str]:
    if not CAN_WRITE:
        pytest.skip("cgroups are root's")
    name = f"caloscale-test-{uuid.uuid4().hex[:8]}"
    yield name
    remove_group(MACHINE, name)


def test_processes_can_enter_a_group_of_this_machine(group: str) -> None:
    """Also of version 1, where a new group has neither processors nor memory to begin with."""
    make_group(MACHINE, f"{group}/node")
    make_group(MACHINE, f"{group}/node")
    folders = MACHINE.folders(f"{group}/node/pods")
    with subprocess.Popen(["sleep", "60"]) as process:
        for folder in folders:
            folder.mkdir()
            for name in ("cpuset.cpus", "cpuset.mems"):
                if MACHINE.version == 1 and (folder / name).is_file():
                    (folder / name).write_text((folder.parent / name).read_text(encoding="utf-8"), encoding="utf-8")
            (folder / "cgroup.procs").write_text(str(process.pid), encoding="utf-8")
            assert str(process.pid) in (folder / "cgroup.procs").read_text(encoding="utf-8").split()
        with pytest.raises(ClusterError, match="cannot be removed: Device or resource busy"):
            remove_group(MACHINE, group, seconds=0.2)
        process.kill()
    remove_group(MACHINE, group)
    assert not any(folder.exists() for folder in MACHINE.folders(group))


def test_a_group_that_is_not_there_needs_not_be_removed(group: str) -> None:
    make_group(MACHINE, f"{group}/neighbour")
    remove_group(MACHINE, f"{group}/absent")
    assert all((folder / "neighbour").is_dir() for folder in MACHINE.folders(group))
    remove_group(MACHINE, group)
    remove_group(MACHINE, group)
    assert not any(folder.exists() for folder in MACHINE.folders(group))
