"""Analysis after the training, from the checkpoints of the generators: residuals, spread, curves. No TensorFlow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caloscale.sagips.saves import list_checkpoints, read_checkpoint

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Residuals:
    """Residuals of normalised parameters at one checkpoint."""

    epoch: int
    seconds: float
    """Wall time of the run until then, s; the mean over the ranks."""
    mean: Floats
    """Mean over generators and noise, (parameters,)."""
    spread: Floats
    """Standard deviation over the generators at equal noise, averaged over the noise, (parameters,)."""
    noise: Floats
    """Standard deviation over the noise, averaged over the generators, (parameters,)."""

    @property
    def mean_absolute(self) -> float:
        """Mean over the parameters of the absolute mean residuals."""
        return float(np.abs(self.mean).mean())


def residuals(truth: Sequence[float], proposals: NDArray[np.float32]) -> tuple[Floats, Floats, Floats]:
    """Mean, spread and noise of (p - p^) / p, as in `Residuals`.

    truth: (parameters,); proposals: (generators, samples, parameters), row by row from the same noise.
    """
    true = np.asarray(truth, np.float64)
    relative = (true - proposals.astype(np.float64)) / true
    return relative.mean(axis=(0, 1)), relative.std(axis=0).mean(axis=0), relative.std(axis=1).mean(axis=0)


def residuals_over_time(folder: Path, truth: Sequence[float], ranks: int) -> list[Residuals]:
    """Residuals at each checkpoint that all ranks have written, in order. Raises CheckpointError for a damaged one."""
    found = []
    for epoch in list_checkpoints(folder):
        if len(list((folder / "checkpoints" / f"epoch-{epoch:08d}").glob("rank-*.npz"))) < ranks:
            continue
        copies = [read_checkpoint(folder, epoch, rank) for rank in range(ranks)]
        statistics = residuals(truth, np.stack([copy.parameters for copy in copies]))
        found.append(Residuals(epoch, float(np.mean([copy.seconds for copy in copies])), *statistics))
    return found
