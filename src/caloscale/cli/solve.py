"""caloscale solve: find the parameters whose events look like the measured ones."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from caloscale import __version__
from caloscale.cli.options import Configuration, Json, Overrides

IMAGE = f"caloscale/solver:{__version__}"


def command(
    configuration: Configuration = None,
    preset: Annotated[
        str | None, typer.Option(help="Preset, which the configuration overrides: proxy or proxy-paper.")
    ] = None,
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; an existing run is resumed.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    as_json: Json = False,
    mpijob: Annotated[
        bool,
        typer.Option(
            "--mpijob",
            help="Solve nothing; print an MPIJob, for a cluster without our operator.",
        ),
    ] = False,
    image: Annotated[str, typer.Option(help="Image of the MPIJob, where cluster.image is absent.")] = IMAGE,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the MPIJob.")] = "default",
) -> None:
    """Solve an inverse problem on several ranks: summary, bill, report and checkpoints of the generators are left."""
    from caloscale.spec import load_solver_run
    from caloscale.stages.solving import new_solver_folder, print_solution, solve_and_report

    run = load_solver_run(configuration, preset=preset, overrides=overrides or ())
    if mpijob:
        import yaml

        from caloscale.cluster.workload.mpijob import render_alone

        manifest = render_alone(run, name or run.solver.preset, namespace, image)
        typer.echo(yaml.safe_dump(manifest, sort_keys=False, width=110), nl=False)
        return
    folder = new_solver_folder(run, runs, name)
    solve_and_report(run, folder)
    if as_json:
        typer.echo((folder / "summary.json").read_text(encoding="utf-8"))
    else:
        print_solution(folder)
