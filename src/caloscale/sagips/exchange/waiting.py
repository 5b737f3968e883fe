"""How a rank waits for messages."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mpi4py import MPI

NAP_SECONDS = 20e-6
"""Time between two looks; Linux adds about 50 us."""


def is_crowded() -> bool:
    """Whether this machine has more ranks than cores for them."""
    return int(os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", "1")) > len(os.sched_getaffinity(0))


_CROWDED = is_crowded()


def wait(requests: Sequence[MPI.Request]) -> None:
    """Return when all requests are done.

    MPI waits with a busy core, which takes microseconds where every rank has a core of its own. Where it has not, the
    rank that is waited for needs the core: then this one sleeps between two looks.
    """
    from mpi4py import MPI

    if not _CROWDED:
        MPI.Request.Waitall(requests)
        return
    while not MPI.Request.Testall(requests):
        time.sleep(NAP_SECONDS)
