"""caloscale status: runs on a cluster."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from caloscale.cli.options import Context, Json, Namespace, Wide, reach

if TYPE_CHECKING:
    from rich.console import Group

    from caloscale.client.runs import RunOnCluster

REFRESH_SECONDS = 2.0
WIDE = frozenset({"layout", "step", "showers/s", "starts", "message"})
"""Columns that a table of 80 columns does not have; messages are below it."""
COLUMNS = ("run", "phase", "layout", "step", "epoch", "showers/s", "ends", "USD", "starts", "message")


def command(
    name: Annotated[str | None, typer.Argument(help="Name of a run; absent: all of the namespace.")] = None,
    namespace: Namespace = None,
    context: Context = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep the table up to date until Ctrl-C.")] = False,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Show how runs on a cluster are: phase, progress, money, and what they wait for."""
    from caloscale.cli.tables import console
    from caloscale.client.runs import find_run, list_runs

    connection, where = reach(context, namespace)

    def read() -> list[RunOnCluster]:
        return [find_run(connection, where, name)] if name else list_runs(connection, where)

    found = read()
    if as_json:
        typer.echo(_as_json(found, one=name is not None))
        return
    if not watch:
        console().print(_table(found, where, wide=wide))
        return
    from rich.live import Live

    with Live(_table(found, where, wide=wide), console=console(), auto_refresh=False) as live:
        while True:
            time.sleep(REFRESH_SECONDS)
            live.update(_table(read(), where, wide=wide), refresh=True)


def _as_json(found: list[RunOnCluster], *, one: bool) -> str:
    import json

    listed = [{"name": r.name, "status": json.loads(r.status.model_dump_json(by_alias=True))} for r in found]
    return json.dumps(listed[0]["status"] if one else listed, indent=2)


def _table(found: list[RunOnCluster], namespace: str, *, wide: bool) -> Group:
    from rich.console import Group
    from rich.text import Text

    from caloscale.cli.tables import table

    rows = [_row(run) for run in found]
    made = table(f"runs in namespace {namespace}", COLUMNS, rows, () if wide else WIDE)
    messages = [Text(f"{row[0]}: {row[-1]}") for row in rows if row[-1] and not wide]
    return Group(made, *messages)


def _row(run: RunOnCluster) -> tuple[str, ...]:
    status, progress, cost = run.status, run.status.progress, run.status.cost
    return (
        run.name,
        status.phase,
        status.layout,
        f"{progress.step}/{progress.steps}" if progress else "",
        f"{progress.epoch:.1f}/{progress.epochs}" if progress else "",
        f"{progress.showers_per_second:.0f}" if progress and progress.showers_per_second else "",
        f"{progress.eta.astimezone():%Y-%m-%d %H:%M %Z}" if progress and progress.eta else "",
        f"{cost.usd:.2f}" if cost and cost.usd is not None else "",
        str(sum(attempt.count for attempt in status.attempts)),
        status.message,
    )
