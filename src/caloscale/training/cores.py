"""The cores that processes of one machine are pinned to: each process within as few NUMA nodes as possible."""

from __future__ import annotations

import os
from pathlib import Path

NODES = Path("/sys/devices/system/node")
"""Where Linux says which cores are of which NUMA node (Documentation/admin-guide/mm/numaperf.rst)."""


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
