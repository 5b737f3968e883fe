"""The largest memory of a process is its own."""

from __future__ import annotations

import subprocess
import sys

import numpy as np

from caloscale.profiling.memory import peak_memory_mib

CHILD = """
from caloscale.profiling.memory import peak_memory_mib
before = peak_memory_mib()
b"x" * (64 * 2**20)
print(before, peak_memory_mib())
"""


def test_a_child_begins_with_its_own_memory_and_what_was_given_back_counts() -> None:
    held = np.ones(2**25)  # 256 MiB
    child = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True).stdout
    before, after = map(float, child.split())
    assert before < 128 and 60 < after - before < 70
    assert peak_memory_mib() > held.nbytes / 2**20
