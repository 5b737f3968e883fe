"""One network of dense layers on several workers: its images shared among them, or its layers.

Data-parallel: each worker has all weights and a share of the images; the gradients are averaged. Model-parallel: each
worker has a share of the outputs of every layer and all images; outputs are gathered, and the gradients with respect
to a layer's inputs are summed. The network is the dense part of AlexNet (58.6 of its 61 million parameters), for which
Krizhevsky proposed model parallelism (arXiv:1404.5997).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import Field

from caloscale.errors import ConfigurationError
from caloscale.spec.block import Block
from caloscale.studies.inputs import validated
from caloscale.studies.ranks import run_ranks

RESULT_FILE = "result.json"


class ParallelismInputs(Block):
    """Training steps of dense layers on several workers."""

    method: Literal["data", "model"] = "data"
    """What is divided among the workers."""
    workers: int = Field(1, ge=1, le=64)
    """Processes."""
    threads: int = Field(1, ge=1)
    """Threads of a worker."""
    batch: int = Field(32, ge=1)
    """Images of a step of all workers."""
    widths: tuple[int, ...] = Field((9216, 4096, 4096, 1000), min_length=2)
    """Inputs of the first layer, and outputs of each."""
    steps: int = Field(3, ge=1)
    """Steps that are timed, after one that is not."""

    def check(self) -> None:
        """Raise ConfigurationError when the workers cannot share images or outputs equally."""
        divided = {"batch": [self.batch]} if self.method == "data" else {"widths": list(self.widths[1:])}
        for field, numbers in divided.items():
            if any(number % self.workers for number in numbers):
                raise ConfigurationError(
                    f"cannot be divided by {self.workers} workers", field=field, value=numbers, remedy="use multiples"
                )


def time_parallelism(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Steps of stochastic gradient descent on synthetic images.

    Result: ``stepSeconds`` and of these ``exchangeSeconds`` (waiting included) and ``computeSeconds``, means over the
    steps of the slowest worker; ``exchangedMib``, what a worker gives into exchanges in a step; ``imagesPerSecond``;
    ``loss`` of the last step, the same for both methods and any number of workers but for rounding.
    Raises ConfigurationError, TrainingError.
    """
    asked = validated(ParallelismInputs, inputs)
    asked.check()
    with TemporaryDirectory(prefix="caloscale-study-") as temporary:
        run_ranks("parallelism_rank", asked.workers, [asked.model_dump_json(), temporary], asked.threads)
        found: dict[str, Any] = json.loads((Path(temporary) / RESULT_FILE).read_text(encoding="utf-8"))
    return {**found, "imagesPerSecond": asked.batch / found["stepSeconds"]}
