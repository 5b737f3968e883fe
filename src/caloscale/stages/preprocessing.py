"""Showers of any origin into shards that the training reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from caloscale.showers.tfrecord.shards import Manifest, preprocess_showers
from caloscale.simulation.record import RECORD_NAME
from caloscale.spec import Run
from caloscale.stages.record import recorded
from caloscale.stages.workspace import keep_configuration, open_workspace

_KEPT = {"provenance", "shards", "dropped", "energy_gev"}
"""What the report shows of the manifest."""


def preprocess(run: Run, workspace: str | Path, showers: Path, dataset: Path) -> Manifest:
    """Prepare the simulated showers in ``showers``, or those of ``data.source``, as the folder ``dataset``."""
    with open_workspace(workspace) as folder, recorded("preprocess", folder) as figures:
        keep_configuration(run, folder)
        source = showers if run.data.source == "simulate" else run.data.source
        record = showers / RECORD_NAME
        simulated = run.data.source == "simulate" and record.is_file()
        manifest = preprocess_showers(run.data, source, dataset, record=record if simulated else None)
        figures.update(figures_of(manifest))
        return manifest


def figures_of(manifest: Manifest) -> dict[str, Any]:
    """What the record of a stage says of the showers that it made or trained on."""
    return {
        "source": manifest.source,
        "particle": manifest.particle,
        "showers": manifest.splits["train"],
        "validationShowers": manifest.splits["validation"],
        **manifest.model_dump(mode="json", by_alias=True, include=_KEPT),
    }
