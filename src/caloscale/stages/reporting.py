"""The report, the summary and the bill of a run, from what its stages left."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caloscale.physics import Evaluation
from caloscale.physics.report import render_report
from caloscale.planning.cost import Cost, StageUse, price_run
from caloscale.planning.prices import load_prices
from caloscale.showers.storage import atomic_writer
from caloscale.spec import Run
from caloscale.stages.record import STAGES, StageRecord, read_records, recorded
from caloscale.stages.summary import (
    DataSummary,
    GenerateSummary,
    ObservableSummary,
    PhysicsSummary,
    SimulationSummary,
    StageSummary,
    Summary,
    TrainSummary,
)
from caloscale.stages.workspace import keep_document, open_workspace


@dataclass(frozen=True)
class Report:
    """What a run is told by."""

    summary: Summary
    html: str
    bill: str
    """The bill, Markdown."""


def report(run: Run, workspace: str | Path, *, failure: str | None = None) -> Report:
    """Write report.html, summary.json and bill.json of a run, also of one that failed."""
    with open_workspace(workspace) as folder:
        with recorded("report", folder):
            keep_document(run, folder)
            made = _make(run, folder, failure)
            for name, text in (
                ("summary.json", made.summary.model_dump_json(by_alias=True, indent=2)),
                ("bill.json", made.summary.cost.model_dump_json(by_alias=True, indent=2)),
                ("report.html", made.html),
            ):
                with atomic_writer(folder / name) as temporary:
                    temporary.write_text(text + "\n", encoding="utf-8")
        return made
