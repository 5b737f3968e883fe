"""Commands of a run on this machine: all stages, or one of them; and of the solver of inverse problems."""

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from caloscale import stages
from caloscale.cli import options
from caloscale.errors import ConfigurationError, InputError, NotAcceptedError
from caloscale.spec import Data, Run, SolverRun, load_any_run, load_run, load_solver_run, parse_any_run
from caloscale.status import PROGRESS_FILE_VARIABLE
from caloscale.tensorflow_import import load_tensorflow_quietly

if TYPE_CHECKING:
    from caloscale.sagips.ensemble import Ensemble, SolvedRun

_MANY_LEFT_OUT = 0.05
"""Part of the showers of the files from which a reason to leave them out is a warning."""
Shards = Annotated[
    str | None,
    typer.Option(
        "--dataset", help="Folder of shards, or gs://bucket/prefix. Absent: those of the workspace, or of its pipeline."
    ),
]


def run(
    configuration: options.Configuration = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; an existing run is resumed.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    as_json: options.Json = False,
) -> None:
    """Simulate or read showers, train, validate, report: all stages of a run configuration."""
    from caloscale.installation import require

    run = load_run(configuration, preset=preset, overrides=overrides or ())
    options.warn_of_schedule(run)
    if run.hardware is not None:
        remedy = "caloscale submit trains on them, as hardware says"
        typer.echo(f"warning: hardware names machines, and this command trains on this one; {remedy}", err=True)
    simulated = run.data.source == "simulate" and run.data.simulation.engine == "geant4"
    require("train", "cpu", *(["simulate"] if simulated else ()))
    folder = stages.new_run_folder(run, runs, name)
    with _resumable(folder, name):
        stages.run_all(run, folder)
    if as_json:
        typer.echo((folder / "summary.json").read_text(encoding="utf-8"))
    else:
        stages.print_outcome(folder)


@contextmanager
def _resumable(folder: Path, name: str | None) -> Iterator[None]:
    """Say how a run without a name resumes when it fails or is stopped: the same command would begin another."""
    try:
        yield
    except BaseException:
        if name is None:
            print(f"with --name {folder.name} this run resumes", file=sys.stderr)
        raise


def simulate(
    configuration: options.Configuration = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    models: Annotated[
        list[Path] | None,
        typer.Option(
            "--with", help="Model folder that takes over the particles of its kind, energies and angles; repeatable."
        ),
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the HDF5 files.")] = Path("showers"),
    as_json: options.Json = False,
) -> None:
    """Simulate the showers of a run configuration with Geant4 into HDF5 files; resumes from finished files."""
    from caloscale.simulation import simulate

    data = options.resolve(configuration, preset, overrides, ".").data
    if models:
        _with_generators(data, models, output, as_json=as_json)
        return
    record = simulate(data, output)
    rate = f"{record.showers_per_second:.1f} showers/s, {record.core_seconds_per_shower:.3f} core seconds each"
    rate = rate if record.showers_per_second else "speed not recorded"
    reused = ", simulated before" if record.reused else ""
    text = f"{record.showers} showers ({record.source}) in {output}: {rate}{reused}"
    typer.echo(record.as_json() if as_json else text)


def _with_generators(data: Data, models: list[Path], output: Path, *, as_json: bool) -> None:
    from caloscale.simulation import refuse_other_source

    refuse_other_source(data)
    if data.simulation.engine != "geant4":
        problem = "makes whole showers and carries no particles to generators"
        remedy = "set it to geant4, or leave --with out"
        raise ConfigurationError(problem, field="data.simulation.engine", value=data.simulation.engine, remedy=remedy)
    load_tensorflow_quietly()
    from caloscale.stages.hybrid import simulate_hybrid

    record = simulate_hybrid(data, models, output)
    typer.echo(
        record.as_json()
        if as_json
        else f"{record.showers} showers in {output}: {record.generated} particles with {record.generated_energy:.0%} "
        f"of the energy were generated; {record.geant4_core_seconds_per_shower:.3f} core seconds of Geant4 and "
        f"{record.generator_seconds_per_shower:.4f} s of the generators each"
    )


def preprocess(
    configuration: options.Configuration = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    showers: Annotated[
        str | None, typer.Option(help="HDF5 files: a file, a folder, or gs://bucket/prefix. Absent: data.source.")
    ] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the shards.")] = Path("dataset"),
    as_json: options.Json = False,
) -> None:
    """Select, re-bin and compress showers, split off the validation showers, and write TFRecord shards."""
    from caloscale.showers.tfrecord.shards import BEYOND_SHOWERS, preprocess_showers

    data = options.resolve(configuration, preset, overrides, ".").data
    source = showers or data.source
    if source == "simulate":
        remedy = "give --showers FOLDER (made by caloscale simulate), or set data.source to your files"
        raise ConfigurationError("there are no showers to read", field="data.source", value=source, remedy=remedy)
    manifest = preprocess_showers(data, source, output)
    counts = ", ".join(f"{count} {split}" for split, count in manifest.splits.items())
    text = f"{counts} showers ({manifest.source}) of {' x '.join(map(str, manifest.shape))} cells in {output}"
    dropped = {reason: count for reason, count in manifest.dropped.items() if count}
    left_out = "".join(f"; {count} left out ({reason})" for reason, count in dropped.items())
    typer.echo(manifest.as_json() if as_json else text + left_out)
    total = sum(manifest.splits.values()) + sum(dropped.values())
    for reason, count in dropped.items():
        if count >= _MANY_LEFT_OUT * total and reason != BEYOND_SHOWERS:
            remedy = "check the numbers of the files (caloscale inspect), or change this field of the run configuration"
            typer.echo(f"warning: {count} of {total} showers are left out ({reason})\n  remedy: {remedy}", err=True)


def train(
    configuration: options.Configuration = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    workspace: options.Workspace = "runs/here",
    dataset: Shards = None,
    as_json: options.Json = False,
) -> None:
    """Train the networks of a run; resumes from the newest checkpoint in the workspace.

    One worker of several when TF_CONFIG names several, as in a TFJob, JobSet or Azure ML job.
    """
    _log_decisions()
    run = options.resolve(configuration, preset, overrides, workspace)
    options.warn_of_schedule(run)
    record = stages.train(run, workspace, dataset or stages.dataset_of(options.folder_of(workspace)))
    typer.echo(
        record.as_json()
        if as_json
        else f"{record.steps} steps of {record.global_batch_size} on {record.replicas} {record.device}, "
        f"{record.epochs} epochs, {record.showers_per_second:.0f} showers/s, "
        f"selected epoch {record.selected_epoch}; model in {workspace.rstrip('/')}/training/model"
    )


def _log_decisions() -> None:
    """Strategy, Keras and shards of this worker go to the standard error stream, with the warnings."""
    logging.basicConfig(format="%(message)s")
    logging.getLogger("caloscale").setLevel(logging.INFO)


def validate(
    configuration: options.Configuration = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    workspace: options.Workspace = "runs/here",
    dataset: Shards = None,
    model: Annotated[Path | None, typer.Option(help="Model folder. Absent: <workspace>/training/model.")] = None,
    require_release: Annotated[
        bool, typer.Option("--require-release", help="Exit with code 10 unless the model is accepted.")
    ] = False,
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Judge the model as OpenVINO computes it in int8, and keep the verdict with that export. "
            "--model: absent, <workspace>/model.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Generate showers, compare them with held-out Monte Carlo, decide by the gates whether the model is accepted."""
    from caloscale.report.physics_sections import verdict_markdown
    from caloscale.spec.workspace_layout import MODEL, TRAINED

    run = options.resolve(configuration, preset, overrides, workspace)
    shards = dataset or stages.dataset_of(options.folder_of(workspace))
    networks = model or options.folder_of(workspace) / (MODEL if int8 else TRAINED)
    if int8:
        evaluation = stages.validate_int8(run, shards, networks)
    else:
        evaluation = stages.validate(run, workspace, shards, networks)
    typer.echo(evaluation.as_json() if as_json else verdict_markdown(evaluation))
    if require_release and evaluation.decision != "accepted":
        raise NotAcceptedError(evaluation.decision)


def report(workspace: options.Workspace = "runs/here", as_json: options.Json = False) -> None:
    """Write report.html, summary.json and bill.json from what the stages left; of a solver run page and bill."""
    from caloscale.stages.record import finished
    from caloscale.stages.solving import print_solution, report_any

    folder = options.folder_of(workspace)
    run, summary = load_any_run(folder / "run.yaml"), folder / "summary.json"
    report_any(run, workspace)
    _, failed = finished(folder)
    if isinstance(run, SolverRun) and (failed or not summary.is_file()):
        print(f"error: {failed or 'nothing was solved'}\nreport: {folder / 'report.html'}", file=sys.stderr)
    elif as_json:
        typer.echo(summary.read_text(encoding="utf-8"))
    elif isinstance(run, SolverRun):
        print_solution(folder)
    else:
        stages.print_outcome(folder)


def worker() -> None:
    """Train as one of the workers of a run on a cluster; everything comes from the environment of the pod."""
    from caloscale.cluster.workload.pod_template import RUN_VARIABLE, WORKSPACE_VARIABLE

    text = os.environ.get(RUN_VARIABLE)
    if text is None:
        remedy = "train here with caloscale train or caloscale run"
        raise InputError("is not set: this command is for pods of the operator", field=RUN_VARIABLE, remedy=remedy)
    _log_decisions()
    run = parse_any_run(text)
    if isinstance(run, Run):
        _work(run)
        return
    # The launcher of an MPIJob starts the ranks on all nodes, and reports.
    from caloscale.client.reporting import ProgressReporter
    from caloscale.stages.solving import refuse_another_problem, solve_and_report

    workspace = Path(os.environ[WORKSPACE_VARIABLE])
    _, progress = _prepare_scratch()
    with ProgressReporter(progress):
        refuse_another_problem(run, workspace)
        solve_and_report(run, workspace)


def _prepare_scratch() -> tuple[Path, Path]:
    """The folder of this pod, and the file in it into which training or ranks write their progress from now on."""
    from caloscale.cluster.workload.pod_template import SCRATCH

    scratch = Path(os.environ.get("CALOSCALE_SCRATCH", SCRATCH))
    progress = scratch / "progress.json"
    os.environ[PROGRESS_FILE_VARIABLE] = str(progress)
    return scratch, progress


def _work(run: Run) -> None:
    """Shards, training, and after it what worker 0 does alone."""
    from caloscale.client.reporting import ProgressReporter, worker_index
    from caloscale.cluster.workload.pod_template import DATASET_VARIABLE, WORKSPACE_VARIABLE

    chief = worker_index(os.environ) == 0
    scratch, progress = _prepare_scratch()
    shared, given = os.environ.get(WORKSPACE_VARIABLE), os.environ.get(DATASET_VARIABLE)
    workspace = shared if shared is not None and chief else str(scratch / "run")
    shards = stages.provide_shards(run, scratch, workspace=shared, given=given, chief=chief)
    trained = scratch / "model"
    with ProgressReporter(progress):
        stages.train(run, workspace, shards, trained)
    if chief and given is None:  # with shards from elsewhere this is a step of a longer chain
        stages.validate(run, workspace, shards, trained)
        stages.report(run, workspace)


def solve(
    configuration: options.Configuration = None,
    preset: Annotated[
        str | None, typer.Option(help="Preset, which the configuration overrides: proxy or proxy-paper.")
    ] = None,
    overrides: options.Overrides = None,
    name: Annotated[str | None, typer.Option(help="Name of the run; an existing run is resumed.")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of all runs.")] = Path("runs"),
    as_json: options.Json = False,
) -> None:
    """Solve an inverse problem on several ranks: summary, bill, report and checkpoints of the generators."""
    from caloscale.stages.solving import new_solver_folder, print_solution, solve_and_report

    run = load_solver_run(configuration, preset=preset, overrides=overrides or ())
    folder = new_solver_folder(run, runs, name)
    with _resumable(folder, name):
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
    as_json: options.Json = False,
) -> None:
    """Compare solver runs: for each configuration the residuals of its ensemble, or without a truth the parameters."""
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
                **one.as_values(),
            }
            for group, one in merged
        ]
        typer.echo(json.dumps(rows, indent=2))
        return
    columns = ("", "exchange", "members", "epochs", "s", "parameter")
    for known, name, title in ((True, "residual", "Residuals (p - p^) / p"), (False, "value", "Normalised parameters")):
        numbered = [(n, *each) for n, each in enumerate(merged, 1) if (each[1].truth is not None) is known]
        cells = [cell for each in numbered for cell in _ensemble_cells(*each)]
        if cells:
            console().print(table(f"{title}, mean ± spread of the members", (*columns, name), cells))
    for number, (group, _) in enumerate(merged, 1):
        typer.echo(f"{number}: {', '.join(run.name for run in group)}")
    typer.echo(
        f"spread: standard deviation over the members; --json has the uncertainties of {RESAMPLINGS} resamplings"
    )


def _ensemble_cells(number: int, group: "Sequence[SolvedRun]", one: "Ensemble") -> list[tuple[str, ...]]:
    """Rows of an ensemble in its table: a parameter each, and with a truth the mean absolute residual."""
    solver, seconds = group[0].solver, sum(run.seconds for run in group) / len(group)
    ranks = f"{solver.ranks} rank{'s' if solver.ranks > 1 else ''}"
    head = (str(number), f"{solver.exchange}, {ranks}", str(one.members), str(group[0].epochs), f"{seconds:.0f}")
    spreads = [f" ± {spread:.3f}" if one.members > 1 else "" for spread in one.spread]
    sign = "" if one.truth is None else "+"
    values = [f"{mean:{sign}.3f}{spread}" for mean, spread in zip(one.mean, spreads)]
    pairs = [*zip(group[0].parameters, values)]
    if one.truth is not None:
        pairs.append(("mean |r|", f"{one.mean_absolute:.3f}"))
    return [(*(("",) * len(head) if row else head), *pair) for row, pair in enumerate(pairs)]
