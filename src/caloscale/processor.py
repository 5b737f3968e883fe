"""The processor of this machine, as Linux describes it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


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
