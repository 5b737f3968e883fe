"""caloscale stop: a run on a cluster, for now or for good."""

from __future__ import annotations

from typing import Annotated

import typer

from caloscale.cli.options import Context, Namespace, RunName, reach


def command(
    name: RunName,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it from the cluster; its bucket stays.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that was stopped.")] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Stop a run after a checkpoint and give its nodes back; --resume resumes it."""
    from caloscale.client import runs
    from caloscale.errors import InputError

    if delete and resume:
        raise InputError("exclude each other", field="--delete, --resume", remedy="give one of them")
    connection, where = reach(context, namespace)
    if delete:
        runs.find_run(connection, where, name)
        runs.delete(connection, where, name)
        typer.echo(f"{name} is deleted; its workers save a checkpoint")
        return
    runs.suspend(connection, where, name, on=not resume)
    typer.echo(f"{name} resumes" if resume else f"{name} stops after a checkpoint; caloscale stop --resume resumes it")
