"""Options that several commands share, and the run, day or connection that they give."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from caloscale.cluster import names
from caloscale.errors import ConfigurationError, InputError
from caloscale.spec import AnyRun, Run, load_any_run, load_run

if TYPE_CHECKING:
    from caloscale.connection import Connection
    from caloscale.planning.catalogue import prices as catalogue
    from caloscale.planning.search.plan import Plan

Configuration = Annotated[
    Path | None, typer.Argument(help="Run configuration (YAML); or give --preset.", show_default=False)
]
Preset = Annotated[
    str | None,
    typer.Option(
        help="Preset beneath the configuration: flow, flow-51x51x25, flow-par04, compact, par04, variable-angle, "
        "fixed-angle."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="a.b=c", help="Override a field, such as train.epochs=3. May be repeated."),
]
Workspace = Annotated[
    str,
    typer.Option(
        "--workspace",
        "-w",
        help="Folder of the run (or gs://bucket/prefix): what earlier stages left is read here, records are kept here.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Wide = Annotated[bool, typer.Option("--wide", help="Show all columns; without it tables fit 80 columns.")]
Prices = Annotated[
    list[Path] | None,
    typer.Option("--prices", metavar="FILE", help="CSV of prices that replace the catalogue's. May be repeated."),
]
Measurements = Annotated[
    list[Path] | None,
    typer.Option(
        "--measurements", metavar="FILE", help="CSV of own measurements (caloscale calibrate). May be repeated."
    ),
]
Speeds = Annotated[
    Path | None,
    typer.Option(
        "--speeds", metavar="FILE", help="CSV of measured machines at hand; absent: in the user's data folder."
    ),
]
AsOf = Annotated[
    dt.datetime | None,
    typer.Option("--as-of", formats=["%Y-%m-%d"], metavar="DATE", help="Day of the prices; absent: today."),
]
Context = Annotated[
    str | None,
    typer.Option("--context", help="Context of the kubeconfig; absent: the current one, in a pod its own cluster."),
]


def _checked_namespace(name: str | None) -> str | None:
    """A name that is no other address on the server, such as a/b."""
    if name and not re.fullmatch(names.NAMESPACE, name):
        remedy = "at most 63 small letters, digits and '-' (kubectl get namespaces)"
        raise InputError("is not a name of a namespace", field="--namespace", value=name, remedy=remedy)
    return name


Namespace = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        callback=_checked_namespace,
        help="Namespace of the run; absent: that of the context, in a pod its own.",
    ),
]
FIGURES = (".svg", ".png", ".pdf")
"""Endings of the files into which figures are drawn."""
RunName = Annotated[str, typer.Argument(help="Name of the run.")]


def resolve(
    configuration: Path | None,
    preset: str | None,
    overrides: list[str] | None,
    workspace: str,
    fallback: str | None = None,
) -> Run:
    """The run of the options; without configuration and preset, that of the workspace, or else the preset fallback."""
    if configuration is None and preset is None and not (Path(workspace) / "run.yaml").is_file():
        preset = fallback
    return load_run(_file(configuration, preset, workspace), preset=preset, overrides=overrides or ())


def resolve_any(configuration: Path | None, preset: str | None, overrides: list[str] | None) -> AnyRun:
    """The run of the options, of either workload; without configuration and preset, that of this folder."""
    return load_any_run(_file(configuration, preset, "."), preset=preset, overrides=overrides or ())


def _file(configuration: Path | None, preset: str | None, workspace: str) -> Path | None:
    """The configuration, or without one and without a preset that of the workspace."""
    if configuration is not None or preset is not None:
        return configuration
    kept = Path(workspace) / "run.yaml"
    if not kept.is_file():
        held = f"or {kept.name} in this folder" if workspace == "." else f"or a --workspace that holds {kept.name}"
        raise ConfigurationError("no run configuration", remedy=f"give a run configuration (YAML), or --preset, {held}")
    return kept


def warn_of_schedule(run: Run) -> None:
    """State on standard error that a training ends before its learning rate has reached its value, or that a limit of
    its time keeps a deterministic training from being repeatable."""
    train = run.train
    if train.deterministic and train.max_minutes is not None:
        problem = (
            "train.deterministic is true, and train.maxMinutes makes the learning rate or the end follow the clock"
        )
        typer.echo(f"warning: {problem}, so no two runs are alike; set train.maxMinutes to null", err=True)
    if train.warmup_epochs > train.epochs:
        problem = f"train.warmupEpochs {train.warmup_epochs:g} is more than train.epochs {train.epochs}"
        follows = "so the learning rate never reaches train.learningRate; lower train.warmupEpochs"
        typer.echo(f"warning: {problem}, {follows}", err=True)


def folder_of(workspace: str) -> Path:
    """The workspace as a folder of this machine; InputError when it is in a bucket."""
    from caloscale.storage.objects import is_remote

    if is_remote(workspace):
        problem = "is in a bucket; this command needs the results of earlier stages in a local folder"
        remedy = "name dataset and model by their options, or use a folder"
        raise InputError(problem, field="--workspace", value=workspace, remedy=remedy)
    return Path(workspace)


def day_of(as_of: dt.datetime | None) -> dt.date:
    """The day of the prices; absent: today."""
    from caloscale.planning.catalogue.prices import today

    return as_of.date() if as_of else today()


def read_prices(files: list[Path] | None) -> catalogue.Prices:
    """The prices of the catalogue and of files, which may be pipes; what is in doubt there goes to standard error."""
    from caloscale.planning.catalogue.prices import load_prices

    prices = load_prices(files or ())
    for doubt in prices.doubtful_regions() if files else ():
        typer.echo(f"warning: --prices: {doubt}", err=True)
    return prices


def planned(
    run: Run, prices: list[Path] | None, measurements: list[Path] | None, as_of: dt.datetime | None, **more: Any
) -> Plan:
    """The plan of a run with the files and the day of the options; more: options of `plan`."""
    from caloscale.planning.catalogue.measurements import load_measurements
    from caloscale.planning.search.plan import plan

    return plan(run, read_prices(prices), load_measurements(measurements or ()), day_of(as_of), **more)


def reach(context: str | None, namespace: str | None) -> tuple[Connection, str]:
    """The connection and the namespace of the options; raises ClusterError."""
    from caloscale.connection import active_namespace, connect

    return connect(context), namespace or active_namespace(context)
