"""Commands that measure or examine: profile, bench, study, a file of showers, this machine."""

from __future__ import annotations

import json
import os
import shlex
import textwrap
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args

import typer

from caloscale.cli import options
from caloscale.errors import CaloscaleError, ConfigurationError, InputError, StorageError
from caloscale.installation import install_command, installed_version, load_package
from caloscale.spec import load_run
from caloscale.spec.block import read_block
from caloscale.spec.configuration import parse_override
from caloscale.tensorflow_import import KERAS_HOME, OVERRIDDEN, load_tensorflow_quietly


def profile(
    source: Annotated[
        Path | None,
        typer.Argument(
            help="Folder of a run, whose training was profiled; or a run configuration.", show_default=False
        ),
    ] = None,
    preset: options.Preset = None,
    overrides: options.Overrides = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Showers of a step. Absent: 32, of the published networks 8.")
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps that are profiled. Absent: 5.")] = None,
    dataset: Annotated[Path | None, typer.Option(help="Folder of shards. Absent: parametrised showers.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for the figure. Absent: the run's, or none.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Profile some steps, or show the profile of a run's training: shares by phase, speeds, what limits."""
    from caloscale.cli.tables import show
    from caloscale.profiling.result import PROFILE_FILE, Profile
    from caloscale.report.drawing import save_figures
    from caloscale.report.run import profile_section, step_profile

    if source is not None and source.is_dir():
        measuring = {"--preset": preset, "--set": overrides, "--batch": batch, "--steps": steps, "--dataset": dataset}
        for option, value in measuring.items():
            if value:
                remedy = f"leave it out, or give {source / 'run.yaml'} to measure some steps now"
                raise InputError("has no effect on the profile that a training has kept", field=option, remedy=remedy)
        kept, output = source / "training" / PROFILE_FILE, output or source / "figures"
        if not kept.is_file():
            remedy = "trainings of at least 40 steps make one; or give --preset to measure some steps now"
            raise ConfigurationError("holds no profile", file=source, remedy=remedy)
        result = read_block(Profile, kept, remedy="give --preset to measure some steps now")
    else:
        from caloscale.models import family_of
        from caloscale.training.processor import set_processor

        run = load_run(source, preset=preset or (None if source else "compact"), overrides=overrides or ())
        size = batch or family_of(run.model).batch_of_measurements
        set_processor(run, os.environ)
        load_tensorflow_quietly()
        from caloscale.bench.profiling import profile_step

        result = profile_step(run, size, steps=steps or 5, dataset=dataset)
    figures = [] if output is None else save_figures(output, [partial(step_profile, result)])
    if as_json:
        typer.echo(result.as_json())
    else:
        show(*profile_section(result, figures).blocks, wide=True)


Precision = Literal["float32", "bfloat16", "int8"]
"""Arithmetic of the layers; int8: of convolutions when showers are generated."""


def bench(
    what: Annotated[
        Literal["step", "generate"],
        typer.Argument(help="A training step, or generation. For the solver's exchanges: caloscale study exchange."),
    ],
    preset: Annotated[str, typer.Option(help="A preset; compact, for example.")] = "variable-angle",
    precision: Annotated[
        Precision | None, typer.Option(help="Absent: that of the preset; for generate all that a runtime offers.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="Showers of a batch. Absent: 32, of the published networks 8.")
    ] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Rounds. Absent: as many as fit into two minutes.")] = None,
    streams: Annotated[
        int | None, typer.Option(min=1, help="generate: batches computed at once. Absent: as `caloscale generate`.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="generate: threads of a runtime. Absent: one per core.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the JSON into this file.")] = None,
    overrides: options.Overrides = None,
    as_json: options.Json = False,
) -> None:
    """Measure ours and the reference alternately, each in a separate process."""
    from caloscale.bench.benches import bench_generate, bench_step
    from caloscale.bench.results import bench_table, machine_text
    from caloscale.cli.tables import show
    from caloscale.models import family_of
    from caloscale.report.blocks import Text
    from caloscale.storage.atomic import write_text

    # int8 is a precision of generation alone; for anything else the run configuration refuses it.
    of_training = precision is not None and (what, precision) != ("generate", "int8")
    chosen = [*(overrides or ()), *([f"train.precision={precision}"] if of_training else [])]
    run = load_run(preset=preset, overrides=chosen)
    family = family_of(run.model)
    size = batch or family.batch_of_measurements
    if what == "step":
        if "discriminator" not in family.reduced_roles(run):
            problem = "has no discriminator, which the step has that it would be compared with"
            remedy = f"name a GAN, such as compact; caloscale profile --preset {preset} times the steps of any family"
            raise InputError(problem, field="--preset", value=preset, remedy=remedy)
        for name, number in (("--streams", streams), ("--threads", threads)):
            if number is not None:
                raise InputError("is an option of bench generate", field=name, value=number, remedy="leave it out")
        result = bench_step(run, size, rounds=rounds)
    else:
        precisions = (precision,) if precision else get_args(Precision)
        result = bench_generate(run, size, precisions=precisions, streams=streams, threads=threads, rounds=rounds)
    text = result.as_json()
    if output is not None:
        write_text(output, text)
    if as_json:
        typer.echo(text)
        return
    show(bench_table(result), Text(machine_text(result.machine)), wide=True)


def study(
    study: Annotated[
        str | None, typer.Argument(help="Name of a study (see --list), or the YAML file of one.", show_default=False)
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the studies of the package.")] = False,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Another value of an input, or [a, b] of an axis."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder of points and results; absent: runs/study-<name>.")
    ] = None,
    prices: options.Prices = None,
    measurements: options.Measurements = None,
    as_of: options.AsOf = None,
    wide: options.Wide = False,
    as_json: options.Json = False,
) -> None:
    """Run a study: points that are finished are not computed again; tables, figures and statements are left."""
    from caloscale.cli.tables import console, surplus, table
    from caloscale.planning.catalogue.measurements import load_measurements
    from caloscale.studies.measures import Context
    from caloscale.studies.report import run_study
    from caloscale.studies.sweep import load_study, study_names

    if listed or study is None:
        titles = {name: load_study(name).title for name in study_names()}
        if as_json:
            typer.echo(json.dumps(titles, indent=2))
            return
        questions = (
            titles.values() if wide else (textwrap.shorten(each, 54, placeholder=" ...") for each in titles.values())
        )
        console().print(table("Studies", ("study", "question"), list(zip(titles, questions))))
        return
    asked = load_study(study).changed(dict(map(parse_override, changes or ())))
    folder = output or Path("runs") / f"study-{asked.name}"
    context = Context(options.day_of(as_of), options.read_prices(prices), load_measurements(measurements or ()))
    words = ["caloscale", "study", study, *(word for change in changes or () for word in ("--set", change))]
    outcome = run_study(asked, context, folder, shlex.join(words))
    if as_json:
        typer.echo(outcome.as_json())
        raise typer.Exit(outcome.exit_code)
    out = console()
    out.print(asked.title, style="bold")
    for result in outcome.tables:
        keep = (result.headings[0], "figures", *result.sweep.main_columns)
        left_out = () if wide else surplus(result.headings, result.cells, keep=keep)
        out.print(table(result.sweep.title, result.headings, result.cells, left_out))
        if left_out:
            out.print(f"without the columns {', '.join(left_out)} (--wide shows them)", soft_wrap=True)
        out.print(result.note, soft_wrap=True)
    for statement in outcome.statements:
        out.print(f"- {statement.claim}\n  {statement.finding}", soft_wrap=True)
    typer.echo(f"report: {folder / 'study.html'}")
    raise typer.Exit(outcome.exit_code)


def compare(
    sources: Annotated[
        list[Path],
        typer.Argument(metavar="RUN", help="Folders of runs, and files of showers, which the first run judges."),
    ],
    dataset: Annotated[
        str | None,
        typer.Option(help="Shards of the first run, for files. Absent: <run>/dataset, or those of its pipeline."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Page that is written. Absent: comparison.html; with --json none."),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Compare finished runs, or a run with a file of showers: gates, observables, speed, money, configurations."""
    from caloscale.cli.tables import show
    from caloscale.report.comparison import comparison_drawings, comparison_page, comparison_tables
    from caloscale.report.drawing import save_figures
    from caloscale.report.html import render
    from caloscale.stages.comparison import compare_runs, comparison_json
    from caloscale.storage.atomic import write_text

    compared = compare_runs(sources, dataset)
    page = output or (None if as_json else Path("comparison.html"))
    if page is not None:
        figures = save_figures(page.with_name(f"{page.stem}-figures"), comparison_drawings(compared))
        write_text(page, render(comparison_page(compared, figures)))
    if as_json:
        typer.echo(json.dumps(comparison_json(compared), indent=2))
        return
    show(*comparison_tables(compared), wide=True)
    typer.echo(f"page: {page}")


def inspect(
    path: Annotated[Path, typer.Argument(help="HDF5 file or folder of them, or folder of shards.")],
    shower: Annotated[
        int | None, typer.Option(help="Number of the shower that is drawn. Absent: the first.", min=0)
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Draw one shower into this file (png, svg or pdf). Absent: no picture.")
    ] = None,
    wide: options.Wide = False,
    as_json: options.Json = False,
) -> None:
    """Show the content of a file or folder of showers; with --picture also one shower of it."""
    from caloscale.cli.tables import console, table
    from caloscale.report.picture import draw_shower
    from caloscale.showers.inspection import describe, read_one

    if shower is not None and picture is None:
        raise InputError("draws nothing without --picture", field="--shower", value=shower, remedy="add --picture FILE")
    if picture is not None and as_json:
        raise InputError("draws nothing with --json", field="--picture", value=str(picture), remedy="leave one out")
    if picture is not None and picture.suffix not in options.FIGURES:
        remedy = f"end its name with one of {', '.join(options.FIGURES)}"
        raise StorageError("is not a format of figures", file=picture, remedy=remedy)
    if path.is_dir() and picture is not None:
        load_tensorflow_quietly()
    description = describe(path)
    if as_json:
        typer.echo(description.as_json())
        return
    described = description.model_dump(mode="json", by_alias=True, exclude={"file"})
    rows = [(name, _text(name, value, wide=wide)) for name, value in described.items()]
    console().print(str(path), soft_wrap=True)
    console().print(table("", ("field", "value"), rows))
    if picture is not None:
        showers, axes = read_one(path, shower or 0)
        draw_shower(showers, picture, axes=axes)
        typer.echo(f"picture: {picture}")


RANGES = ("energyGev", "angleDeg", "azimuthDeg", "entryMm", "sumGev", "showersPerFile")
LONG = ("attributes", "files")
"""Fields of which only the names or the number are shown without --wide."""


def _text(name: str, value: Any, *, wide: bool) -> str:
    """A value as text: lines for a map, and numbers joined as the field means them."""
    if value is None:
        return "absent"
    if name in RANGES:
        return f"{value[0]:g} to {value[1]:g}"
    if name in LONG and not wide and isinstance(value, list):
        return str(len(value))
    if isinstance(value, dict):
        names_only = name in LONG and not wide
        return "\n".join(key if names_only else f"{key}: {_text('', one, wide=wide)}" for key, one in value.items())
    if isinstance(value, list):
        inner = (_text("", one, wide=wide) for one in value)
        return " x ".join(inner) if name in ("shape", "") else ", ".join(inner)
    return str(value)


MEMORY_GIB = 8
"""What `make run` needs."""
CLUSTER_SECONDS = 5.0
"""Time-out of a question to the cluster, s."""


class Check(NamedTuple):
    """One thing that was looked for."""

    what: str
    found: str
    """What is there; empty when it is missing."""
    remedy: str = ""
    """The command that gets it; empty when nothing is missing."""


def doctor(context: options.Context = None, namespace: options.Namespace = None, as_json: options.Json = False) -> None:
    """Show what this machine can do: processor, memory, TensorFlow, Geant4, cluster; and how to get what is missing."""
    checks = [*_machine(), _tensorflow(), *_overridden(), *_packages(), *_cluster(context, namespace)]
    if as_json:
        typer.echo(json.dumps([check._asdict() for check in checks], indent=2))
        return
    for check in checks:
        typer.echo(f"{check.what:<14} {check.found or 'missing'}")
        if check.remedy:
            typer.echo(f"{'':<14} get it: {check.remedy}")


def _machine() -> list[Check]:
    from caloscale.bench.results import describe_machine

    machine = describe_machine()
    vectors = ", ".join(sorted(i for i in machine.instructions if i in ("avx", "avx2", "avx512f") or "amx" in i))
    small = machine.memory_gib < MEMORY_GIB
    return [
        Check("cores", f"{machine.cores}, {machine.processor}"),
        Check("instructions", vectors or "no AVX: training is slow"),
        Check("memory", f"{machine.memory_gib:.0f} GiB", f"a machine with {MEMORY_GIB} GiB" if small else ""),
    ]


def _tensorflow() -> Check:
    try:
        load_tensorflow_quietly()
        import tensorflow as tf
    except ImportError:
        return Check(
            "TensorFlow", "", f"{install_command('train', 'cpu')}; NVIDIA GPU: {install_command('train', 'gpu')}"
        )
    kinds = [device.device_type for device in tf.config.list_physical_devices()]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds)))
    return Check("TensorFlow", f"{tf.__version__}, devices: {counted}")


def _overridden() -> list[Check]:
    names, file = list(OVERRIDDEN), Path("~/.keras/keras.json").expanduser()
    if "KERAS_HOME" not in names and file.is_file():
        try:
            written = json.loads(file.read_bytes())
        except ValueError:
            written = None
        if written != json.loads((KERAS_HOME / file.name).read_bytes()):
            names.append(str(file))
    return [Check("overridden", f"{', '.join(names)}: Keras 3 with TensorFlow, float32")] if names else []


def _packages() -> list[Check]:
    packages = {
        "Geant4": ("calzone", "simulate"),
        "Kubeflow": ("kfp", "pipeline"),
        "ONNX Runtime": ("onnxruntime", "infer"),
        "OpenVINO": ("openvino", "infer"),
        "buckets": ("google-cloud-storage", "buckets"),
        "scikit-hep": ("uproot", "scikit-hep"),
        "Azure ML": ("azure-ai-ml", "azure"),
    }
    return [
        Check(what, f"{package} {found}")
        if (found := installed_version(package))
        else Check(what, "", install_command(extra))
        for what, (package, extra) in packages.items()
    ]


def _cluster(context: str | None, namespace: str | None) -> list[Check]:
    """Whether a cluster answers, and what its user may do with training runs."""
    try:
        load_package("kubernetes")
    except CaloscaleError as error:
        return [Check("cluster", "", str(error.remedy))]
    from caloscale.client.runs import ask
    from caloscale.cluster.names import API_VERSION, GROUP, PLURAL
    from caloscale.connection import active_namespace, connect

    try:
        connection = connect(context, seconds=CLUSTER_SECONDS)
        where = namespace or active_namespace(context)
    except CaloscaleError as error:
        return [Check("cluster", "", f"{error.problem}; {error.remedy}")]
    server = connection.api.configuration.host
    allowed: list[str] = []
    refused: list[str] = []
    review: dict[str, Any] = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
    try:
        for verb in ("create", "get", "delete"):
            attributes = {"group": GROUP, "resource": PLURAL, "verb": verb, "namespace": where}
            question = {**review, "metadata": {}, "spec": {"resourceAttributes": attributes}}
            answer = ask(partial(connection.create, question), server)
            (allowed if answer["status"]["allowed"] else refused).append(verb)
        known = ask(lambda: connection.serves(API_VERSION), server)
    except CaloscaleError as error:
        return [Check("cluster", "", f"kubectl cluster-info ({error.problem})")]
    right = f"kubectl create rolebinding caloscale --clusterrole=edit --user=YOU -n {where}" if refused else ""
    return [
        Check("cluster", server),
        Check("rights", f"{', '.join(allowed) or 'none'} {PLURAL} in {where}", right),
        Check("operator", API_VERSION if known else "", "" if known else "make deploy OVERLAY=... CONTEXT=..."),
    ]
