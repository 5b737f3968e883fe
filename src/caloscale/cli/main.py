"""The command ``caloscale``: errors without tracebacks, exit codes that scripts can use."""

import errno
import io
import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from pathlib import Path
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from caloscale import __version__
from caloscale.cli import cluster, measure, model, money, run
from caloscale.errors import CaloscaleError, GenerationError, InputError, InvalidValueError, Terminated
from caloscale.spec.values import check_place
from caloscale.termination import ended_by_sigterm

FIRST_STEPS = """caloscale: generators of calorimeter showers

Five things to begin with:
  caloscale doctor                         what this machine can do
  caloscale run --preset compact           simulate, train, validate, report
  caloscale inspect showers.h5             what is in a file of your own showers
  caloscale plan --preset variable-angle   machines, duration and price
  caloscale generate --model runs/latest/model --count 1000 -o made.h5

All commands: caloscale --help. Options of one: caloscale run --help."""

_BUCKETS = ("workspace", "dataset", "source")
"""Options that take gs://bucket/prefix, too, where they are texts."""


def _with_checked_paths(command: Callable[..., None]) -> Callable[..., None]:
    """A command that refuses an address where it takes a path."""

    @wraps(command)
    def checked(**options: Any) -> None:
        for name, given in options.items():
            for one in given if isinstance(given, list) else [given]:
                if isinstance(one, Path) or (isinstance(one, str) and name in _BUCKETS):
                    try:
                        check_place(str(one), bucket=not isinstance(one, Path))
                    except InvalidValueError as error:
                        field = f"--{name.replace('_', '-')}"
                        raise InputError(error.problem, field=field, value=str(one), remedy=error.remedy) from None
        command(**options)

    return checked


METAVARS = {
    **dict.fromkeys(("angles", "azimuths"), "DEGREES"),
    **dict.fromkeys(("batch", "count", "epoch", "first", "rounds", "seed", "shower", "steps", "streams", "tail"), "N"),
    **dict.fromkeys(("threads", "worth_of"), "N"),
    **dict.fromkeys(("dataset", "held_out", "runs", "workspace"), "FOLDER"),
    **dict.fromkeys(("entry_x", "entry_y"), "MM"),
    **dict.fromkeys(("files", "figure", "picture"), "FILE"),
    **dict.fromkeys(("model", "models"), "MODEL"),
    **dict.fromkeys(("output", "path", "showers", "source", "to"), "PATH"),
    "azure_workspace": "NAME",
    "configuration": "RUN.YAML",
    "energies": "GEV",
    "particles": "NAMES",
    "resource_group": "GROUP",
    "run": "RUN",
    "what": "KIND",
}
"""What an argument or option takes, where its own name does not say so."""


def _name_values(parameters: Iterable[Any]) -> None:
    """Metavars by meaning; a choice shows what there is to choose."""
    for one in parameters:
        kind = getattr(one, "type_descriptor", None)
        is_choice = kind.is_choice if kind is not None else hasattr(one.type, "choices")
        if is_choice or getattr(one, "is_flag", False):
            continue
        is_argument = one.param_type_name == "argument"
        of_arguments = {"runs": "RUN", "name": "RUN"} if is_argument else {}
        one.metavar = one.metavar or of_arguments.get(one.name) or METAVARS.get(one.name, one.name.upper())
        if is_argument:
            one.display_type_rich = lambda ctx: None  # the word alone


class _Command(TyperCommand):
    """A command whose help states what its options take."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _name_values(self.params)


class _Commands(TyperGroup):
    """The commands by what they are for, each with its whole first sentence."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _name_values(self.params)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[str]] = {"Commands": list(self.commands)}
        if "run" in self.commands:
            sections = {title: [_name(command) for command in examples] for title, examples in COMMANDS.items()}
        for title, names in sections.items():
            with formatter.section(title):
                texts = ((name, self.commands[name].help or "") for name in names)
                formatter.write_dl([(name, " ".join(text.partition("\n\n")[0].split())) for name, text in texts])


def _name(command: Callable[..., None]) -> str:
    return command.__name__.replace("_", "-")


app = typer.Typer(
    name="caloscale",
    cls=_Commands,
    help="Calorimeter generators: simulate, train, validate and bill, on a laptop or a cluster.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
COMMANDS: dict[str, dict[Callable[..., None], str]] = {
    "Run locally": {
        run.run: "run run.yaml --set train.epochs=60",
        run.simulate: "simulate --preset compact -o showers",
        run.preprocess: "preprocess run.yaml -o dataset",
        run.train: "train run.yaml -w staged",
        run.validate: "validate run.yaml -w staged --require-release",
        run.report: "report -w staged",
        measure.compare: "compare runs/first runs/second -o comparison.html",
        measure.inspect: "inspect showers.h5 --picture shower.png",
        measure.doctor: "doctor",
    },
    "Models": {
        model.generate: "generate --model runs/latest/model --energies 10..40 --count 1000 -o made.h5",
        model.export: "export --model runs/latest/model --target onnx -o exported",
        model.amplification: "amplification runs/latest",
        measure.profile: "profile --preset compact",
        measure.bench: "bench step --preset compact",
        measure.study: "study cluster-configuration",
    },
    "Cost": {
        money.plan: "plan --preset variable-angle --generate 10000000",
        money.bill: "bill runs/latest",
        money.prices: "prices --sku v100",
        money.calibrate: "calibrate runs/latest",
    },
    "Cluster": {
        cluster.submit: "submit run.yaml --name my-run --dry-run",
        cluster.status: "status my-run",
        cluster.logs: "logs my-run --follow",
        cluster.stop: "stop my-run",
        cluster.fetch: "fetch my-run",
        money.node_pools: "node-pools run.yaml --cluster physics",
    },
    "Solver": {run.solve: "solve --preset proxy", run.ensemble: "ensemble runs/proxy"},
}
"""All commands by what they are for, each with an example."""
for examples in COMMANDS.values():
    for command, example in examples.items():
        if command is not money.prices:
            app.command(name=_name(command), cls=_Command, epilog=f"Example: caloscale {example}")(
                _with_checked_paths(command)
            )
app.command(name="worker", hidden=True)(run.worker)
price_commands = typer.Typer(
    cls=_Commands,
    invoke_without_command=True,
    rich_markup_mode=None,
    epilog=f"Example: caloscale {COMMANDS['Cost'][money.prices]}",
)
price_commands.callback()(_with_checked_paths(money.prices))
price_commands.command(name="import", cls=_Command)(_with_checked_paths(money.import_prices))
app.add_typer(price_commands, name="prices")


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and exit.")
) -> None:
    if version:
        typer.echo(f"caloscale {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(FIRST_STEPS)


def main() -> None:
    """Entry point. Exit codes: 0 done, 2 bad input, 3 simulation, 4 cluster, 5 training, 6 a bench failed, 7 a followed
    run has failed, 8 nothing can be planned within the limits, 9 a runtime does not compute, 10 a required model is
    not accepted, 130 stopped by Ctrl-C; 138 another worker is lost, 140 an accelerator is missing, 143 stopped by
    SIGTERM, 144 a bucket does not answer, 145 another attempt has taken over: the same command resumes.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ["MPLBACKEND"] = "agg"  # figures go into files; Matplotlib does not load with an unknown name
    _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the encoding of the terminal does not have
    try:
        os.getcwd()  # noqa: PTH109
    except OSError:
        print("error: the working directory does not exist any more\n  remedy: cd to another", file=sys.stderr)
        sys.exit(2)
    if "PET_NNODES" in os.environ:
        from caloscale.cluster.workload.backends import tf_config_of

        if (configuration := tf_config_of(os.environ)) is not None:
            os.environ["TF_CONFIG"] = configuration
    try:
        with ended_by_sigterm():
            app()
    except CaloscaleError as error:
        print(f"error: {error}", file=sys.stderr)
        _leave(error.exit_code)
    except ModuleNotFoundError as missing:
        from caloscale.installation import extras_with, install_command

        if not (extras := extras_with(missing.name or "", sys.argv[1] if sys.argv[1:] else "")):
            raise
        what = f"error: this command needs the package {missing.name}, which is not installed"
        print(
            f"{what}\n  remedy: {install_command(*extras)}; caloscale doctor lists all that is missing", file=sys.stderr
        )
        sys.exit(2)
    except Terminated as end:
        print(f"stopped by SIGTERM; {_after_stop()}", file=sys.stderr)
        _leave(end.exit_code)
    except SystemExit as end:
        if end.code == 130:  # typer's own end after Ctrl-C
            print(f"stopped; {_after_stop()}", file=sys.stderr)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)
    except OSError as error:
        if error.filename is not None and error.errno in (errno.ENAMETOOLONG, errno.EACCES, errno.ELOOP):
            print(f"error: {error.filename}: {error.strerror}\n  remedy: give another path", file=sys.stderr)
            sys.exit(2)
        if error.filename is None and error.errno == errno.ENOENT:  # of the module tempfile
            remedy = "free space, or let TMPDIR name a folder that you may write to"
            print(f"error: {error.strerror}\n  remedy: {remedy}", file=sys.stderr)
            sys.exit(2)
        if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO):
            raise
        problem = f"error: standard output: cannot be written: {error.strerror}"
        print(f"{problem}\n  remedy: free space where it goes, or send it elsewhere", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(2)


def _after_stop() -> str:
    if any(sys.argv[1:2] == [_name(command)] for command in COMMANDS["Cluster"]):
        return "a run on the cluster continues; caloscale stop NAME stops it"
    return "the same command resumes (a run with its --name)"


def _open_streams() -> None:
    """Open the standard streams that whoever started this process has closed: the next file would get their numbers,
    and what a library writes for people would go into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def _leave(code: int) -> NoReturn:
    """End with this exit code; at once where TensorFlow waits for lost workers, or Python for a stalled thread."""
    if code >= 128 or code == GenerationError.exit_code or "TF_CONFIG" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
