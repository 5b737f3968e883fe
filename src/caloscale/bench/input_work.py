"""The input pipeline as work."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from caloscale.bench.worker import Work
from caloscale.showers.tfrecord.manifest import read_manifest
from caloscale.spec import build_run
from caloscale.training.input import TrainingShowers

EPOCHS = 1_000_000
"""More than are ever read."""


def pipeline_work(configuration: dict[str, Any], folder: str, batch: int) -> tuple[Work, dict[str, Any]]:
    """Batches of a folder of shards; a unit is an epoch."""
    run = build_run(configuration)
    path = Path(folder)
    manifest = read_manifest(path)
    showers = TrainingShowers(path, manifest, batch, seed=run.train.seed, mirror=run.data.mirror)
    batches = iter(showers.batches(start=0, stop=EPOCHS * showers.steps_per_epoch))
    per_unit = showers.steps_per_epoch

    def work(units: int) -> None:
        for _ in range(units * per_unit):
            next(batches)

    clock = time.perf_counter()
    work(1)
    return work, {"showers": per_unit * batch, "firstEpochSeconds": time.perf_counter() - clock}
