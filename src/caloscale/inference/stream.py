"""Any number of showers, in order, with several batches on their way at once."""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import GenerationError, InputError
from caloscale.inference.primaries import Primaries, check_columns, check_ranges, check_trained
from caloscale.inference.runtime import Runtime, suitable_batch
from caloscale.progress import bar
from caloscale.random import latent_noise
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.reader import check_primaries

log = logging.getLogger(__name__)

BATCH_SECONDS = 600.0
"""Longest time for a batch, s; a runtime that takes longer has stalled."""
CHECK_SECONDS = 0.2
"""While a batch is waited for, `check` is called so often, s."""
_CELLS_IN_BATCH = 2**20
"""Cells of a batch of `generate_table`, whose showers stay in memory: 16 showers of 51 x 51 x 25 cells."""
_WORTH_A_BAR = 20_000
"""Showers from which on progress of `generate_table` is shown."""
CLOSING_SECONDS = 30.0
"""Longest wait for the batches in progress when the generation ends early, s."""


def stream(
    runtime: Runtime,
    primaries: Primaries,
    *,
    seed: int,
    count: int,
    first: int = 0,
    batch: int | None = None,
    check: Callable[[], object] = lambda: None,
    finite: bool = True,
) -> Generator[Showers, None, None]:
    """Batches of the showers first, first + 1, ... (count in all), in order.

    ``runtime.streams`` batches are computed at the same time and one waits; more are not begun before they are
    taken, so memory does not grow. A shower depends on the seed and its number alone. ``check`` is called before and
    while a batch is waited for; what it raises ends the generation. finite: refuse cells that are not finite; a
    validation takes them, and rejects the generator.
    The primaries are not checked (`check_ranges`). Raises InputError for a batch below 1 and such cells;
    GenerationError when no batch is finished within `BATCH_SECONDS`.
    """
    batch = suitable_batch(runtime.card.shape) if batch is None else batch
    if batch < 1:
        raise InputError("must be at least 1", field="batch", value=batch, remedy="give 1 or more")
    batch = min(batch, max(count, 1))

    def make(start: int) -> Showers:
        # The last batch is filled up: a runtime need not prepare for another size.
        table = primaries.of(start, batch)
        noise = latent_noise(seed, start, batch, runtime.noise_size)
        cells = runtime.generate_batch(noise, **table, extrapolate=True)
        showers = Showers.of(cells, table, "generated", runtime.card.geometry.cell_shape)
        return showers[: min(batch, first + count - start)]

    def result(batch_in_progress: Future[Showers]) -> Showers:
        end = time.monotonic() + BATCH_SECONDS
        check()
        while not wait([batch_in_progress], timeout=min(CHECK_SECONDS, BATCH_SECONDS)).done:
            check()
            if time.monotonic() >= end:
                problem = f"no batch of {batch} showers was finished within {BATCH_SECONDS:g} s"
                raise GenerationError(problem, remedy="use fewer --streams, a smaller --batch, or another --runtime")
        showers = batch_in_progress.result()
        if finite and (bad := ~np.isfinite(showers.cells_gev).all(axis=(1, 2, 3))).any():
            energy_gev, angle_deg = showers.energy_gev[bad][0], math.degrees(showers.angle_rad[bad][0])
            value = f"{energy_gev:g} GeV, {angle_deg:g} degrees"
            remedy = "stay within the energies and angles that it was trained on; a generator that makes them there is "
            remedy += "rejected by `caloscale validate`"
            raise InputError("makes cells that are not finite", field="the generator", value=value, remedy=remedy)
        return showers

    waiting: deque[Future[Showers]] = deque()
    pool = ThreadPoolExecutor(runtime.streams, thread_name_prefix="generate")
    try:
        for start in range(first, first + count, batch):
            waiting.append(pool.submit(make, start))
            if len(waiting) > runtime.streams:
                yield result(waiting[0])
                waiting.popleft()
        while waiting:
            yield result(waiting[0])
            waiting.popleft()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        in_progress = [batch_begun for batch_begun in waiting if not batch_begun.cancelled()]
        if not wait(in_progress, timeout=CLOSING_SECONDS).not_done:
            pool.shutdown(wait=True)


def generate_table(
    runtime: Runtime,
    primaries: Mapping[str, NDArray[np.floating]],
    *,
    seed: int,
    batch: int | None = None,
    extrapolate: bool = False,
    finite: bool = True,
) -> Showers:
    """Showers of a table of primaries (N,) each, in GeV, re-binned; the same for the same seed and any batch.

    batch: absent: of at most `_CELLS_IN_BATCH` cells. extrapolate: also energies and angles that were not trained, with
    a warning. finite: as in `stream`. Raises InputError for these otherwise, for energies that are not positive, angles
    that are not within 0 and pi, numbers that are not finite or not of equal length, and further columns that are
    missing or go beyond what was trained.
    """
    card = runtime.card
    check_columns(primaries.keys() - {"energy_gev", "angle_rad"}, card)
    batch = suitable_batch(card.shape, _CELLS_IN_BATCH) if batch is None else batch
    table = {name: np.asarray(primaries[name], np.float32) for name in card.columns}
    shapes = tuple(column.shape for column in table.values())
    if len(set(shapes)) > 1 or len(shapes[0]) != 1:
        problem, remedy = "must be lists of equal length", "give (N,) for each"
        raise InputError(problem, field=", ".join(table), value=shapes, remedy=remedy)
    check_primaries("primaries", "plain", table)
    check_trained(table, card)
    for warning in check_ranges(table, card, extrapolate=extrapolate):
        log.warning(warning)
    cells = np.empty((len(table["energy_gev"]), *card.shape), np.float32)
    numbered = Primaries(table, seed, paired=True)
    done = 0
    with bar("generate", len(cells), "showers", disable=len(cells) < _WORTH_A_BAR) as shown:
        for part in stream(runtime, numbered, seed=seed, count=len(cells), batch=batch, finite=finite):
            cells[done : done + len(part)] = part.cells_gev
            done += len(part)
            shown.update(len(part))
    return Showers.of(cells, table, "generated", card.geometry.cell_shape)
