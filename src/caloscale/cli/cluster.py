"""Commands of runs on a cluster."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
import yaml

from caloscale.cli import options
from caloscale.errors import InputError
from caloscale.spec import AnyRun, Run, SolverRun, build_any_run

if TYPE_CHECKING:
    from rich.console import Group

    from caloscale.client.runs import RunOnCluster
    from caloscale.planning.search.plan import Plan


IMAGE_VARIABLE = "CALOSCALE_IMAGE"
"""Environment variable with the image of trainings."""
FAILED = 7
"""Exit code of --follow when the run has failed."""
Target = Literal["cluster", "azureml"]
"""Where a run can be sent."""


def submit(
    configuration: options.Configuration = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    to: Annotated[
        Target, typer.Option(help="Where to: a Kubernetes cluster with our operator, or Azure ML.")
    ] = "cluster",
    name: Annotated[str | None, typer.Option(help="cluster: name of the run; absent: preset and time.")] = None,
    namespace: options.Namespace = None,
    context: options.Context = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="cluster: do not ask.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="cluster: wait for the end; exit code 7 when it fails.")
    ] = False,
    data: Annotated[
        str, typer.Option(help="azureml: folder of shards, such as azureml://datastores/NAME/paths/F.")
    ] = "",
    image: Annotated[
        str, typer.Option(help=f"Image of the workers. Absent: cluster.image, or of trainings {IMAGE_VARIABLE}.")
    ] = "",
    compute: Annotated[
        str | None, typer.Option(help="azureml: existing cluster; absent: serverless compute of the planned size.")
    ] = None,
    send: Annotated[
        bool | None,
        typer.Option(
            "--send/--dry-run",
            help="Send it, or print plan and manifest without a cluster. Absent: azureml prints, cluster asks.",
        ),
    ] = None,
    subscription: Annotated[
        str | None, typer.Option(help="azureml: subscription; absent: the SDK's config.json.")
    ] = None,
    resource_group: Annotated[str | None, typer.Option(help="azureml: resource group of the workspace.")] = None,
    azure_workspace: Annotated[str | None, typer.Option(help="azureml: name of the workspace.")] = None,
    prices: options.Prices = None,
    measurements: options.Measurements = None,
    as_of: options.AsOf = None,
) -> None:
    """Send a run to a cluster: plan and price are shown, the server checks it, then it asks.

    With --to azureml it becomes an Azure ML job, which is printed, or sent with --send. With --dry-run no cluster is
    asked: the plan goes to the standard error stream, the manifest to the standard output.
    """
    from caloscale.client import runs

    of_the_cluster = {"--name": name, "--namespace": namespace, "--context": context, "--yes": yes, "--follow": follow}
    of_azure = {
        "--data": data,
        "--compute": compute,
        "--send": send,
        "--subscription": subscription,
        "--resource-group": resource_group,
        "--azure-workspace": azure_workspace,
    }
    other, unused = ("azureml", of_azure) if to == "cluster" else ("cluster", of_the_cluster)
    for option, value in unused.items():
        if value:
            remedy = "leave it out, or change --to"
            raise InputError(f"is for --to {other} only, and this goes to {to}", field=option, remedy=remedy)
    run = options.resolve_any(configuration, preset, overrides)
    make_plan = partial(options.planned, prices=prices, measurements=measurements, as_of=as_of)
    if isinstance(run, Run):
        options.warn_of_schedule(run)
        if not image and (to == "azureml" or run.cluster.image is None):
            image = os.environ.get(IMAGE_VARIABLE, "")
    if to == "azureml":
        if isinstance(run, SolverRun):
            raise InputError("goes to a cluster only", field="solver", remedy="leave --to out")
        coordinates = (subscription, resource_group, azure_workspace)
        _to_azure(run, make_plan, data, image, compute, send is True, coordinates)
        return
    if image:
        run = run.model_copy(update={"cluster": run.cluster.model_copy(update={"image": image})})
    preset = run.solver.preset if isinstance(run, SolverRun) else run.model.network
    name = name or f"{preset}-{dt.datetime.now():%y%m%d-%H%M%S}"
    _show_plan(run, make_plan)
    if send is False:
        typer.echo(yaml.safe_dump(runs.manifest_of(run, name, namespace), sort_keys=False), nl=False)
        return
    _to_cluster(run, name, context, namespace, yes=yes, follow=follow)


def _to_cluster(run: AnyRun, name: str, context: str | None, namespace: str | None, *, yes: bool, follow: bool) -> None:
    from caloscale.client import runs

    connection, where = options.reach(context, namespace)
    manifest = runs.manifest_of(run, name, where)
    before, changes = runs.check(connection, manifest)
    question, done = f"submit it as {name} into namespace {where}", "submitted"
    if before is not None:
        question, done = f"change {name} in namespace {where}", "changed" if changes else "as it was"
        what = ", ".join(changes) or "nothing"
        phase = before.status.phase.lower()
        typer.echo(f"{name} is there already in namespace {where} ({phase}); changes: {what}", err=True)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError("the question needs a terminal", field="--yes", remedy="add --yes to submit without it")
        typer.confirm(f"{question} of {connection.api.configuration.host}?", abort=True, err=True)
    runs.submit_checked(connection, manifest, before)
    typer.echo(f"{name} is {done}; caloscale status {name} -n {where} shows its state", err=True)
    typer.echo(name)
    if follow:
        last = None
        for last in runs.follow(connection, where, name):
            typer.echo(runs.describe(last), err=True)
        if last is None or last.status.phase != "Succeeded":
            raise typer.Exit(FAILED)


def _show_plan(run: AnyRun, make_plan: Callable[[Run], Plan]) -> None:
    """The estimate, as far as there can be one: processors, own machines and solvers have none."""
    if isinstance(run, SolverRun):
        minutes = run.solver.max_minutes
        limit = "" if minutes is None else f"; solver.maxMinutes ends it after {minutes:g} minutes"
        typer.echo(f"no estimate: the time of an epoch of a solver was not measured{limit}", err=True)
        return
    try:
        made = make_plan(run)
    except InputError as problem:
        typer.echo(f"no estimate: {problem}", err=True)
        return
    _print_plan(made)
    best = made.chosen or made.nearest
    if best is not None and best.cloud != "none" and (run.hardware is None or run.hardware.region is None):
        advice = "set hardware.region to that of the cluster"
        typer.echo(f"- the estimate is for the cheapest region, {best.region}: {advice}", err=True)


def _print_plan(plan: Plan) -> None:
    from caloscale.report.plan import remarks, verdict

    for line in (verdict(plan), *(f"- {remark}" for remark in remarks(plan))):
        typer.echo(line, err=True)


def _to_azure(
    run: Run,
    make_plan: Callable[[Run], Plan],
    data: str,
    image: str,
    compute: str | None,
    send: bool,
    coordinates: tuple[str | None, str | None, str | None],
) -> None:
    from caloscale.azure import checked, job_of, on_azure, to_yaml
    from caloscale.azure import send as send_job

    for option, value, remedy in (
        ("--data", data, "azureml://datastores/NAME/paths/FOLDER with the shards of caloscale preprocess"),
        ("--image", image, "give the image that docker/trainer.Dockerfile makes, or set CALOSCALE_IMAGE"),
    ):
        if not value:
            raise InputError("is needed", field=option, remedy=remedy)
    if any(coordinates) and not all(coordinates):
        field = "--subscription, --resource-group, --azure-workspace"
        raise InputError("belong together", field=field, remedy="give all three, or none and a config.json")
    run = on_azure(run)
    made = make_plan(run)
    _print_plan(made)
    if made.chosen is None:
        raise InputError("nothing was chosen", field="budget", remedy="; ".join(made.notes) or "see caloscale plan")
    job = job_of(run, made.chosen, image=image, data=data, compute=compute)
    if send:
        subscription, group, name = coordinates
        workspace = (subscription, group, name) if subscription and group and name else None
        typer.echo(send_job(job, workspace, made.chosen.region))
        return
    checked(job)
    typer.echo(to_yaml(job), nl=False)


REFRESH_SECONDS = 2.0
WIDE = frozenset({"layout", "step", "showers/s", "starts", "message"})
"""Columns that a table of 80 columns does not have; messages are below it."""
COLUMNS = ("run", "phase", "layout", "step", "epoch", "showers/s", "ends", "USD", "starts", "message")


def status(
    name: Annotated[str | None, typer.Argument(help="Name of a run; absent: all of the namespace.")] = None,
    namespace: options.Namespace = None,
    context: options.Context = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Keep the table up to date until Ctrl-C.")] = False,
    wide: options.Wide = False,
    as_json: options.Json = False,
) -> None:
    """Show how runs on a cluster are: phase, progress, money, and what they wait for."""
    from caloscale.cli.tables import console
    from caloscale.client.runs import find_run, list_runs, with_refusal

    if watch and as_json:
        raise InputError("exclude each other", field="--watch, --json", remedy="give one of them")
    connection, where = options.reach(context, namespace)

    def read() -> list[RunOnCluster]:
        found = [find_run(connection, where, name)] if name else list_runs(connection, where)
        return [with_refusal(connection, run) for run in found]

    runs = read()
    if as_json:
        listed = [{"name": r.name, "status": r.status.as_values()} for r in runs]
        typer.echo(json.dumps(listed[0]["status"] if name else listed, indent=2))
        return
    shown = _table(runs, where, wide=wide)
    if not watch:
        console().print(shown)
        return
    from rich.live import Live

    with Live(shown, console=console(), auto_refresh=False) as live:
        while True:
            time.sleep(REFRESH_SECONDS)
            live.update(_table(read(), where, wide=wide), refresh=True)


def _table(runs: list[RunOnCluster], namespace: str, *, wide: bool) -> Group:
    from rich.console import Group
    from rich.text import Text

    from caloscale.cli.tables import table

    rows = [_row(run) for run in runs]
    runs_table = table(f"runs in namespace {namespace}", COLUMNS, rows, () if wide else WIDE)
    messages = [Text(f"{row[0]}: {row[-1]}") for row in rows if row[-1] and not wide]
    return Group(runs_table, *messages)


def _row(run: RunOnCluster) -> tuple[str, ...]:
    status, progress, cost = run.status, run.status.progress, run.status.cost
    # what was reported of the end holds while it runs
    ends = progress.eta if progress and status.phase == "Running" else status.finished
    return (
        run.name,
        status.phase,
        status.layout,
        f"{progress.step}/{progress.steps}" if progress else "",
        f"{progress.epoch:.1f}/{progress.epochs}" if progress else "",
        f"{progress.showers_per_second:.0f}" if progress and progress.showers_per_second else "",
        f"{ends.astimezone():%Y-%m-%d %H:%M %Z}" if ends else "",
        f"{cost.usd:.2f}" if cost and cost.usd is not None else "",
        str(sum(attempt.count for attempt in status.attempts)),
        status.message,
    )


def logs(
    name: options.RunName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="As they come, until the run has finished.")] = False,
    tail: Annotated[int | None, typer.Option(min=0, help="Only the last lines of each worker.")] = None,
    namespace: options.Namespace = None,
    context: options.Context = None,
) -> None:
    """Print the logs of all workers, each line with its worker."""
    from caloscale.client.logs import logs
    from caloscale.client.runs import describe, find_run

    connection, where = options.reach(context, namespace)
    line = None
    for line in logs(connection, where, name, follow=follow, tail=tail):
        typer.echo(line)
    if line is None:
        typer.echo(f"no log of a worker is there: {describe(find_run(connection, where, name))}", err=True)


def stop(
    name: options.RunName,
    delete: Annotated[bool, typer.Option("--delete", help="Delete it from the cluster; its bucket stays.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Resume a run that was stopped.")] = False,
    namespace: options.Namespace = None,
    context: options.Context = None,
) -> None:
    """Stop a run after a checkpoint and give its nodes back; --resume resumes it."""
    from caloscale.client import runs

    if delete and resume:
        raise InputError("exclude each other", field="--delete, --resume", remedy="give one of them")
    connection, where = options.reach(context, namespace)
    if delete:
        runs.find_run(connection, where, name)
        runs.delete(connection, where, name)
        typer.echo(f"{name} is deleted; its workers save a checkpoint")
        return
    stopped = runs.suspend(connection, where, name, on=not resume)
    if resume:
        typer.echo(f"{name} resumes" if stopped else f"{name} was not stopped")
        return
    typer.echo(f"{name} stops after a checkpoint; caloscale stop --resume resumes it")


def fetch(
    name: options.RunName,
    to: Annotated[Path | None, typer.Option(help="Folder; absent: runs/NAME.", show_default=False)] = None,
    namespace: options.Namespace = None,
    context: options.Context = None,
) -> None:
    """Bring a run into a folder: report and model from its workspace, and what it used, for `caloscale bill`.

    The report of a run that has finished is made again: its workers could not know the bill. Where another run has
    continued it in its workspace, the report is that one's and stays; so it does without the packages that draw it.
    """
    from caloscale.client.fetch import fetch
    from caloscale.client.runs import find_run
    from caloscale.client.usage import kept_use
    from caloscale.installation import load_package
    from caloscale.status import FINISHED

    connection, where = options.reach(context, namespace)
    folder = to or Path("runs") / name
    run = find_run(connection, where, name)
    for problem in fetch(run, folder):
        typer.echo(f"not brought: {problem}", err=True)
    use = kept_use(str(folder))
    is_newest = use is None or use.attempts[-1].run in ("", run.uid)
    if run.status.phase in FINISHED and (folder / "stages").is_dir() and is_newest:
        failure = None if run.status.phase == "Succeeded" else run.status.message
        try:
            reports = load_package("caloscale.stages.solving")
        except InputError as missing:  # the extra cluster alone draws no figures
            typer.echo(f"not brought: a report with the bill: {missing.sentence}", err=True)
        else:
            reports.report_any(build_any_run(run.spec), folder, failure=failure)
    typer.echo(f"{name} is in {folder}; caloscale bill {folder} shows what it cost")
