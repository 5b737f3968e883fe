"""The command ``caloscale``: errors without tracebacks, exit codes that scripts can use."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any, NoReturn

import typer

from caloscale import __version__
from caloscale.cli import cluster, measure, model, money, run, solver
from caloscale.errors import CaloscaleError, GenerationError, InputError, InvalidValueError, Terminated
from caloscale.spec.values import check_place
from caloscale.tensorflow_import import OVERRIDDEN

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
        from pathlib import Path

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


app = typer.Typer(
    name="caloscale",
    help="Calorimeter generators: simulate, train, validate and bill, on a laptop or a cluster.",
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    run.run,
    run.simulate,
    run.preprocess,
    run.train,
    run.validate,
    solver.solve,
    solver.ensemble,
    model.amplification,
    run.report,
    model.generate,
    model.export,
    measure.profile,
    measure.bench,
    measure.inspect,
    measure.compare,
    money.plan,
    money.bill,
    money.calibrate,
    measure.study,
    cluster.submit,
    cluster.status,
    cluster.logs,
    cluster.stop,
    cluster.fetch,
    money.node_pools,
    measure.doctor,
):
    app.command(name=command.__name__.replace("_", "-"))(_with_checked_paths(command))
app.command(name="worker", hidden=True)(run.worker)
price_commands = typer.Typer(invoke_without_command=True, rich_markup_mode=None)
price_commands.callback()(_with_checked_paths(money.prices))
price_commands.command(name="import")(_with_checked_paths(money.import_prices))
app.add_typer(price_commands, name="prices")


@app.callback(invoke_without_command=True)
def _version(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
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
    if os.environ.pop("TF_USE_LEGACY_KERAS", None) is not None:  # a training that needs tf_keras sets it itself
        OVERRIDDEN.append("TF_USE_LEGACY_KERAS")
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

        if (made := tf_config_of(os.environ)) is not None:
            os.environ["TF_CONFIG"] = made
    try:
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
        print("stopped by SIGTERM; the same command resumes", file=sys.stderr)
        _leave(end.exit_code)
    except SystemExit as end:
        if end.code == 130:  # typer's own end after Ctrl-C
            print("stopped; the same command resumes", file=sys.stderr)
        raise
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _leave(code: int) -> NoReturn:
    """End with this exit code; at once where TensorFlow waits for lost workers, or Python for a stalled thread."""
    if code >= 128 or code == GenerationError.exit_code or "TF_CONFIG" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
