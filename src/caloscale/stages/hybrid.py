"""Showers of Geant4 and generators together: what enters the calorimeter within a trained range is generated."""

import hashlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from caloscale import simulation
from caloscale.errors import InputError, ShowerFileError
from caloscale.inference.export.runtimes import rejection
from caloscale.inference.generator import Generator, load_generator
from caloscale.inference.stream import generate_table
from caloscale.models.card import CARD, GENERATOR
from caloscale.progress import bar
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.layouts import REBIN_ATTRIBUTE, open_layout
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.preprocessing import rebin
from caloscale.showers.sources import hdf5_files, origin_attributes
from caloscale.simulation.entering import TAKEN_CODES, moved, placed, read_entering
from caloscale.simulation.files import file_name
from caloscale.simulation.primaries import file_count
from caloscale.spec import Data
from caloscale.spec.block import Block

log = logging.getLogger(__name__)

GEANT4_PART = "geant4"
"""Folder of what Geant4 simulated, within that of the showers."""
_IDENTITY = "hybrid"
"""Attribute of a file: which simulation and generators made it."""


class HybridRecord(Block):
    """What a hybrid simulation did."""

    showers: int
    """Showers in all files."""
    generated: int
    """Particles that the generators took over."""
    generated_energy: float
    """Their energy over that of the primaries."""
    geant4_core_seconds_per_shower: float
    """Processor time of Geant4, s; 0 when it was not measured."""
    generator_seconds_per_shower: float
    """Time of the generators for a shower of the files that were made now, s; 0 when all were there."""


def simulate_hybrid(data: Data, models: Sequence[Path], folder: Path) -> HybridRecord:
    """Simulate the showers of a data block into ``folder`` with the generators of model folders.

    Geant4 carries the particles through `data.front`. One that enters the calorimeter goes to the first generator whose
    primary, energies and directions it has; its generated shower is moved to its place of entry (`entering.placed`).
    Geant4 continues with the others. Files as those of `simulate`, of re-binned cells; finished ones are kept. Warns of
    a model that its gates rejected. Raises InputError for models that do not fit the data, and what `simulate`,
    `load_generator` and `write_showers` raise.
    """
    generators = [load_generator(model) for model in models]
    for model, generator in zip(models, generators):
        _check(generator, model, data)
        for warning in rejection(model):
            log.warning(warning)
    accepted = [generator.card.primary_ranges() for generator in generators]
    part = folder / GEANT4_PART
    digest = hashlib.sha256(simulation.fingerprint(data, accepted).encode())
    for file in (model / name for model in models for name in (GENERATOR, CARD)):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    identity = digest.hexdigest()[:32]
    finished = hdf5_files(folder)
    for path in finished:
        with open_layout(path) as opened:
            of_file = opened.attributes.get(_IDENTITY)
        if of_file != identity:
            problem = "belongs to another simulation or other models, or to none"
            remedy = f"choose another folder than {path.parent}, or delete or move the file"
            raise ShowerFileError(problem, file=path, field=_IDENTITY, value=of_file, remedy=remedy)
    record = simulation.simulate(data, part, accepted)
    attributes: dict[str, str | int | float] = {
        _IDENTITY: identity,
        **origin_attributes(data),
        REBIN_ATTRIBUTE: "x".join(map(str, data.preprocessing.rebin)),
        "seed": data.seed,
    }
    count, energy_gev, primaries_gev, seconds, timed = 0, 0.0, 0.0, 0.0, 0
    files = range(file_count(data))
    with bar("generated showers", len(files), "files") as shown:
        for index in files:
            entering, path = read_entering(part, index), folder / file_name(index)
            carried = read_showers(part / file_name(index), geometry=data.geometry)
            count, energy_gev = count + len(entering), energy_gev + float(entering["energy_gev"].sum(dtype=float))
            primaries_gev += float(carried.energy_gev.sum(dtype=float))
            if path not in finished:
                begun = time.perf_counter()
                showers = _add_generated(carried, entering, generators, data, index)
                seconds, timed = seconds + time.perf_counter() - begun, timed + len(showers)
                write_showers(path, showers, attributes=attributes)
            shown.update(1)
    return HybridRecord(
        showers=record.showers,
        generated=count,
        generated_energy=energy_gev / primaries_gev,
        geant4_core_seconds_per_shower=record.core_seconds_per_shower,
        generator_seconds_per_shower=seconds / timed if timed else 0.0,
    )


def _add_generated(
    carried: Showers, entering: NDArray[np.void], generators: Sequence[Generator], data: Data, index: int
) -> Showers:
    cells = rebin(carried.cells_gev, data.preprocessing.rebin).copy()
    for number, generator in enumerate(generators):
        mine = entering[entering["generator"] == number]
        if not len(mine):
            continue
        # Another seed for each file and generator, and none that Geant4 has.
        (seed,) = np.random.SeedSequence(data.seed, spawn_key=(index, 2, number)).generate_state(1)
        primaries, moves = placed(mine, generator.card, data.geometry, data.preprocessing.rebin)
        generated = generate_table(generator, primaries, seed=int(seed))
        for event, one, (x, y) in zip(mine["event"], generated.cells_gev, moves.tolist()):
            cells[event] += moved(one, x, y)
    return replace(carried, cells_gev=cells, source="generated")


def _check(generator: Generator, model: Path, data: Data) -> None:
    """InputError unless the model's showers are those of one particle that enters, in the cells of the data."""
    card, trained = generator.card, generator.run.data
    for field, found, wanted in (
        ("geometry", card.geometry, data.geometry),
        ("preprocessing.rebin", card.preprocessing.rebin, data.preprocessing.rebin),
    ):
        if found != wanted:
            problem = f"is a generator of another detector than the run configuration: data.{field} differs"
            remedy = f"set data.{field} to it, or give a model that was trained with {str(wanted)[:200]}"
            raise InputError(problem, file=model / CARD, field=field, value=str(found)[:200], remedy=remedy)
    for field, value, what in (
        ("front", [plate.as_values() for plate in trained.front], "showers behind plates"),
        ("pairDistanceMm", trained.pair_distance_mm, "pairs"),
    ):
        if value:
            problem = f"is a generator of {what}, and one particle at the face of the calorimeter is to be generated"
            remedy = f"give a model that was trained without data.{field}"
            where = f"configuration.data.{field}"
            raise InputError(problem, file=model / CARD, field=where, value=str(value)[:200], remedy=remedy)
    if card.geometry.cell_shape != "grid":
        problem, shape = "is a cylinder around one particle, and several enter", card.geometry.cell_shape
        remedy = "give a model of a regular grid"
        raise InputError(problem, file=model / CARD, field="geometry.cellShape", value=shape, remedy=remedy)
    if card.has_hadrons:
        problem = "is no primary that a generator takes over in a hybrid simulation"
        remedy = f"give a model of {' or '.join(TAKEN_CODES)}"
        raise InputError(problem, file=model / CARD, field="particle", value=card.particle_text, remedy=remedy)
