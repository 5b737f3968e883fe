"""caloscale submit: a run to a cloud that runs it."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated

import typer

from caloscale.cli.options import Document, Json, Overrides, Preset, resolve
from caloscale.cli.plan_options import AsOf, Measurements, Prices, day_of
from caloscale.errors import InputError


class Target(StrEnum):
    """Where a run can be sent."""

    AZUREML = "azureml"


def command(
    document: Document = None,
    preset: Preset = None,
    overrides: Overrides = None,
    to: Annotated[Target, typer.Option(help="Where to.")] = Target.AZUREML,
    data: Annotated[str, typer.Option(help="Folder of shards, such as azureml://datastores/NAME/paths/FOLDER.")] = "",
    image: Annotated[str, typer.Option(envvar="CALOSCALE_IMAGE", help="Image of the workers.")] = "",
    compute: Annotated[
        str | None, typer.Option(help="Existing cluster; absent: serverless compute of the planned size.")
    ] = None,
    send: Annotated[bool, typer.Option("--send/--dry-run", help="Send the job, or only print it.")] = False,
    subscription: Annotated[str | None, typer.Option(help="Azure subscription; absent: the SDK's config.json.")] = None,
    resource_group: Annotated[str | None, typer.Option(help="Resource group of the workspace.")] = None,
    azure_workspace: Annotated[str | None, typer.Option(help="Name of the Azure ML workspace.")] = None,
    prices: Prices = None,
    measurements: Measurements = None,
    as_of: AsOf = None,
    as_json: Json = False,
) -> None:
    """Plan a run on Azure and print (or send) it as an Azure ML job. The plan goes to the error stream."""
    from caloscale.azure.job import job_of, on_azure
    from caloscale.azure.workspace import Workspace, checked, to_yaml
    from caloscale.azure.workspace import send as send_job
    from caloscale.planning.measurements import load_measurements
    from caloscale.planning.plan import plan
    from caloscale.planning.prices import load_prices
    from caloscale.stages.plan_table import remarks, verdict

    for option, value, remedy in (
        ("--data", data, "azureml://datastores/NAME/paths/FOLDER with the shards of caloscale preprocess"),
        ("--image", image, "give the image that docker/trainer.Dockerfile makes, or set CALOSCALE_IMAGE"),
    ):
        if not value:
            raise InputError("is needed", field=option, remedy=remedy)
    coordinates = (subscription, resource_group, azure_workspace)
    if any(coordinates) and not all(coordinates):
        raise InputError(
            "belong together",
            field="--subscription, --resource-group, --azure-workspace",
            remedy="give all three, or none and a config.json",
        )
    run = on_azure(resolve(document, preset, overrides, "."))
    made = plan(run, load_prices(prices or ()), load_measurements(measurements or ()), day_of(as_of))
    typer.echo(verdict(made), err=True)
    if made.chosen is None:
        raise InputError("nothing was chosen", field="budget", remedy="; ".join(made.notes) or "see caloscale plan")
    for remark in remarks(made):
        typer.echo(f"- {remark}", err=True)
    job = job_of(run, made.chosen, image=image, data=data, compute=compute)
    if send:
        workspace = Workspace(subscription, resource_group, azure_workspace) if all(coordinates) else None  # type: ignore[arg-type]
        typer.echo(send_job(job, workspace, made.chosen.region))
        return
    checked(job)
    typer.echo(json.dumps(job, indent=2) if as_json else to_yaml(job), nl=as_json)
