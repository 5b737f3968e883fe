"""A process that measures messages and rings of messages, started by mpiexec; rank 0 writes the result."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from mpi4py import MPI

from caloscale.sagips.exchange import ChunkRing
from caloscale.sagips.remote_memory import Floats

WARM_UP = 3


def timed(world: MPI.Intracomm, rounds: int, work: Callable[[], None]) -> float:
    """Median over the rounds of the time that the slowest rank takes, s."""
    seconds = []
    for _ in range(WARM_UP + rounds):
        world.Barrier()
        clock = time.perf_counter()
        work()
        seconds.append(world.allreduce(time.perf_counter() - clock, MPI.MAX))
    return statistics.median(seconds[WARM_UP:])


def main(size: int, rounds: int, target: Path) -> None:
    """size: bytes of the vector that is summed."""
    world = MPI.COMM_WORLD
    vector = np.ones(max(1, size // 4), np.float32)
    ring = ChunkRing(world, range(world.size))
    following, before = (world.rank + 1) % world.size, (world.rank - 1) % world.size

    def shift(buffer: Floats) -> Callable[[], None]:
        return partial(world.Sendrecv, buffer, following, recvbuf=np.empty_like(buffer), source=before)

    small, large = (timed(world, rounds, shift(buffer)) for buffer in (np.ones(1, np.float32), vector))
    measured = timed(world, rounds, lambda: ring.add_others(np.ones_like(vector)))
    ring.add_others(vector)
    correct = world.allreduce(bool((vector == world.size).all()), MPI.LAND)
    if world.rank == 0:
        found = {"latencySeconds": small, "bytesPerSecond": vector.nbytes / max(large - small, 1e-9)}
        found |= {"measuredSeconds": measured, "correct": correct, "bytes": vector.nbytes}
        target.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
