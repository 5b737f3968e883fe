"""The generator in TensorFlow, as it was trained."""

from __future__ import annotations

from pathlib import Path

import tensorflow as tf

from caloscale.errors import InputError
from caloscale.inference.generator import load_generator
from caloscale.inference.runtime import Floats, Runtime


class TensorFlowRuntime(Runtime):
    """Keras network and preprocessing as one compiled graph."""

    def __init__(self, folder: Path, *, precision: str, streams: int, threads: int | None) -> None:
        if precision != "float32":
            raise InputError(
                "TensorFlow computes released generators in float32",
                field="precision",
                value=precision,
                remedy="use --runtime openvino for bfloat16, or --precision float32",
            )
        if threads is not None:
            _limit_threads(threads)
        self._generator = load_generator(folder)
        super().__init__(self._generator.card, self._generator.noise_size, streams=streams, threads=threads)

    def _compute(self, noise: Floats, energy_gev: Floats, angle_rad: Floats) -> Floats:
        cells: Floats = self._generator.cells_gev(noise, energy_gev, angle_rad).numpy()
        return cells


def _limit_threads(threads: int) -> None:
    threading = tf.config.threading
    if threading.get_intra_op_parallelism_threads() == threads:
        return
    try:
        threading.set_intra_op_parallelism_threads(threads)
        threading.set_inter_op_parallelism_threads(threads)
    except RuntimeError as error:
        raise InputError(
            "cannot change once TensorFlow has started",
            field="threads",
            value=threads,
            remedy="set them in a process of its own, before anything else uses TensorFlow",
        ) from error
