"""Showers of any origin into shards that the training reads."""

from __future__ import annotations

from pathlib import Path

from caloscale.showers.tfrecord.shards import Manifest, preprocess_showers
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
        manifest = preprocess_showers(run.data, source, dataset)
        figures.update(
            source=manifest.source,
            showers=manifest.splits["train"],
            validationShowers=manifest.splits["validation"],
            **manifest.model_dump(mode="json", by_alias=True, include=_KEPT),
        )
        return manifest
