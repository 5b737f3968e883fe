"""Commands of inverse problems: the solver, and ensembles of its runs."""

from pathlib import Path
from typing import Annotated

import typer

from caloscale.cli.options import Configuration, Json, Overrides, Wide


def solve(
    configuration: Configuration = None,
    preset: Annotated[
        str | None, typer.Option(help="Preset, which the configuration overrides: proxy or proxy-paper.")
    ] = None,
    overrides: Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; an existing run is resumed.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    as_json: Json = False,
) -> None:
    """Solve an inverse problem on several ranks: summary, bill, report and checkpoints of the generators."""
    from caloscale.spec import load_solver_run
    from caloscale.stages.solving import new_solver_folder, print_solution, solve_and_report

    run = load_solver_run(configuration, preset=preset, overrides=overrides or ())
    folder = new_solver_folder(run, runs, name)
    solve_and_report(run, folder)
    if as_json:
        typer.echo((folder / "summary.json").read_text(encoding="utf-8"))
    else:
        print_solution(folder)


def ensemble(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of solver runs; those that differ in the seed alone are one.")
    ],
    epoch: Annotated[int | None, typer.Option(help="Epoch of a checkpoint; absent: the last of each run.")] = None,
    wide: Wide = False,
    as_json: Json = False,
) -> None:
    """Compare solver runs: for each configuration the residuals of its ensemble. --wide: a row for each."""
    import json

    import numpy as np

    from caloscale.cli.tables import console, table
    from caloscale.sagips.ensemble import RESAMPLINGS, ensemble_of, read_solved, same_kind

    groups = same_kind([read_solved(folder, epoch=epoch) for folder in runs])
    merged = [(group, ensemble_of(group[0].truth, np.concatenate([run.members for run in group]))) for group in groups]
    if as_json:
        rows = [
            {
                "runs": [run.name for run in group],
                "exchange": group[0].solver.exchange,
                "ranks": group[0].solver.ranks,
                "epochs": group[0].epochs,
                "seconds": float(np.mean([run.seconds for run in group])),
                "members": one.members,
                "residuals": {"mean": one.mean.tolist(), "std": one.spread.tolist()},
                "uncertainty": {"mean": one.mean_uncertainty.tolist(), "std": one.spread_uncertainty.tolist()},
                "rmse": one.rmse.tolist(),
            }
            for group, one in merged
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    names = groups[0][0].parameters
    heads = [
        (
            f"{group[0].solver.exchange}, {group[0].solver.ranks} ranks",
            str(one.members),
            str(group[0].epochs),
            f"{np.mean([run.seconds for run in group]):.0f}",
        )
        for group, one in merged
    ]
    residuals = [
        (*(f"{m:+.3f} ± {s:.3f}" for m, s in zip(one.mean, one.spread)), f"{one.mean_absolute:.3f}")
        for _, one in merged
    ]
    head_columns, titles = ("exchange", "members", "epochs", "s"), (*names, "mean |r|")
    columns: tuple[str, ...] = (*head_columns, *titles)
    cells: list[tuple[str, ...]] = [(*head, *row) for head, row in zip(heads, residuals)]
    if not wide:
        columns, cells = (*head_columns, "parameter", "residual"), []
        for head, row in zip(heads, residuals):
            first, *others = zip(titles, row)
            cells += [(*head, *first), *(("",) * len(head) + pair for pair in others)]
    console().print(table("Residuals (p - p^) / p, mean ± spread of the members", columns, cells))
    typer.echo(
        f"spread: standard deviation over the members; --json has the uncertainties of {RESAMPLINGS} resamplings"
    )
