"""Packages of the extra `infer`, which may be absent, and the formats of a generator that they write and compute."""

import os
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from caloscale.errors import InputError
from caloscale.inference.runtime import RuntimeName
from caloscale.installation import install_command
from caloscale.processor import cores

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
