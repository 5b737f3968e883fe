"""Runs that benches train once and use again, and Monte Carlo showers that no training has seen."""

import hashlib
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from caloscale.errors import InputError
from caloscale.showers.arrays import Showers
from caloscale.showers.tfrecord.manifest import MANIFEST
from caloscale.showers.tfrecord.shards import preprocess_showers, read_split
from caloscale.simulation import simulate
from caloscale.spec import Run, dump_run, load_run
from caloscale.stages.showers import cache_folder

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "runs"
TRAINED_RUNS = RUNS / "trained"
"""Apart from the runs of a person: `runs/latest` does not move."""
GEANT4_SHOWERS = 3950
"""Of them, where Geant4 itself is judged: the half hour of two cores that they take."""
HELD_OUT_SEED = 20_261_122
"""Seed of the simulation of the showers that judge: the presets train on those of seed 1."""


def identity(run: Run) -> str:
    """Eight hexadecimal digits that change with any field of a run configuration."""
    return hashlib.sha256(dump_run(run).encode()).hexdigest()[:8]


NO_LIMIT = "train.maxMinutes=null"
"""Override for trainings that are compared: they make as many steps on a busy machine as on a quiet one."""


def trained(*, preset: str, overrides: Sequence[str] = ()) -> Path:
    """Folder of the finished run of a preset with these overrides; it is made, or resumed, if it is not finished.

    Benches that need the same training share it. A run of another configuration (an edited preset) has another name;
    after a change of the networks' code delete runs/trained.
    """
    folder = TRAINED_RUNS / f"{preset}-{identity(load_run(preset=preset, overrides=overrides))}"
    if not (folder / "validation" / "physics.json").is_file():
        options = [word for override in overrides for word in ("--set", override)]
        command = ("run", "--preset", preset, "--name", folder.name, "--runs", str(TRAINED_RUNS), *options)
        subprocess.run([sys.executable, "-m", "caloscale.cli.main", *command], check=True, cwd=ROOT)
    return folder


def held_out_showers(count: int, run: Run) -> Showers:
    """At most ``count`` simulated showers of a run's detector, energies and angles from a seed of their own.

    The simulation is kept in the user's cache and resumes there; showers below the minimum sum are dropped. Raises
    InputError for a run of showers that are not simulated: no others are known.
    """
    if run.data.source != "simulate":
        problem, remedy = "names showers of which no others can be simulated", "give the run of a preset"
        raise InputError(problem, field="data.source", value=run.data.source, remedy=remedy)
    apart = {"showers": count, "seed": HELD_OUT_SEED, "validation_fraction": 0.01}
    data = run.data.model_copy(update=apart)
    cache = cache_folder(data)
    simulate(data, cache)
    shards = TRAINED_RUNS / f"held-out-{hashlib.sha256(data.as_json().encode()).hexdigest()[:8]}"
    if not (shards / MANIFEST).is_file():
        TRAINED_RUNS.mkdir(parents=True, exist_ok=True)
        preprocess_showers(data, cache, shards)
    return read_split(shards, "train")
