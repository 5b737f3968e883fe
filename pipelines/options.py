"""What the commands of the pipelines share: options, exit codes, and a pipeline as a file for the Kubeflow UI."""

import argparse
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kfp import compiler

from caloscale.errors import CaloscaleError, ConfigurationError
from caloscale.storage.atomic import atomic_writer


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """The options of a pipeline that runs here or is compiled."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configuration", nargs="?", type=Path, help="run configuration (YAML)")
    parser.add_argument("--preset", help="preset below the run configuration")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="a.b=c", help="override")
    parser.add_argument("--name", help="name of the run's folder")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs")
    parser.add_argument("--compile", type=Path, metavar="OUT.yaml", help="compile instead of running")
    return parser


def refuse_unused(parser: argparse.ArgumentParser, given: argparse.Namespace, *only_compiled: str) -> None:
    """End with exit code 2 for an option that has no effect; only_compiled: names of those that belong to --compile."""
    options = {name: f"--{name.replace('_', '-')}" for name in (*only_compiled, "preset", "name", "runs")}
    options |= {"configuration": "a run configuration", "overrides": "--set"}
    changed = [name for name in options if getattr(given, name) != parser.get_default(name)]
    if given.compile:
        unused = [options[name] for name in changed if name not in only_compiled]
        remedy = "has no effect with --compile"
        if unused and unused[0] not in ("--name", "--runs"):
            remedy += ": enter it in the form of the Kubeflow UI"
    else:
        unused = [options[name] for name in changed if name in only_compiled]
        remedy = "has no effect without --compile OUT.yaml"
    if unused:
        parser.error(f"{unused[0]} {remedy}")


def command(main: Callable[[list[str] | None], int]) -> Callable[[list[str] | None], int]:
    """A command that prints the message of an error of this package, or that it was stopped, and returns the exit
    code."""

    @functools.wraps(main)
    def run(arguments: list[str] | None = None) -> int:
        try:
            return main(arguments)
        except CaloscaleError as error:
            print(f"error: {error}", file=sys.stderr)
            return error.exit_code
        except KeyboardInterrupt:  # before the first step, which may take seconds
            print("stopped", file=sys.stderr)
            return 130

    return run


def write_pipeline(pipeline: Any, file: Path) -> None:
    """Write a pipeline as the YAML that the Kubeflow UI takes. Raises ConfigurationError and StorageError."""
    if file.suffix not in (".yaml", ".yml"):
        problem = "is no name of a YAML file"
        raise ConfigurationError(problem, field="--compile", value=str(file), remedy="write OUT.yaml")
    with atomic_writer(file) as temporary:
        compiler.Compiler().compile(pipeline, str(temporary))
