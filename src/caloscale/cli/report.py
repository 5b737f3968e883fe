"""caloscale report: the page and the bill of a run."""

from __future__ import annotations

from pathlib import Path

import typer

from caloscale.cli.options import Json, Workspace, resolve


def command(workspace: Workspace = "runs/latest", as_json: Json = False) -> None:
    """Write report.html, summary.json and bill.json from what the stages left."""
    from caloscale import stages

    run = resolve(None, None, None, workspace)
    outcome = stages.report(run, workspace)
    if as_json:
        typer.echo(outcome.summary.model_dump_json(by_alias=True, indent=2))
    else:
        stages.print_outcome(Path(workspace))
