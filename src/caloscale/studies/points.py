"""The points of a study: inputs, as blocks or run configurations, results, the statements that are drawn, and the
processes of measures that run on several ranks."""

import copy
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from pydantic import ValidationError

from caloscale.errors import CaloscaleError, ConfigurationError, TrainingError
from caloscale.sagips.mpi import mpi_environment, mpiexec_command
from caloscale.spec import Run, build_run
from caloscale.spec.block import Block
from caloscale.spec.problem import list_problems, suggest

_B = TypeVar("_B", bound=Block)


def validated(block: type[_B], inputs: Mapping[str, Any]) -> _B:
    """The inputs as a block; raises ConfigurationError with field and remedy of the first problem."""
    try:
        return block.model_validate(inputs, by_alias=True, by_name=False)
    except ValidationError as problems:
        first = list_problems(problems, block)[0]
        raise ConfigurationError(first.text, field=first.field or None, remedy=first.remedy) from problems


def seeds_of(inputs: Mapping[str, Any], absent: list[int]) -> list[int]:
    """The input `seeds`: different whole numbers; raises ConfigurationError."""
    seeds = inputs.get("seeds", absent)
    valid = isinstance(seeds, list) and seeds and all(isinstance(seed, int) for seed in seeds)
    if not valid or len(set(seeds)) < len(seeds):
        remedy = "write seeds: [1, 2, 3]"
        raise ConfigurationError("is not a list of different seeds", field="seeds", value=seeds, remedy=remedy)
    return list(seeds)


def configured_run(inputs: Mapping[str, Any]) -> Run:
    """The run configuration of dotted inputs; raises ConfigurationError."""
    return build_run(nested(inputs))


def nested(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted inputs as blocks; raises ConfigurationError."""
    raw: dict[str, Any] = {}
    for name, value in sorted(inputs.items(), key=lambda item: item[0].count(".")):  # whole blocks first
        *blocks, field = name.split(".")
        block = raw
        for depth, part in enumerate(blocks, start=1):
            block = block.setdefault(part, {})
            if not isinstance(block, dict):
                above = ".".join(blocks[:depth])
                problem = f"is no block, but {name} is given, too"
                raise ConfigurationError(problem, field=above, value=block, remedy=f"leave out {above}")
        block[field] = copy.deepcopy(value)
    return raw


@dataclass(frozen=True)
class Point:
    """A point of a sweep."""

    inputs: dict[str, Any]
    """What was varied and given."""
    result: dict[str, Any]
    """What came out, as in JSON; empty when the point failed."""
    repetition: int = 0
    """Number of the repetition, from 0."""
    error: CaloscaleError | None = None
    """Why the point failed; None: it did not."""

    def value(self, path: str) -> Any:
        """An input, or what a dotted path names in an input or in the result; None where the path ends in nothing."""
        if path in self.inputs:
            return self.inputs[path]
        first, _, rest = path.partition(".")
        found: Any = self.result
        if rest and isinstance(self.inputs.get(first), dict):
            found, path = self.inputs[first], rest
        elif self.error is not None:
            return None
        for name in path.split("."):
            if found is None:
                return None
            if isinstance(found, list) and name.isdigit() and int(name) < len(found):
                found = found[int(name)]
            elif isinstance(found, dict) and name in found:
                found = found[name]
            else:
                known = sorted({*self.inputs, *(found if isinstance(found, dict) else ())})
                problem = "is neither an input nor in the result"
                remedy = suggest(name, known) or f"one of {', '.join(known)}"
                raise ConfigurationError(problem, field="columns", value=path, remedy=remedy)
        return found


class Statement(Block):
    """A sentence with its numbers."""

    claim: str
    """What the study said, or what was asked."""
    finding: str
    """What comes out, with dates and assumptions."""
    figures: dict[str, float]
    """The numbers in it, by name."""


def run_ranks(module: str, ranks: int, settings: str, threads: int = 1) -> dict[str, Any]:
    """Run a module of this package on every rank, until all have ended; Ctrl-C ends them.

    settings: first argument of the module; the second one is the JSON file into which rank 0 writes the result, which
    is returned. threads: of each rank. Raises TrainingError when one fails, with the end of what it wrote.
    """
    with TemporaryDirectory(prefix="caloscale-study-") as temporary:
        target = Path(temporary) / "result.json"
        _run(module, ranks, [settings, str(target)], threads)
        result: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
    return result


def _run(module: str, ranks: int, arguments: list[str], threads: int) -> None:
    variables = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads, "TF_CPP_MIN_LOG_LEVEL": 2}
    variables |= {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": 1}
    environment = {**mpi_environment(), **{name: str(value) for name, value in variables.items()}}
    command = mpiexec_command(ranks, ["-m", f"caloscale.studies.{module}", *arguments], environment)
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True, text=True
    )
    try:
        output = process.communicate()[1]
    except BaseException:
        process.terminate()  # mpiexec ends its ranks
        process.communicate()
        raise
    if process.returncode:
        tail = " ".join(output.split()[-60:])
        raise TrainingError(f"a process ended with exit code {process.returncode}: {tail}", remedy="use fewer workers")
