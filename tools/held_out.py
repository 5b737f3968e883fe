"""Monte Carlo showers that no training has seen, for the programs that judge a finished run."""

import hashlib
from pathlib import Path

from caloscale.errors import InputError
from caloscale.showers.arrays import Showers
from caloscale.showers.tfrecord.manifest import MANIFEST
from caloscale.showers.tfrecord.shards import preprocess_showers, read_split
from caloscale.simulation import simulate
from caloscale.spec import Run
from caloscale.stages.showers import cache_folder

RUNS = Path(__file__).resolve().parent.parent / "runs"
GEANT4_SHOWERS = 3950
"""Of them, where Geant4 itself is judged: the half hour of two cores that they take."""
SEED = 20_261_122
"""Seed of the simulation of the showers that judge: the presets train on those of seed 1."""


def held_out_showers(count: int, run: Run) -> Showers:
    """At most ``count`` simulated showers of a run's detector, energies and angles from a seed of their own.

    The simulation is kept in the user's cache and resumes there; showers below the minimum sum are dropped. Raises
    InputError for a run of showers that are not simulated: no others are known.
    """
    if run.data.source != "simulate":
        problem, remedy = "names showers of which no others can be simulated", "give the run of a preset"
        raise InputError(problem, field="data.source", value=run.data.source, remedy=remedy)
    data = run.data.model_copy(update={"showers": count, "seed": SEED, "validation_fraction": 0.01})
    cache = cache_folder(data)
    simulate(data, cache)
    shards = RUNS / "held-out" / hashlib.sha256(data.as_json().encode()).hexdigest()[:8]
    if not (shards / MANIFEST).is_file():
        shards.parent.mkdir(parents=True, exist_ok=True)
        preprocess_showers(data, cache, shards)
    return read_split(shards, "train")
