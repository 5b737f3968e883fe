"""The primaries that enter the calorimeter: drawn for each file from the seed and the number of the file alone."""

import math

import numpy as np
from numpy.typing import NDArray

from caloscale.showers.primaries import Floats, draw_table
from caloscale.spec import Data

_LARGEST_BATCH = 32
"""Showers; bounds the memory of a batch."""


def draw_primaries(data: Data, index: int) -> tuple[dict[str, Floats], np.random.SeedSequence]:
    """The table of primaries of file ``index``, exactly as it is written into the file, and the random state from which
    everything after the front face is drawn.

    They depend on the seed and the index only, not on the other files or the number of processes.
    """
    kinematics, transport = np.random.SeedSequence(data.seed, spawn_key=(index,)).spawn(2)
    count = showers_in_file(data)
    return draw_table(data, count, np.random.default_rng(kinematics), first=index * count), transport


def file_count(data: Data) -> int:
    """Files of a simulation: as many as ``data.showers`` training showers need beside those for validation.

    The split is by file (`caloscale.showers.sources.split_files`), so there are at least two.
    """
    per_file = showers_in_file(data)
    wanted = math.ceil((data.showers or 1) / per_file)
    files = max(2, math.ceil(wanted / (1 - data.validation_fraction)))
    while files - min(files - 1, max(1, round(data.validation_fraction * files))) < wanted:
        files += 1
    return files


def showers_in_file(data: Data) -> int:
    """Showers in each file, all files the same: showersPerFile, or all training showers where those are fewer."""
    return min(data.simulation.showers_per_file, data.showers or 1)


def batches(energy_gev: NDArray[np.float32], batch_energy_gev: float) -> list[slice]:
    """Consecutive showers of at most ``batch_energy_gev`` in total, 1 to 32: the work between two reports."""
    slices, start, total = [], 0, 0.0
    for i, energy in enumerate(energy_gev):
        if i > start and (total + float(energy) > batch_energy_gev or i - start >= _LARGEST_BATCH):
            slices.append(slice(start, i))
            start, total = i, 0.0
        total += float(energy)
    return [*slices, slice(start, len(energy_gev))]
