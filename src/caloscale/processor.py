"""The processor of this machine as Linux describes it, and what a process has of cores and memory."""

import os
import platform
import re
import resource
import sys
from contextlib import suppress
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
CONTROL_GROUPS = Path("/proc/self/cgroup")
"""The control groups of this process (cgroups(7))."""
NODES = Path("/sys/devices/system/node")
"""Where Linux says which cores are of which NUMA node (Documentation/admin-guide/mm/numaperf.rst)."""


def processor_fields(cpuinfo: Path = CPUINFO) -> dict[str, str]:
    """What the first core has, by name: model name, stepping, flags; nothing on other systems."""
    text = cpuinfo.read_text(encoding="utf-8", errors="replace") if cpuinfo.is_file() else ""
    pairs = (line.partition(":") for line in text.strip().split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}


def processor_name() -> str:
    """The model."""
    return processor_fields().get("model name") or platform.processor() or platform.machine()


def instructions(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """Sets of instructions that the processor has, such as avx512f; empty where they are not known."""
    return frozenset(processor_fields(cpuinfo).get("flags", "").split())


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def available_cores(nodes: Path = NODES) -> list[int]:
    """Cores that this process may use, those of a NUMA node one after the other; empty where it cannot be known.

    Memory needs no pinning: Linux takes a page from the node of the core that writes it first.
    """
    if not hasattr(os, "sched_getaffinity"):
        return []
    node_of = {
        core: int(file.parent.name.removeprefix("node"))
        for file in nodes.glob("node[0-9]*/cpulist")
        for core in parse_cores(file.read_text(encoding="ascii"))
    }
    return sorted(os.sched_getaffinity(0), key=lambda core: (node_of.get(core, 0), core))


def parse_cores(text: str) -> list[int]:
    """The cores of a list of Linux, such as 0-3,8."""
    ranges = [part.partition("-")[::2] for part in text.strip().split(",") if part]
    return [core for first, last in ranges for core in range(int(first), int(last or first) + 1)]


def core_shares(processes: int, cores: list[int], each: int | None = None) -> list[list[int]]:
    """``each`` cores (absent: as many as possible) for every process, none twice; empty where there are too few.

    All get equally many, also where cores are left over: processes that wait for each other need equal shares.
    """
    size = each or len(cores) // processes
    if size < 1 or size * processes > len(cores):
        return []
    return [cores[index * size : (index + 1) * size] for index in range(processes)]


def peak_memory_mib() -> float:
    """The largest resident memory that this process has had, MiB.

    On Linux VmHWM of proc(5): ru_maxrss of getrusage(2) begins with the memory of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        match = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8", errors="replace"))
        if match is not None:
            return int(match[1]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def free_memory(groups: Path = CONTROL_GROUPS, mounted: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that this process and those it starts may still take, bytes: what the machine has, and what the limits of
    their control groups leave, such as that of a container. Cached files count as free."""
    import psutil

    free = int(psutil.virtual_memory().available)
    lines = groups.read_text(encoding="utf-8").splitlines() if groups.is_file() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers == "":
            base, limit, used, of_all = mounted, "memory.max", "memory.current", ""
        elif "memory" in controllers.split(","):
            base, limit = mounted / "memory", "memory.limit_in_bytes"
            used, of_all = "memory.usage_in_bytes", "total_"
        else:
            continue
        inner = base / path.lstrip("/")
        # A container sees its group as the outermost one, whatever path the machine has for it.
        for group in (inner, *(outer for outer in inner.parents if outer.is_relative_to(base))):
            with suppress(OSError, ValueError):  # absent, or "max": no limit
                statistics = dict(line.split() for line in (group / "memory.stat").read_text("utf-8").splitlines())
                cached = sum(int(statistics.get(f"{of_all}{kind}_file", 0)) for kind in ("inactive", "active"))
                taken = int((group / used).read_text("utf-8")) - cached
                free = min(free, int((group / limit).read_text("utf-8")) - taken)
    return max(free, 0)
