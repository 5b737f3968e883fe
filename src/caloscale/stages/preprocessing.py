"""Showers of any origin into shards that the training reads."""

from __future__ import annotations

import shutil
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
        manifest = preprocess_showers(run.data, source, dataset)
        if (showers / RECORD_NAME).is_file() and run.data.source == "simulate":
            shutil.copyfile(showers / RECORD_NAME, dataset / RECORD_NAME)
        figures.update(figures_of(manifest))
        return manifest


def figures_of(manifest: Manifest) -> dict[str, Any]:
    """What the record of a stage says of the showers that it made or trained on."""
    return {
        "source": manifest.source,
        "showers": manifest.splits["train"],
        "validationShowers": manifest.splits["validation"],
        **manifest.model_dump(mode="json", by_alias=True, include=_KEPT),
    }
