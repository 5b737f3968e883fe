"""The shards of a run that trains on a cluster: prepared once, by worker 0, for all workers and attempts."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from caloscale.showers.tfrecord.manifest import MANIFEST
from caloscale.showers.tfrecord.shard_folder import ShardFolder
from caloscale.spec import Run
from caloscale.spec.workspace_layout import DATASET
from caloscale.stages.preprocessing import preprocess
from caloscale.stages.simulation import simulate
from caloscale.storage.objects import is_remote, read_object, upload

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""Time between two requests of a worker that waits for the shards, s."""


def provide_shards(
    run: Run, scratch: Path, *, workspace: str | None, given: str | None = None, chief: bool = True
) -> ShardFolder:
    """The shards that a worker trains on; ``scratch`` is its own disk.

    ``given``: prepared shards. Else, with a ``workspace`` (a folder that all workers see, or a prefix
    in a bucket), worker 0 simulates or fetches and prepares the showers, puts the shards there, and the others wait
    for them; a later attempt finds them there. Without one, each worker prepares them for itself: they are equal.
    Raises what these stages raise.
    """
    if given is None and workspace is None:
        return ShardFolder(_prepare(run, str(scratch / "run"), scratch / "showers", scratch / DATASET))
    shards = given or f"{str(workspace).rstrip('/')}/{DATASET}"
    if given is None and not _is_whole(shards):
        if not chief:
            _wait_for(shards)
        elif is_remote(shards):
            made = _prepare(run, str(workspace), scratch / "showers", scratch / DATASET)
            upload(made, shards)
            return ShardFolder(made)
        else:
            _prepare(run, str(workspace), scratch / "showers", Path(shards))
    return ShardFolder(scratch / DATASET, shards) if is_remote(shards) else ShardFolder(Path(shards))


def _prepare(run: Run, workspace: str, showers: Path, dataset: Path) -> Path:
    simulate(run, workspace, showers)
    preprocess(run, workspace, showers, dataset)
    return dataset


def _is_whole(shards: str) -> bool:
    """Whether shards are there: their manifest comes last."""
    return read_object(f"{shards}/{MANIFEST}") is not None


def _wait_for(shards: str) -> None:
    """Return when the shards are there; should worker 0 fail, the operator ends this worker, too."""
    log.info("waiting for worker 0, which prepares the showers in %s", shards)
    while not _is_whole(shards):
        time.sleep(POLL_SECONDS)
