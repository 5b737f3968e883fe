"""caloscale submit: a run to a cluster or a cloud that runs it."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from caloscale.cli.options import (
    AsOf,
    Configuration,
    Context,
    Measurements,
    Namespace,
    Overrides,
    Preset,
    Prices,
    day_of,
    reach,
    resolve_any,
)
from caloscale.errors import InputError

if TYPE_CHECKING:
    from caloscale.client.runs import RunOnCluster
    from caloscale.planning.search.plan import Plan
    from caloscale.spec import AnyRun, Run


IMAGE_VARIABLE = "CALOSCALE_IMAGE"
"""Environment variable with the image of trainings."""
FAILED = 7
"""Exit code of --follow when the run has failed."""


class Target(StrEnum):
    """Where a run can be sent."""

    CLUSTER = "cluster"
    AZUREML = "azureml"


def command(
    configuration: Configuration = None,
    preset: Preset = None,
    overrides: Overrides = None,
    to: Annotated[Target, typer.Option(help="Where to: a Kubernetes cluster with our operator, or Azure ML.")] = (
        Target.CLUSTER
    ),
    name: Annotated[str | None, typer.Option(help="cluster: name of the run; absent: preset and time.")] = None,
    namespace: Namespace = None,
    context: Context = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="cluster: do not ask.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="cluster: wait for the end; exit code 7 when it fails.")
    ] = False,
    data: Annotated[
        str, typer.Option(help="azureml: folder of shards, such as azureml://datastores/NAME/paths/F.")
    ] = "",
    image: Annotated[str, typer.Option(envvar=IMAGE_VARIABLE, help="Image of the workers.")] = "",
    compute: Annotated[
        str | None, typer.Option(help="azureml: existing cluster; absent: serverless compute of the planned size.")
    ] = None,
    send: Annotated[
        bool, typer.Option("--send/--dry-run", help="azureml: send the job, or only print it (the default).")
    ] = False,
    subscription: Annotated[
        str | None, typer.Option(help="azureml: subscription; absent: the SDK's config.json.")
    ] = None,
    resource_group: Annotated[str | None, typer.Option(help="azureml: resource group of the workspace.")] = None,
    azure_workspace: Annotated[str | None, typer.Option(help="azureml: name of the workspace.")] = None,
    prices: Prices = None,
    measurements: Measurements = None,
    as_of: AsOf = None,
    as_json: Annotated[bool, typer.Option("--json", help="azureml: print JSON.")] = False,
) -> None:
    """Send a run to a cluster: the server checks it first, plan and price are shown, then it asks.

    With --to azureml it becomes an Azure ML job, which is printed, or sent with --send.
    """
    from caloscale.planning.catalogue.measurements import load_measurements
    from caloscale.planning.catalogue.prices import load_prices
    from caloscale.planning.search.plan import plan
    from caloscale.spec import SolverRun

    of_the_cluster = {
        "--name": name,
        "--namespace": namespace,
        "--context": context,
        "--yes": yes,
        "--follow": follow,
    }
    of_azure = {
        "--data": data,
        "--compute": compute,
        "--send": send,
        "--subscription": subscription,
        "--resource-group": resource_group,
        "--azure-workspace": azure_workspace,
        "--json": as_json,
    }
    _refuse(of_the_cluster if to == Target.AZUREML else of_azure, to)
    run = resolve_any(configuration, preset, overrides)

    def planned(run: Run) -> Plan:
        return plan(run, load_prices(prices or ()), load_measurements(measurements or ()), day_of(as_of))

    if isinstance(run, SolverRun):
        if to == Target.AZUREML:
            raise InputError("goes to a cluster only", field="solver", remedy="leave --to out")
        if image == os.environ.get(IMAGE_VARIABLE):
            image = ""  # that of trainings
    elif to == Target.AZUREML:
        coordinates = (subscription, resource_group, azure_workspace)
        _to_azure(run, planned, data, image, compute, send, coordinates, as_json)
        return
    if image:
        run = run.model_copy(update={"cluster": run.cluster.model_copy(update={"image": image})})
    _to_cluster(run, planned, name or _new_name(run), context, namespace, yes=yes, follow=follow)


def _refuse(options: Mapping[str, object], to: Target) -> None:
    """Raise InputError for the first option that was given and that this target has no use for."""
    for option, value in options.items():
        if value:
            other = next(target for target in Target if target != to)
            raise InputError(
                f"is for --to {other} only, and this goes to {to}", field=option, remedy="leave it out, or change --to"
            )


def _new_name(run: AnyRun) -> str:
    from caloscale.spec import SolverRun

    preset = run.solver.preset if isinstance(run, SolverRun) else run.model.preset
    return f"{preset}-{dt.datetime.now():%y%m%d-%H%M%S}"


def _to_cluster(
    run: AnyRun,
    planned: Callable[[Run], Plan],
    name: str,
    context: str | None,
    namespace: str | None,
    *,
    yes: bool,
    follow: bool,
) -> None:
    from caloscale.client import runs

    connection, where = reach(context, namespace)
    manifest = runs.manifest_of(run, name, where)
    runs.refuse_finished(connection, manifest)
    runs.submit(connection, manifest, dry_run=True)
    _show_plan(run, planned)
    if not yes:
        if not sys.stdin.isatty():
            raise InputError("the question needs a terminal", field="--yes", remedy="add --yes to submit without it")
        typer.confirm(f"submit it as {name} into namespace {where}?", abort=True, err=True)
    runs.submit(connection, manifest)
    typer.echo(f"{name} is submitted; caloscale status {name} -n {where} says how it is", err=True)
    typer.echo(name)
    if follow:
        _follow(runs.follow(connection, where, name))


def _show_plan(run: AnyRun, planned: Callable[[Run], Plan]) -> None:
    """The estimate, as far as there can be one: processors, own machines and solvers have none."""
    from caloscale.report.plan import remarks, verdict
    from caloscale.spec import SolverRun

    if isinstance(run, SolverRun):
        minutes = run.solver.max_minutes
        limit = "" if minutes is None else f"; solver.maxMinutes ends it after {minutes:g} minutes"
        typer.echo(f"no estimate: the time of an epoch of a solver was not measured{limit}", err=True)
        return
    try:
        made = planned(run)
    except InputError as problem:
        typer.echo(f"no estimate: {problem}", err=True)
        return
    typer.echo(verdict(made), err=True)
    for remark in remarks(made):
        typer.echo(f"- {remark}", err=True)


def _follow(changes: Iterator[RunOnCluster]) -> None:
    from caloscale.client.runs import describe

    last = None
    for last in changes:
        typer.echo(describe(last), err=True)
    if last is None or last.status.phase != "Succeeded":
        raise typer.Exit(FAILED)


def _to_azure(
    run: Run,
    planned: Callable[[Run], Plan],
    data: str,
    image: str,
    compute: str | None,
    send: bool,
    coordinates: tuple[str | None, str | None, str | None],
    as_json: bool,
) -> None:
    from caloscale.azure.job import job_of, on_azure
    from caloscale.azure.workspace import Workspace, checked, to_yaml
    from caloscale.azure.workspace import send as send_job
    from caloscale.report.plan import remarks, verdict

    for option, value, remedy in (
        ("--data", data, "azureml://datastores/NAME/paths/FOLDER with the shards of caloscale preprocess"),
        ("--image", image, "give the image that docker/trainer.Dockerfile makes, or set CALOSCALE_IMAGE"),
    ):
        if not value:
            raise InputError("is needed", field=option, remedy=remedy)
    if any(coordinates) and not all(coordinates):
        raise InputError(
            "belong together",
            field="--subscription, --resource-group, --azure-workspace",
            remedy="give all three, or none and a config.json",
        )
    run = on_azure(run)
    made = planned(run)
    typer.echo(verdict(made), err=True)
    if made.chosen is None:
        raise InputError("nothing was chosen", field="budget", remedy="; ".join(made.notes) or "see caloscale plan")
    for remark in remarks(made):
        typer.echo(f"- {remark}", err=True)
    job = job_of(run, made.chosen, image=image, data=data, compute=compute)
    if send:
        workspace = Workspace(*coordinates) if all(coordinates) else None  # type: ignore[arg-type]
        typer.echo(send_job(job, workspace, made.chosen.region))
        return
    checked(job)
    typer.echo(json.dumps(job, indent=2) if as_json else to_yaml(job), nl=as_json)
