"""One interface to a generator, whatever computes it: TensorFlow, ONNX Runtime or OpenVINO; and the packages of the
extra `infer`, which may be absent, with the formats that they write and compute."""

import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, lru_cache
from importlib import import_module
from pathlib import Path
from queue import LifoQueue
from typing import Any, Generic, Literal, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import InputError
from caloscale.inference.primaries import check_columns, check_ranges
from caloscale.installation import install_command
from caloscale.models.card import ModelCard
from caloscale.processor import cores
from caloscale.showers.primaries import Floats

RuntimeName = Literal["tensorflow", "onnx", "openvino"]
Precision = Literal["float32", "bfloat16", "int8"]
T = TypeVar("T")

_MOST_STREAMS = 4
_CELLS_IN_BATCH = 2**19
"""Cells of the showers of a batch that no one chose: 8 of 51 x 51 x 25."""
_LARGEST_BATCH = 128
PAYS_FROM = 1.1
"""How many times faster bfloat16 must be to be taken: less is within the error of a short measurement."""
_TIMED = 3
"""Batches of each stream that are timed, behind one that is not."""
_WORTH_TIMING = 32
"""Batches of each stream from which on both precisions are timed: it takes as long as about 8."""

_MODULES: dict[RuntimeName, tuple[str, str]] = {
    "tensorflow": ("caloscale.inference.generator", "open_generator"),
    "onnx": ("caloscale.inference.exported", "OnnxRuntime"),
    "openvino": ("caloscale.inference.exported", "OpenVinoRuntime"),
}


class Runtime(ABC):
    """A generator that is ready to compute. `generate_batch` may be called by `streams` threads at once."""

    def __init__(self, card: ModelCard, noise_size: int, *, precision: str = "float32", streams: int) -> None:
        self.card = card
        self.noise_size = noise_size
        """Random numbers a shower takes."""
        self.precision = precision
        """Arithmetic of the convolutions."""
        self.streams = streams
        """Batches that are computed at the same time."""

    def generate_batch(
        self,
        noise: NDArray[np.floating],
        energy_gev: NDArray[np.floating],
        angle_rad: NDArray[np.floating],
        *,
        extrapolate: bool = False,
        **further: NDArray[np.floating],
    ) -> Floats:
        """Deposited energy per cell, GeV, float32 (B, X, Y, Z), re-binned, nothing below the threshold.

        noise: normal, (B, noise_size); energy_gev, angle_rad, and the further columns of the model's table of primaries
        (`ModelCard.columns`): (B,). Raises InputError for other columns and other shapes, and for energies and angles
        that were not trained, unless ``extrapolate``.
        """
        given = {"noise": noise, "energy_gev": energy_gev, "angle_rad": angle_rad, **further}
        check_columns(further, self.card)
        inputs = {name: np.ascontiguousarray(given[name], np.float32) for name in ("noise", *self.card.columns)}
        shapes = [values.shape for values in inputs.values()]
        count = len(inputs["energy_gev"])
        if shapes != [(count, self.noise_size), *[(count,)] * len(self.card.columns)]:
            remedy = f"give (B, {self.noise_size}), and (B,) for each of the others"
            raise InputError("do not belong together", field=", ".join(inputs), value=shapes, remedy=remedy)
        check_ranges(inputs, self.card, extrapolate=extrapolate)
        return self._compute(inputs) if count else np.empty((0, *self.card.shape), np.float32)

    @abstractmethod
    def _compute(self, inputs: dict[str, Floats]) -> Floats:
        """Cells of noise and columns, by the names that exported models have too."""


class PerBatch(Generic[T]):
    """What computes batches of one size, as many as there are streams. That of the last sizes is kept.

    make: for a size of batch. Each one computes one batch at a time: its memory stays with the core that used it last.
    """

    def __init__(self, make: Callable[[int], Iterable[T]]) -> None:
        @lru_cache(maxsize=4)
        def queue_of(batch: int) -> LifoQueue[T]:
            queue: LifoQueue[T] = LifoQueue()
            for one in make(batch):
                queue.put(one)
            return queue

        self._queue_of, self._lock = queue_of, threading.Lock()

    @contextmanager
    def idle(self, batch: int) -> Iterator[T]:
        """One that is idle, for a batch of this size; waits until there is one."""
        with self._lock:
            queue = self._queue_of(batch)
        one = queue.get()
        try:
            yield one
        finally:
            queue.put(one)


def open_runtime(
    folder: str | Path,
    runtime: str = "tensorflow",
    *,
    precision: str = "float32",
    streams: int = 1,
    threads: int | None = None,
) -> Runtime:
    """The generator of a model folder in one of the runtimes.

    Raises CheckpointError for a folder that is no model, InputError for a runtime, a precision or a number of threads
    that cannot be had here.
    """
    for field, value, known in (
        ("runtime", runtime, get_args(RuntimeName)),
        ("precision", precision, get_args(Precision)),
    ):
        if value not in known:
            raise InputError("is not known", field=field, value=value, remedy="choose " + " or ".join(known))
    module, name = _MODULES[runtime]  # type: ignore[index]
    opener: Any = getattr(import_module(module), name)
    return opener(Path(folder), precision=precision, streams=streams, threads=threads)


def open_fastest(
    folder: str | Path,
    runtime: str,
    primaries: Mapping[str, Floats],
    *,
    batches: int,
    streams: int = 1,
    threads: int | None = None,
) -> tuple[Runtime, str]:
    """The generator in bfloat16 where that is faster on this machine, otherwise in float32; and why, in words.

    Batches of the showers of ``primaries`` (one table for each batch) are timed in both precisions, alternately.
    batches: number of batches to be generated; few are made in float32 without a measurement. Raises as `open_runtime`.
    """
    exact = open_runtime(folder, runtime, streams=streams, threads=threads)
    if batches < _WORTH_TIMING * streams:
        return exact, f"{batches} batches are too few for a measurement"
    try:
        rounded = open_runtime(folder, runtime, precision="bfloat16", streams=streams, threads=threads)
    except InputError as error:
        return exact, f"bfloat16: {error.problem}"
    count = len(primaries["energy_gev"])
    noise = np.random.default_rng(1).standard_normal((count, exact.noise_size), np.float32)
    given: dict[str, Any] = {**primaries, "extrapolate": True}
    seconds: dict[str, list[float]] = {"float32": [], "bfloat16": []}
    with ThreadPoolExecutor(streams) as pool:
        for _ in range(1 + _TIMED):
            for opened in (exact, rounded):
                begun = time.perf_counter()
                list(pool.map(lambda _, one=opened: one.generate_batch(noise, **given), range(streams)))
                seconds[opened.precision].append(time.perf_counter() - begun)
    milliseconds = {precision: 1e3 * min(taken[1:]) / (streams * count) for precision, taken in seconds.items()}
    chosen = rounded if milliseconds["float32"] >= PAYS_FROM * milliseconds["bfloat16"] else exact
    figures = ", ".join(f"{taken:.3g} ms a shower in {precision}" for precision, taken in milliseconds.items())
    return chosen, f"{figures}; bfloat16 is taken where float32 takes {PAYS_FROM:g} times as long"


def suitable_streams(threads: int | None = None, batches: int | None = None) -> int:
    """How many of the batches to compute at once, where no one chose: at most `_MOST_STREAMS`, as each needs memory.

    As many as divide the threads, so that none is idle. Threads that share a batch wait for each other after each
    operation. threads: absent: one per core. batches: absent: any number.
    """
    threads = threads or cores()
    most = min(threads, batches or threads, _MOST_STREAMS)
    return next(streams for streams in range(most, 0, -1) if threads % streams == 0)


def suitable_batch(shape: tuple[int, int, int], cells: int = _CELLS_IN_BATCH) -> int:
    """Largest power of two of showers of this shape with at most this number of cells; at least 1, at most 128."""
    return min(_LARGEST_BATCH, 2 ** max(0, math.floor(math.log2(cells / math.prod(shape)))))


Format = Literal["onnx", "openvino", "openvino-int8"]
FILES: dict[Format, str] = {"onnx": "generator.onnx", "openvino": "generator.xml", "openvino-int8": "generator.xml"}
PACKAGES: dict[Format, tuple[str, ...]] = {
    "onnx": ("tf2onnx", "onnx", "onnxruntime"),
    "openvino": ("openvino",),
    "openvino-int8": ("openvino", "nncf"),
}
"""Packages that write and compute each format, in addition to TensorFlow."""
BATCH = "batch"
"""Name of the first dimension of all inputs and outputs: the number of showers."""


def load(package: str) -> Any:
    """Import a package of the extra `infer`. Raises InputError when it is not installed."""
    if package == "nncf":
        os.environ.setdefault("NNCF_CI", "1")  # otherwise it reports its use over the network
    try:
        return import_module(package)
    except ImportError as error:
        extra = "generate" if package == "onnxruntime" else "infer"
        remedy = f"{install_command(extra)}; generate does without it with --runtime tensorflow"
        raise InputError(f"cannot be imported: {error}", field=package, remedy=remedy) from error


def openvino_core() -> Any:
    """OpenVINO, loaded once for the process; raises as `load`.

    Its CPU plugin gives the thread a stack of its own for signals, and puts the one before back when it goes away. Of
    two plugins that go in the order they came, the second puts back what the first has unmapped, and the next signal
    kills the process.
    """
    return _core(load("openvino"))


@cache
def _core(openvino: Any) -> Any:
    return openvino.Core()


def open_session(
    path: Path, *, threads: int | None, streams: int = 1, batch: int | None = None, optimise: bool = True
) -> Any:
    """A session on the CPU, with its share of the threads where there are several streams.

    batch: the number of showers of each call; absent: any.
    optimise: False as in simulations that compute the graph as it is.
    """
    onnxruntime = load("onnxruntime")
    options = onnxruntime.SessionOptions()
    if threads is not None or streams > 1:
        options.intra_op_num_threads = max(1, (threads or cores()) // streams)
    # else one thread per core, each pinned: the default of ONNX Runtime
    if batch is not None:
        options.add_free_dimension_override_by_name(BATCH, batch)
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def open_file(
    path: Path, inputs: Sequence[str], *, threads: int | None = None, optimise: bool = True
) -> Callable[..., Any]:
    """What computes an exported file: a function of its inputs, in their order, that gives its output.

    inputs: their names in OpenVINO; ONNX has them in the order of the file. Other arguments: see `open_session`.
    """
    if path.suffix == ".xml":
        settings = {} if threads is None else {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
        compiled = openvino_core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32", **settings})
        return lambda *values: compiled(dict(zip(inputs, values)))[0]
    session = open_session(path, threads=threads, optimise=optimise)
    names = [value.name for value in session.get_inputs()]
    return lambda *values: session.run(None, dict(zip(names, values, strict=True)))[0]


def format_of(runtime: str, precision: str) -> Format | None:
    """The format that a runtime computes; None: it computes the network itself."""
    name = f"{runtime}-int8" if precision == "int8" else runtime
    return next((format for format in get_args(Format) if format == name), None)


def runtime_of(format: Format) -> RuntimeName:
    """The runtime that computes a format."""
    return "onnx" if format == "onnx" else "openvino"
