"""Showers for the run, from the cache where they have been simulated before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from caloscale.simulation import SimulationRecord, fingerprint
from caloscale.simulation import simulate as simulate_showers
from caloscale.spec import Data, Run
from caloscale.stages.record import recorded
from caloscale.stages.workspace import keep_configuration, open_workspace
from caloscale.storage.cache import cache_root


def simulate(run: Run, workspace: str | Path, showers: Path) -> SimulationRecord | None:
    """Simulate the showers of a run into the folder ``showers``; None when its data are not simulated.

    The showers are kept in the user's cache under the hash of all that determines them; a second run with the
    same data block, or one after an interruption, resumes from them.
    """
    with open_workspace(workspace) as folder, recorded("simulate", folder) as figures:
        keep_configuration(run, folder)
        showers.mkdir(parents=True, exist_ok=True)
        if run.data.source != "simulate":
            figures["source"] = run.data.source
            return None
        cache = cache_folder(run.data)
        record = simulate_showers(run.data, cache)
        for file in sorted(cache.iterdir()):
            if file.suffix in {".h5", ".json"}:
                _link(file, showers / file.name)
        figures.update(record.model_dump(mode="json", by_alias=True))
        return record


def cache_folder(data: Data) -> Path:
    """Where simulated showers are kept: $CALOSCALE_CACHE, or the user's cache folder."""
    return cache_root() / "showers" / fingerprint(data)


def _link(source: Path, target: Path) -> None:
    """A second name for a file of the cache, or a copy where the disk differs."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
