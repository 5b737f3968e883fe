"""A study: its sweeps, what each point computes, and what is reported."""

from __future__ import annotations

import itertools
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError, model_validator

from caloscale.errors import ConfigurationError, InvalidValueError
from caloscale.spec.block import Block
from caloscale.spec.configuration import parse_yaml
from caloscale.spec.problem import list_problems, suggest

TODAY = "today"
"""Value of an input that stands for the day for which the study is asked."""


class Plot(Block):
    """Points as lines: one for each value of the series."""

    x: str
    """Column along the horizontal axis."""
    y: str
    """Column along the vertical axis."""
    series: tuple[str, ...] = ()
    """Columns whose values name a line."""
    log: bool = False
    """Both axes logarithmic."""


class Sweep(Block):
    """Points of one kind."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    """Name of its table and files."""
    title: str
    """What the table says."""
    measure: str
    """What a point computes: epochCost, epochRatio, plan or run (see docs/studies.md)."""
    given: dict[str, Any] = {}
    """Inputs that all points share; names of fields of the run configuration are dotted."""
    vary: tuple[dict[str, tuple[Any, ...]], ...] = ()
    """Axes. The inputs of an axis change together; axes are multiplied, the last one fastest."""
    columns: dict[str, str] = Field(min_length=1)
    """Columns of the table: heading (with its unit) and where the value is, an input or a path in the result."""
    plot: Plot | None = None
    """Figure."""

    @model_validator(mode="after")
    def _fits(self) -> Sweep:
        for axis in self.vary:
            lengths = {len(values) for values in axis.values()}
            if len(lengths) != 1 or 0 in lengths:
                raise InvalidValueError(
                    f"the inputs {', '.join(axis)} of an axis change together but have different numbers of values",
                    remedy="give each as many, or make them axes of their own",
                )
        names = [name for axis in self.vary for name in axis]
        twice = {name for name in names if names.count(name) > 1} | (set(names) & set(self.given))
        if twice:
            raise InvalidValueError(f"{', '.join(sorted(twice))} is given twice", remedy="name each input once")
        if self.plot is not None:
            wanted = {self.plot.x, self.plot.y, *self.plot.series}
            if not wanted <= set(self.columns):
                raise InvalidValueError(
                    f"the plot names columns that are not there: {', '.join(sorted(wanted - set(self.columns)))}",
                    remedy=f"use {', '.join(self.columns)}",
                )
        return self

    def points(self) -> list[dict[str, Any]]:
        """Inputs of all points, in order."""
        axes = [[dict(zip(axis, values)) for values in zip(*axis.values())] for axis in self.vary]
        return [self.given | {k: v for part in parts for k, v in part.items()} for parts in itertools.product(*axes)]


class Study(Block):
    """Sweeps that answer a question together."""

    name: str = Field(pattern=r"^[a-z][a-z0-9-]*$")
    """Name of the study."""
    title: str
    """Question."""
    about: str = ""
    """What a reader should know: sources, assumptions."""
    sweeps: tuple[Sweep, ...] = Field(min_length=1)
    """Its parts."""
    conclusions: str | None = None
    """Which statements are drawn from the points; absent: none."""

    @model_validator(mode="after")
    def _named_once(self) -> Study:
        names = [sweep.name for sweep in self.sweeps]
        if len(set(names)) != len(names):
            raise InvalidValueError(f"two sweeps have the same name: {names}", remedy="give each its own")
        return self


def study_names() -> list[str]:
    """Studies that come with the package."""
    folder = resources.files("caloscale.studies").joinpath("documents")
    return sorted(file.name.removesuffix(".yaml") for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_study(name_or_file: str | Path) -> Study:
    """A study of the package by its name, or one of the user's by its file.

    Raises ConfigurationError naming file, field, value and remedy.
    """
    names = study_names()
    if str(name_or_file) in names:
        source = f"study {name_or_file}"
        file = resources.files("caloscale.studies").joinpath("documents", f"{name_or_file}.yaml")
        text = file.read_text(encoding="utf-8")
    else:
        path = Path(name_or_file)
        source = str(path)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            remedy = suggest(str(name_or_file), names) or f"one of {', '.join(names)}, or the path of a YAML file"
            raise ConfigurationError(
                "is neither a study nor a file that can be read", file=source, remedy=remedy
            ) from error
    try:
        return Study.model_validate(parse_yaml(text, file=source), by_alias=True, by_name=False)
    except ValidationError as problems:
        first = list_problems(problems, Study)[0]
        value = first.value if isinstance(first.value, str | int | float) else None
        raise ConfigurationError(
            first.text, file=source, field=first.field or None, value=value, remedy=first.remedy
        ) from problems
