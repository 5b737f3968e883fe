"""The generator in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from caloscale.errors import InputError
from caloscale.inference.export.runtimes import exported
from caloscale.inference.packages import load, open_session
from caloscale.inference.runtime import Floats, PerBatch, Runtime, suitable_batch
from caloscale.models.card import read_card

_CELLS_AT_ONCE = 2**17
"""Cells of the showers that a call computes: its intermediate results stay in the cache of a core."""


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
        super().__init__(card, noise_size, streams=streams, threads=threads)

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
