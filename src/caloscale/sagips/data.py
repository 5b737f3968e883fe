"""Measured events: made from the true parameters, or read from HDF5."""

import hashlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from caloscale.errors import ConfigurationError, InputError
from caloscale.random import EventDraws
from caloscale.sagips.environment import EVENTS, NORMS, PARAMETERS, Environment, make_environment
from caloscale.showers.hdf5.datasets import file_error, find_dataset
from caloscale.spec import DataSet, Solver

DEFAULT_EVENTS = 1_000_000
_BLOCK = 1_000_000
"""Events of a file that are in memory at a time, in addition to the events that are used."""
_BLOCKS_OF_RANK = 64
"""Blocks of a file that a shard has at least, if the file has as many events."""
_PER_ROW = 1000
"""Events that are made from the truth in one row of parameters."""
_SAMPLE = 16
"""Numbers of events by which a pipeline is recognised."""
_SECTION = 255
"""Section of the random numbers of measured events; those of an epoch are from 0 on."""


def measured_events(data: DataSet, index: int, seed: int, rank: int = 0, ranks: int = 1) -> NDArray[np.float32]:
    """Measured events (events, observables) of a data set: all, or those of one of ``ranks`` shards.

    Nothing else than the shard is made or read. index: the data set's number in the run configuration. Shards of the
    same seed are disjoint, and together they are all events. Raises ConfigurationError where the truth is not known,
    InputError naming the file and what is wrong with it.
    """
    field = f"solver.dataSets.{index}"
    environment = make_environment(data.environment, data.options, _PER_ROW, f"{field}.environment")
    if data.source != "truth":
        random = np.random.default_rng([seed, index])
        observables = len(environment.observables)
        return _read(Path(data.source), data, observables, f"{field}.source", random, rank, ranks)
    if environment.truth is None:
        problem = f"the truth of {data.environment} is not known"
        remedy = "write the path of an HDF5 file with measured events, or give the environment a truth"
        raise ConfigurationError(problem, field=f"{field}.source", value=data.source, remedy=remedy)
    truth = tf.constant([environment.truth], tf.float32)
    count = data.events or DEFAULT_EVENTS
    first, end = count * rank // ranks, count * (rank + 1) // ranks
    row = first // _PER_ROW
    rows = -(-end // _PER_ROW) - row
    key = seed + (index << 32)  # apart from those of other seeds, too
    values = environment({PARAMETERS: tf.repeat(truth, rows, axis=0)}, EventDraws(key, 0, _SECTION, row, rows))
    events_of_rows = tf.reshape(values[EVENTS], (rows * _PER_ROW, len(environment.observables)))
    events: NDArray[np.float32] = events_of_rows[first - row * _PER_ROW : end - row * _PER_ROW].numpy()
    if not np.isfinite(events).all():
        problem, remedy = "makes NaN or infinite events from its true parameters", "correct the pipeline"
        raise ConfigurationError(problem, field=f"{field}.environment", value=data.environment, remedy=remedy)
    return events


def measured_norms(environment: Environment) -> tf.Tensor | None:
    """Norms (norms,) of the true parameters; None where the pipeline or its truth has none."""
    if environment.truth is None:
        return None
    values = environment({PARAMETERS: tf.constant([environment.truth], tf.float32)}, EventDraws(0, 0, _SECTION, 0, 1))
    return values[NORMS][0] if NORMS in values else None


def sample_of(environment: Environment, name: str, events_per_sample: int, field: str) -> tuple[float, ...]:
    """Numbers by which a resumed run recognises its pipeline: the truth, and a few events of the parameters 0.5.

    Of a pipeline with random numbers of its own, which makes other events each time, they are the hash of the code of
    its package instead. name: of its class. Raises ConfigurationError naming the field for events of another shape.
    """
    parameters = tf.fill((1, len(environment.parameters)), 0.5)
    first, second = (environment({PARAMETERS: parameters}, EventDraws(0, 0, _SECTION, 0, 1)) for _ in range(2))
    shape, wanted = getattr(first.get(EVENTS), "shape", None), (1, events_per_sample, len(environment.observables))
    if shape != wanted:
        problem = f"makes events of the shape {shape and tuple(shape)} from one parameter vector, not {wanted}"
        remedy = f"return a tensor (samples, events, observables) under the name {EVENTS!r}"
        raise ConfigurationError(problem, field=field, remedy=remedy)
    events, again = (tf.reshape(one[EVENTS], (-1,))[:_SAMPLE].numpy().astype(float) for one in (first, second))
    if not np.allclose(events, again, equal_nan=True):
        return (*(environment.truth or ()), *map(float, _hash_of_code(name.partition(".")[0])))
    largest = np.abs(events).max(initial=0) or 1.0
    return (*(environment.truth or ()), float(largest), *(events / largest).tolist())


def _hash_of_code(package: str) -> bytes:
    """SHA-256 of the modules of a package that are loaded."""
    digest = hashlib.sha256()
    for name, module in sorted(sys.modules.items(), key=lambda item: item[0]):
        file = Path(getattr(module, "__file__", None) or "")
        if name.partition(".")[0] == package and file.is_file():
            digest.update(file.read_bytes())
    return digest.digest()


def _read(
    file: Path, data: DataSet, observables: int, field: str, random: np.random.Generator, rank: int, ranks: int
) -> NDArray[np.float32]:
    """Events of a shard of a file, which may be sorted: of at most ``data.events``, drawn from all; in random order."""
    import h5py

    try:
        with h5py.File(file) as opened:
            array = find_dataset(file, opened, data.dataset)
            if array is None:
                problem = f"has no array {data.dataset!r}"
                remedy = f"write one of: {', '.join(opened)}"
                raise InputError(problem, file=file, field=field.replace("source", "dataset"), remedy=remedy)
            if array.ndim != 2 or array.shape[1] != observables or not array.shape[0]:
                problem = f"the array {data.dataset!r} has the shape {array.shape}, not (events, {observables})"
                remedy = f"write an array with {observables} columns: the observables of {data.environment}"
                raise InputError(problem, file=file, field=field, remedy=remedy)
            events = _drawn(array, min(len(array), data.events or len(array)), random, rank, ranks)
    except InputError:
        raise
    except Exception as error:  # a damaged file makes HDF5 raise nearly anything
        raise file_error(file, error) from error
    if not np.isfinite(events).all():
        problem = f"the array {data.dataset!r} has values that are not finite"
        raise InputError(problem, file=file, field=field, remedy="remove these events")
    return events


def _drawn(array: Any, events: int, random: np.random.Generator, rank: int, ranks: int) -> NDArray[np.float32]:
    """A shard of ``events`` rows of an HDF5 dataset, each set of them equally likely.

    Rank r has every ``ranks``-th block of rows from block r on, so every shard has rows of all parts of the file. All
    ranks draw the same random rows, and each reads only those in its own blocks.
    """
    size = min(_BLOCK, max(1, len(array) // (ranks * _BLOCKS_OF_RANK))) if ranks > 1 else _BLOCK
    own, left = [np.empty((0, array.shape[1]), np.float32)], events
    for number, start in enumerate(range(0, len(array), size)):
        rows = min(size, len(array) - start)
        count = int(random.hypergeometric(left, len(array) - start - left, rows))
        chosen = random.choice(rows, count, replace=False)
        left -= count
        if number % ranks == rank:
            own.append(array[start : start + rows][chosen].astype(np.float32))
    return random.permutation(np.concatenate(own))


def fraction_of_rank(
    events: NDArray[np.float32], solver: Solver, rank: int, random: np.random.Generator
) -> NDArray[np.float32]:
    """The fraction (events, observables) of its events that a rank draws once, without replacement.

    Raises ConfigurationError when nothing is left.
    """
    kept = round(solver.data_fraction * len(events))
    if kept == 0:
        problem = f"leaves rank {rank} no measured events"
        remedy = "use fewer ranks, data: broadcast, or a larger dataFraction"
        raise ConfigurationError(problem, field="solver.dataFraction", value=solver.data_fraction, remedy=remedy)
    if kept == len(events):
        return events
    return events[np.sort(random.choice(len(events), kept, replace=False))]
