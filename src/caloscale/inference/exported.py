"""The exported generator in ONNX Runtime and in OpenVINO."""

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from caloscale.errors import InputError
from caloscale.inference.export.runtimes import exported
from caloscale.inference.runtime import PerBatch, Runtime, load, open_session, openvino_core, suitable_batch
from caloscale.models.card import read_card
from caloscale.showers.primaries import Floats

_CELLS_AT_ONCE = 2**17
"""Cells of the showers that a call computes: its intermediate results stay in the cache of a core."""
_OPENVINO = {"float32": ("FP32", "f32"), "bfloat16": ("BF16", "bf16"), "int8": ("INT8", "f32")}
"""By precision: what OpenVINO calls the processor's capability, and the arithmetic of what is not quantised."""


class OnnxRuntime(Runtime):
    """An ONNX file on the CPU, with sessions for each number of showers: known shapes let ONNX Runtime merge operators.

    A batch is computed in parts.
    """

    def __init__(self, folder: Path, *, precision: str, streams: int, threads: int | None) -> None:
        if precision != "float32":
            problem = "is not offered with ONNX Runtime, which computes released generators in float32"
            remedy = "use --runtime openvino, --runtime tensorflow for bfloat16, or --precision float32"
            raise InputError(problem, field="precision", value=precision, remedy=remedy)
        load("onnxruntime")
        card, path = read_card(folder), exported(folder, "onnx")
        noise_size = open_session(path, threads=1, optimise=False).get_inputs()[0].shape[1]

        def sessions(batch: int) -> list[Any]:
            return [open_session(path, threads=threads, streams=streams, batch=batch) for _ in range(streams)]

        self._sessions = PerBatch(sessions)
        self._part = suitable_batch(card.shape, _CELLS_AT_ONCE)
        super().__init__(card, noise_size, streams=streams)

    def _compute(self, inputs: dict[str, Floats]) -> Floats:
        count = len(inputs["noise"])
        cells = np.empty((count, *self.card.shape), np.float32)
        for start in range(0, count, self._part):
            part = cells[start : start + self._part]
            with self._sessions.idle(len(part)) as session:
                binding = session.io_binding()
                for name, values in inputs.items():
                    binding.bind_cpu_input(name, values[start : start + len(part)])
                binding.bind_output("cells_gev", "cpu", 0, np.float32, part.shape, part.ctypes.data)
                session.run_with_iobinding(binding)
        return cells


class OpenVinoRuntime(Runtime):
    """OpenVINO IR on the CPU, compiled for each size of batch: fixed shapes are a third quicker than open ones."""

    def __init__(self, folder: Path, *, precision: str, streams: int, threads: int | None) -> None:
        self._core = openvino_core()
        card = read_card(folder)
        capability, arithmetic = _OPENVINO[precision]
        if capability not in self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
            problem = "this processor has no instructions for it"
            raise InputError(problem, field="precision", value=precision, remedy="use --precision float32")
        self._model = self._core.read_model(exported(folder, "openvino-int8" if precision == "int8" else "openvino"))
        self._settings: dict[str, Any] = {
            "INFERENCE_PRECISION_HINT": arithmetic,
            "NUM_STREAMS": streams,
            # OpenVINO begins with the first core: processes with a part of the cores would share it.
            "ENABLE_CPU_PINNING": threads is None,
        }
        if threads is not None:
            self._settings["INFERENCE_NUM_THREADS"] = threads
        self._requests = PerBatch(self._requests_for)
        self._first = threading.Lock()
        self._initialised = False
        noise_size = self._model.input("noise").get_partial_shape()[1].get_length()
        super().__init__(card, noise_size, precision=precision, streams=streams)

    def _compute(self, inputs: dict[str, Floats]) -> Floats:
        # The bindings initialise static variables in the first inference, with the interpreter's lock held or
        # wanted: two first inferences at a time can wait for each other for ever, and no signal is seen then.
        with nullcontext() if self._initialised else self._first:
            cells = self._infer(inputs)
            self._initialised = True
            return cells

    def _infer(self, inputs: dict[str, Floats]) -> Floats:
        with self._requests.idle(len(inputs["noise"])) as request:
            request.start_async(inputs)
            request.wait()
            return request.get_tensor("cells_gev").data.copy()

    def _requests_for(self, batch: int) -> list[Any]:
        """Of the model compiled for this size of batch."""
        model = self._model.clone()
        model.reshape({"noise": [batch, self.noise_size], **{name: [batch] for name in self.card.columns}})
        compiled = self._core.compile_model(model, "CPU", self._settings)
        return [compiled.create_infer_request() for _ in range(self.streams)]
