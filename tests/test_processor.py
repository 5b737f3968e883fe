"""Cores for processes: by NUMA node, equal shares, none twice; the largest memory of a process is its own."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.processor import available_cores, core_shares, free_memory, parse_cores, peak_memory_mib

CHILD = """
from caloscale.processor import peak_memory_mib
before = peak_memory_mib()
b"x" * (64 * 2**20)
print(before, peak_memory_mib())
"""


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3,8\n", [0, 1, 2, 3, 8]), ("5", [5]), ("\n", []), ("0,2-3", [0, 2, 3])]
)
def test_lists_of_linux(text, cores):
    assert parse_cores(text) == cores


def test_cores_of_a_node_come_one_after_the_other(tmp_path, monkeypatch):
    """Two nodes with alternating cores, as of many servers: two processes have a node each."""
    for node, text in (("node0", "0,2,4,6"), ("node1", "1,3,5,7")):
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(text)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    cores = available_cores(tmp_path)
    assert cores == [0, 2, 4, 6, 1, 3, 5, 7]
    assert core_shares(2, cores) == [[0, 2, 4, 6], [1, 3, 5, 7]]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1, 2, 3})
    assert available_cores(tmp_path) == [2, 1, 3] and available_cores(tmp_path / "absent") == [1, 2, 3]


@given(st.integers(1, 9), st.integers(0, 40), st.one_of(st.none(), st.integers(1, 5)))
def test_shares_are_equal_and_apart(processes, count, each):
    shares = core_shares(processes, list(range(count)), each)
    wanted = each or count // processes
    if wanted < 1 or wanted * processes > count:
        assert shares == []
    else:
        assert [len(share) for share in shares] == [wanted] * processes
        assert len({core for share in shares for core in share}) == wanted * processes


def test_a_child_begins_with_its_own_memory_and_what_was_given_back_counts() -> None:
    held = np.ones(2**25)  # 256 MiB
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
    before, after = map(float, child.split())
    assert before < 128 and 60 < after - before < 70
    assert peak_memory_mib() > held.nbytes / 2**20


V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
V2 = ("memory.max", "memory.current", "")


@pytest.mark.parametrize(
    ("line", "group", "names"),
    # The last path is that of the machine, which a container does not see.
    [("0::/", "", V2), ("0::/pods/one", "pods", V2), ("4:cpu:/\n5:memory:/docker/1a", "memory", V1)],
)
def test_the_limit_of_a_container_bounds_free_memory(tmp_path, line, group, names):
    folder, (limit, used, of_all) = tmp_path / group, names
    folder.mkdir(exist_ok=True)
    (tmp_path / "groups").write_text(line + "\n")
    (folder / limit).write_text(f"{100 * 2**20}\n")
    (folder / used).write_text(f"{70 * 2**20}\n")
    cached = f"{of_all}inactive_file {20 * 2**20}\n{of_all}active_file {10 * 2**20}\n"
    (folder / "memory.stat").write_text(f"anon {40 * 2**20}\n{cached}")
    assert free_memory(tmp_path / "groups", tmp_path) == 60 * 2**20
    (folder / limit).write_text("max\n")
    assert free_memory(tmp_path / "groups", tmp_path) > 2**27 < free_memory(tmp_path / "absent")
