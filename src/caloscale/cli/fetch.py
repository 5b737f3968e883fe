"""caloscale fetch: report, model and bill of a run on a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.cluster_options import Context, Namespace, RunName, reach


def command(
    name: RunName,
    to: Annotated[Path | None, typer.Option(help="Folder; absent: runs/NAME.", show_default=False)] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Bring a run into a folder: report and model from its workspace, and what it used, for `caloscale bill`."""
    from caloscale.client.fetch import fetch
    from caloscale.client.runs import find_run

    connection, where = reach(context, namespace)
    folder = to or Path("runs") / name
    for problem in fetch(find_run(connection, where, name), folder):
        typer.echo(f"not brought: {problem}", err=True)
    typer.echo(f"{name} is in {folder}; caloscale bill {folder} says what it cost")
