"""The showers of a run: simulated, prepared as shards, and provided to the workers of a cluster."""

import logging
import os
import shutil
import time
from pathlib import Path
from typing import Any

from caloscale.showers.tfrecord.manifest import MANIFEST, Manifest
from caloscale.showers.tfrecord.shard_folder import ShardFolder
from caloscale.showers.tfrecord.shards import preprocess_showers
from caloscale.simulation import SimulationRecord, fingerprint
from caloscale.simulation import simulate as simulate_showers
from caloscale.simulation.record import RECORD_NAME
from caloscale.spec import Data, Preprocessing, Run
from caloscale.spec.workspace_layout import DATASET
from caloscale.stages.record import recorded
from caloscale.stages.workspace import open_workspace
from caloscale.storage.atomic import atomic_writer, make_folder
from caloscale.storage.cache import cache_root, writable_cache
from caloscale.storage.objects import is_remote, read_object, upload

log = logging.getLogger(__name__)

POLL_SECONDS = 2.0
"""Time between two requests of a worker that waits for the shards, s."""
_KEPT = {"provenance", "shards", "dropped", "energy_gev"}
"""What the report shows of the manifest."""


def simulated_part(data: Data) -> Data:
    """The data without what the simulated showers do not depend on."""
    return prepared_part(data).model_copy(update={"preprocessing": Preprocessing()})


def prepared_part(data: Data) -> Data:
    """The data without what the shards do not depend on. Of own showers, which may fill half of a range that mirrored
    copies fill, the warning of an empty end does."""
    return data.model_copy(update={"mirror": False}) if data.source == "simulate" else data


def simulate(data: Data, workspace: str | Path, showers: Path) -> SimulationRecord | None:
    """Simulate the showers of a run into the folder ``showers``; None when its data are not simulated.

    data: the `simulated_part` is enough. The showers are kept in the user's cache under the hash of all that determines
    them, from where another run, or one after an interruption, takes them.
    """
    with open_workspace(workspace) as folder, recorded("simulate", folder) as figures:
        make_folder(showers)
        if data.source != "simulate":
            figures["source"] = data.source
            return None
        writable_cache()
        cache = cache_root() / "showers" / fingerprint(data)
        record = simulate_showers(data, cache)
        for file in sorted(cache.iterdir()):
            if file.suffix in {".h5", ".json"}:
                _link(file, showers / file.name)
        figures.update(record.as_values())
        return record


def _link(source: Path, target: Path) -> None:
    """A second name for a file of the cache, which becomes read-only: one that is changed in the folder of a run would
    be changed in all others. A copy where the disk or the owner differs. Raises StorageError."""
    try:
        target.unlink(missing_ok=True)
        source.chmod(0o444)
        os.link(source, target)
    except OSError:
        with atomic_writer(target) as temporary:
            shutil.copy2(source, temporary)


def preprocess(data: Data, workspace: str | Path, showers: Path, dataset: Path) -> Manifest:
    """Prepare the simulated showers in ``showers``, or those of ``data.source``, as the folder ``dataset``.

    data: the `prepared_part` is enough.
    """
    with open_workspace(workspace) as folder, recorded("preprocess", folder) as figures:
        source = showers if data.source == "simulate" else data.source
        record = showers / RECORD_NAME
        simulated = data.source == "simulate" and record.is_file()
        manifest = preprocess_showers(data, source, dataset, record=record if simulated else None)
        figures.update(figures_of(manifest))
        return manifest


def figures_of(manifest: Manifest) -> dict[str, Any]:
    """The figures in the record of a stage about the showers that it made or trained on."""
    return {
        "source": manifest.source,
        "particle": manifest.particle,
        "showers": manifest.splits["train"],
        "validationShowers": manifest.splits["validation"],
        **manifest.model_dump(mode="json", by_alias=True, include=_KEPT),
    }


def provide_shards(
    run: Run, scratch: Path, *, workspace: str | None, given: str | None = None, chief: bool = True
) -> ShardFolder:
    """The shards that a worker trains on; ``scratch`` is its own disk.

    ``given``: prepared shards. Else, with a ``workspace`` (a folder that all workers see, or a prefix in a bucket),
    worker 0 makes the shards there, and the others, and later attempts, find them. Without one, each worker prepares
    them for itself: they are equal. Raises what these stages raise.
    """
    if given is None and workspace is None:
        return ShardFolder(_prepare(run, str(scratch / "run"), scratch / "showers", scratch / DATASET))
    shards = given or f"{str(workspace).rstrip('/')}/{DATASET}"
    if given is None and not _is_whole(shards):
        if not chief:
            _wait_for(shards)
        elif is_remote(shards):
            prepared = _prepare(run, str(workspace), scratch / "showers", scratch / DATASET)
            upload(prepared, shards)
            return ShardFolder(prepared)
        else:
            _prepare(run, str(workspace), scratch / "showers", Path(shards))
    return ShardFolder(scratch / DATASET, shards) if is_remote(shards) else ShardFolder(Path(shards))


def _prepare(run: Run, workspace: str, showers: Path, dataset: Path) -> Path:
    with open_workspace(workspace, run):
        pass  # one that holds another run is refused before it changes
    simulate(run.data, workspace, showers)
    preprocess(run.data, workspace, showers, dataset)
    return dataset


def _is_whole(shards: str) -> bool:
    """Whether shards are there: their manifest comes last."""
    return read_object(f"{shards}/{MANIFEST}") is not None


def _wait_for(shards: str) -> None:
    """Return when the shards are there; should worker 0 fail, the operator ends this worker, too."""
    log.info("waiting for worker 0, which prepares the showers in %s", shards)
    while not _is_whole(shards):
        time.sleep(POLL_SECONDS)
