"""caloscale fetch: report, model and bill of a run on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Context, Namespace, RunName, reach


def command(
    name: RunName,
    to: Annotated[Path | None, typer.Option(help="Folder; absent: runs/NAME.", show_default=False)] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Bring a run into a folder: report and model from its workspace, and what it used, for `caloscale bill`.

    The report of a run that has finished is made again: its workers could not know the bill.
    """
    from caloscale.client.fetch import fetch
    from caloscale.client.runs import find_run
    from caloscale.spec import build_any_run
    from caloscale.stages.solving import report_any
    from caloscale.status import FINISHED

    connection, where = reach(context, namespace)
    folder = to or Path("runs") / name
    run = find_run(connection, where, name)
    for problem in fetch(run, folder):
        typer.echo(f"not brought: {problem}", err=True)
    if run.status.phase in FINISHED and (folder / "stages").is_dir():
        failure = None if run.status.phase == "Succeeded" else run.status.message
        report_any(build_any_run(run.spec), folder, failure=failure)
    typer.echo(f"{name} is in {folder}; caloscale bill {folder} says what it cost")
