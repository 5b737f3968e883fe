"""The largest memory of this process."""

from __future__ import annotations

import re
import resource
import sys
from pathlib import Path


def peak_memory_mib() -> float:
    """The largest resident memory that this process has had, MiB.

    On Linux VmHWM of proc(5): ru_maxrss of getrusage(2) begins with the memory of the process that started this one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text(encoding="utf-8", errors="replace"))
        if found is not None:
            return int(found[1]) / 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20
