"""caloscale logs: what the workers of a run on a cluster print."""

from __future__ import annotations

from typing import Annotated

import typer

from caloscale.cli.options import Context, Namespace, RunName, reach


def command(
    name: RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="As they come, until the run has finished.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last lines of each worker.")] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print the logs of all workers, each line with its worker."""
    from caloscale.client.logs import logs

    connection, where = reach(context, namespace)
    for line in logs(connection, where, name, follow=follow, tail=tail):
        typer.echo(line)
