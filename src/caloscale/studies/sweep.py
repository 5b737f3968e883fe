"""A study: its sweeps, what each point computes, and what is reported."""

import itertools
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from caloscale.errors import ConfigurationError, InvalidValueError
from caloscale.spec import document
from caloscale.spec.block import Block
from caloscale.spec.configuration import parse_yaml
from caloscale.spec.problem import suggest
from caloscale.studies.measures import MEASURES
from caloscale.studies.points import validated

TODAY = "today"
"""Value of an input that stands for the day for which the study is asked."""
NAME = r"^[a-z][a-z0-9-]*$"
"""Names of studies and sweeps, and so of files."""


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
    front: bool = False
    """Points alone on a logarithmic horizontal axis, and a line of those than which none has less of both."""


class Published(Block):
    """A published result, shown with the points of a sweep."""

    source: str
    """Where it is published."""
    values: dict[str, Any] = Field(min_length=1)
    """Values by column; other columns stay empty."""


class SpeedUp(Block):
    """Columns ``speed-up`` and ``efficiency``: T(n0) n0 / T(n), and that over n, with n0 the smallest n of a series.

    So the smallest n is taken to scale perfectly; with n0 = 1 these are the usual definitions.
    """

    time: str
    """Column with the time T."""
    units: str
    """Column with the number n of accelerators, workers or ranks."""
    series: tuple[str, ...] = ()
    """Columns whose values are compared apart."""


SPEED_UP = ("speed-up", "efficiency")


class Sweep(Block):
    """Points of one kind."""

    name: str = Field(pattern=NAME)
    """Name of its table and files."""
    title: str
    measure: str
    """What a point computes: see the table of measures in docs/studies.md."""
    given: dict[str, Any] = {}
    """Inputs that all points share; names of fields of the run configuration are dotted."""
    vary: tuple[dict[str, tuple[Any, ...]], ...] = ()
    """Axes. The inputs of an axis change together; axes are multiplied, the last one fastest."""
    columns: dict[str, str] = Field(min_length=1)
    """Columns of the table: heading (with its unit) and where the value is, an input or a path in the result."""
    plot: Plot | None = None
    repetitions: int = Field(default=1, ge=1, le=1000)
    """How often each point is computed. Rounds are interleaved: all points once, then all points again."""
    seed: str | None = None
    """Input that is the number of the repetition, from 1, such as train.seed. Absent: repetitions have equal inputs."""
    speed_up: SpeedUp | None = None
    published: tuple[Published, ...] = ()
    note: str = ""
    """What a reader of the table should know: what agrees with the published results, what differs and why."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        for axis in self.vary:
            lengths = {len(values) for values in axis.values()}
            if not axis or 0 in lengths:
                problem = f"an axis ({', '.join(axis)}) has no values, so there are no points"
                raise InvalidValueError(problem, remedy="give it values, or leave it out")
            if len(lengths) != 1:
                problem = f"the inputs {', '.join(axis)} of an axis change together but have different numbers of "
                problem += "values"
                remedy = "give each as many values, or write each as an axis"
                raise InvalidValueError(problem, remedy=remedy)
        names = self.varied
        if self.seed in {*names, *self.given}:
            problem = f"{self.seed} is the number of the repetition, and it has a value, too"
            remedy = f"leave out the value, or the key seed; repetitions: 5 computes {self.seed} 1 to 5"
            raise InvalidValueError(problem, remedy=remedy)
        twice = {name for name in names if names.count(name) > 1} | (set(names) & set(self.given))
        if twice:
            raise InvalidValueError(f"{', '.join(sorted(twice))} is given twice", remedy="name each input once")
        points = self.points()
        again = next((point for index, point in enumerate(points) if point in points[:index]), None)
        if again is not None:
            varied = ", ".join(f"{name} {again[name]}" for name in names)
            problem = f"the point {varied} is given twice, and would be computed once"
            raise InvalidValueError(problem, remedy="give each value once; repetitions: 2 computes all points twice")
        named: list[tuple[str, set[str]]] = [("published", set(row.values)) for row in self.published]
        if self.plot is not None:
            named.append(("the plot", {self.plot.x, self.plot.y, *self.plot.series}))
        if self.speed_up is not None:
            named.append(("speedUp", {self.speed_up.time, self.speed_up.units, *self.speed_up.series}))
        for what, wanted in named:
            missing = sorted(wanted - set(self.headings))
            if missing:
                remedy = f"use {', '.join(self.headings)}"
                raise InvalidValueError(f"{what} names columns that are not there: {', '.join(missing)}", remedy=remedy)
        return self

    @property
    def varied(self) -> list[str]:
        """Inputs of the axes."""
        return [name for axis in self.vary for name in axis]

    @property
    def headings(self) -> tuple[str, ...]:
        """The columns of the sweep, and the two of a speed-up."""
        return (*self.columns, *(SPEED_UP if self.speed_up is not None else ()))

    @property
    def main_columns(self) -> tuple[str, ...]:
        """Columns that a narrow table keeps: those of the plot, or without one the first result."""
        if self.plot is not None:
            return (self.plot.x, self.plot.y, *self.plot.series)
        inputs = {*self.given, *self.varied}
        return tuple(name for name, path in self.columns.items() if not {path, path.split(".")[0]} & inputs)[:1]

    def points(self) -> list[dict[str, Any]]:
        """Inputs of all points, in order."""
        axes = [[dict(zip(axis, values)) for values in zip(*axis.values())] for axis in self.vary]
        return [self.given | {k: v for part in parts for k, v in part.items()} for parts in itertools.product(*axes)]


class Study(Block):
    """Sweeps that answer a question together."""

    name: str = Field(pattern=NAME)
    title: str
    about: str = ""
    """What a reader should know: sources, assumptions. {train.epochs} is shown as the value of that input; of points
    with several values, as these with "or" between them."""
    sweeps: tuple[Sweep, ...] = Field(min_length=1)
    conclusions: str | None = None
    """Which statements are drawn from the points; absent: none."""

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        names = [sweep.name for sweep in self.sweeps]
        if len(set(names)) != len(names):
            raise InvalidValueError(f"two sweeps have the same name: {names}", remedy="give each its own")
        return self

    @property
    def described(self) -> str:
        """`about` with the values of inputs in the place of their names in braces."""
        inputs = [point for sweep in self.sweeps for point in sweep.points()]

        def value(name: re.Match[str]) -> str:
            values = dict.fromkeys(str(point[name[1]]) for point in inputs if name[1] in point)
            return " or ".join(values) or name[0]

        return re.sub(r"\{([\w.]+)\}", value, self.about.strip())

    def changed(self, values: Mapping[str, Any]) -> "Study":
        """The study with other inputs, as given by ``--set``: name and value, or for an axis the list of its values.

        A name that a sweep varies replaces the values of that axis; a name that a sweep is given, or a field of the run
        configuration (dotted), is given to it. ``repetitions`` changes all sweeps; of ``sweeps``, a list of names,
        the others are left out, and with them the conclusions. The text about it says what was changed. Raises
        ConfigurationError when no sweep has the name.
        """
        raw = self.model_dump(by_alias=True)
        if values:
            of_texts = f"--set changed {', '.join(values)}: titles and notes may state what was before."
            raw["about"] = f"{self.about.strip()} {of_texts}".strip()
        if (kept := values.get("sweeps")) is not None:
            names = [sweep.name for sweep in self.sweeps]
            if not isinstance(kept, list) or not kept or any(name not in names for name in kept):
                remedy = f"write sweeps=[{names[0]}], with names of {', '.join(names)}"
                raise ConfigurationError("are not sweeps of the study", file="--set", value=kept, remedy=remedy)
            raw |= {"sweeps": [sweep for sweep in raw["sweeps"] if sweep["name"] in kept], "conclusions": None}
        for name, value in values.items():
            if name == "sweeps":
                continue
            sweeps = raw["sweeps"]
            if isinstance(value, list):  # where the name is an axis, values are for the sweeps that have it
                sweeps = [sweep for sweep in sweeps if any(name in axis for axis in sweep["vary"])] or sweeps
            taken = [sweep for sweep in sweeps if _change(sweep, name, value)]
            if not taken:
                known = {name for sweep in self.sweeps for name in (*sweep.given, *sweep.varied)}
                remedy = suggest(name, known) or f"one of {', '.join(sorted(known))}"
                raise ConfigurationError("is an input of no sweep", file="--set", value=name, remedy=remedy)
        return validated(Study, raw, f"study {self.name} with --set")


def _change(sweep: dict[str, Any], name: str, value: Any) -> bool:
    """Give a sweep (as in JSON) another value of an input; False when it has no such input."""
    if name == "repetitions":
        sweep["repetitions"] = value
        return True
    for axis in sweep["vary"]:
        if name in axis:
            axis[name] = value if isinstance(value, list) else [value]
            return True
    measure = MEASURES.get(sweep["measure"])
    if name in sweep["given"] or ("." in name and measure is not None and measure.takes_fields):
        sweep["given"][name] = value
        return True
    return False


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
            text = document.read_file(path)
        except ConfigurationError as error:
            remedy = suggest(str(name_or_file), names) or f"one of {', '.join(names)}, or the path of a YAML file"
            problem = "is neither a study nor a file that can be read"
            raise ConfigurationError(problem, file=source, remedy=remedy) from error
    return validated(Study, parse_yaml(text, file=source), source)
