"""The generator in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caloscale.errors import InputError
from caloscale.inference.export.runtimes import exported
from caloscale.inference.packages import load
from caloscale.inference.runtime import Floats, Runtime, cores
from caloscale.models.card import read_card


class OnnxRuntime(Runtime):
    """An ONNX file on the CPU."""

    def __init__(self, folder: Path, *, precision: str, streams: int, threads: int | None) -> None:
        if precision != "float32":
            raise InputError(
                "is not offered with ONNX Runtime, which computes released generators in float32",
                field="precision",
                value=precision,
                remedy="use --runtime openvino, --runtime tensorflow for bfloat16, or --precision float32",
            )
        load("onnxruntime")
        card, path = read_card(folder), exported(folder, "onnx")
        self._session = open_session(path, threads=threads, streams=streams)
        super().__init__(card, self._session.get_inputs()[0].shape[1], streams=streams, threads=threads)

    def _compute(self, inputs: dict[str, Floats]) -> Floats:
        cells: Floats = self._session.run(["cells_gev"], inputs)[0]
        return cells


def open_session(path: Path, *, threads: int | None, streams: int = 1, optimise: bool = True) -> Any:
    """A session on the CPU; several streams share the threads, each calling `run` from a thread of its own.

    optimise: False as in simulations that compute the graph as it is.
    """
    onnxruntime = load("onnxruntime")
    options = onnxruntime.SessionOptions()
    if threads is not None or streams > 1:
        options.intra_op_num_threads = max(1, (threads or cores()) // streams)
    # else one thread per core, each pinned: the default of ONNX Runtime
    if not optimise:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
