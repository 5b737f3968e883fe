"""What a study leaves: tables as Markdown, CSV and JSON, figures, statements."""

from __future__ import annotations

import csv
import datetime as dt
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caloscale import __version__
from caloscale.errors import ConfigurationError
from caloscale.report.blocks import Table, Text, markdown
from caloscale.storage.atomic import atomic_writer
from caloscale.studies import cost, crossing
from caloscale.studies.measures import Context
from caloscale.studies.points import Point, Statement
from caloscale.studies.runner import run_points
from caloscale.studies.sweep import Plot, Study, Sweep

CONCLUSIONS = {"cost": cost.statements, "crossing": crossing.statements}
"""Functions that draw statements from the points, by the name in a study."""


@dataclass(frozen=True)
class SweepTable:
    """The points of a sweep as rows."""

    sweep: Sweep
    """The sweep."""
    rows: list[tuple[Any, ...]]
    """Values of its columns, as in JSON."""

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The values as text: numbers with five figures, nothing for null."""
        return [tuple(_text(value) for value in row) for row in self.rows]


@dataclass(frozen=True)
class Outcome:
    """A study that was run."""

    study: Study
    """The study."""
    as_of: dt.date
    """Day that `today` stood for."""
    tables: list[SweepTable]
    """One a sweep."""
    statements: list[Statement]
    """What follows."""

    def as_json(self) -> str:
        """Everything as JSON."""
        content = {
            "study": self.study.name,
            "title": self.study.title,
            "asOf": str(self.as_of),
            "caloscale": __version__,
            "statements": [s.model_dump(mode="json", by_alias=True) for s in self.statements],
            "tables": {
                table.sweep.name: [dict(zip(table.sweep.columns, row)) for row in table.rows] for table in self.tables
            },
        }
        return json.dumps(content, indent=1) + "\n"

    def as_markdown(self, command: str, figures: Sequence[str] = ()) -> str:
        """Everything as a page; ``figures``: names of the sweeps that have one beside it."""
        made = f"`{command}`, today: {self.as_of}, caloscale {__version__}."
        blocks: list[Text | Table] = [Text(f"# {self.study.title}"), Text(made)]
        blocks += [Text(self.study.about.strip())] if self.study.about else []
        if self.statements:
            findings = [f"- *{statement.claim}*: {statement.finding}" for statement in self.statements]
            blocks += [Text("## Conclusions"), Text("\n".join(findings))]
        for table in self.tables:
            title, columns = table.sweep.title, tuple(table.sweep.columns)
            blocks += [Text(f"## {title}"), Table(title, columns, tuple(table.cells))]
            blocks += [Text(f"![{title}]({table.sweep.name}.svg)")] if table.sweep.name in figures else []
        return markdown(*blocks)


def run_study(study: Study, context: Context, folder: Path, command: str) -> Outcome:
    """Run a study in a folder: study.md, study.json, a CSV and (where it has a plot) an SVG for each sweep.

    Points that the folder holds are taken from there. Raises InputError, naming the point that failed.
    """
    points = run_points(study, context, folder)
    tables = [_table(sweep, points[sweep.name]) for sweep in study.sweeps]
    outcome = Outcome(study, context.as_of, tables, _conclude(study, points))
    plotted = [table for table in tables if table.sweep.plot is not None]
    for table in plotted:
        with atomic_writer(folder / f"{table.sweep.name}.svg") as temporary:
            draw(table, temporary)
    for table in tables:
        with atomic_writer(folder / f"{table.sweep.name}.csv") as temporary, temporary.open("w", newline="") as file:
            csv.writer(file).writerows([tuple(table.sweep.columns), *table.rows])
    for name, text in (
        ("study.json", outcome.as_json()),
        ("study.md", outcome.as_markdown(command, [table.sweep.name for table in plotted])),
    ):
        with atomic_writer(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return outcome


def _conclude(study: Study, points: Mapping[str, Sequence[Point]]) -> list[Statement]:
    """Raises ConfigurationError when the conclusions of the study are not known or miss a sweep."""
    if study.conclusions is None:
        return []
    name, where = study.conclusions, "conclusions"
    if name not in CONCLUSIONS:
        remedy = f"one of {', '.join(CONCLUSIONS)}, or leave them out"
        raise ConfigurationError("are not known", field=where, value=name, remedy=remedy)
    try:
        return CONCLUSIONS[name](points)
    except KeyError as missing:
        raise ConfigurationError(
            f"need a sweep or value {missing}", field=where, value=name, remedy="leave them out"
        ) from missing


def draw(table: SweepTable, path: Path) -> None:
    """The plot of a sweep as a file; its suffix is the format."""
    from matplotlib.figure import Figure  # slow to import, and a study without a plot has no need of it

    plot = table.sweep.plot or Plot(x=next(iter(table.sweep.columns)), y=list(table.sweep.columns)[-1])
    index = {name: number for number, name in enumerate(table.sweep.columns)}
    lines: dict[str, list[tuple[Any, Any]]] = {}
    for row in table.rows:
        label = ", ".join(f"{name} {_text(row[index[name]])}" for name in plot.series if row[index[name]] is not None)
        if row[index[plot.y]] is not None:
            lines.setdefault(label, []).append((row[index[plot.x]], row[index[plot.y]]))
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for label, values in lines.items():
        axes.plot(*zip(*values), marker="o", label=label)
    axes.set(xlabel=plot.x, ylabel=plot.y, title=table.sweep.title)
    if plot.log:
        axes.set(xscale="log", yscale="log")
    else:
        axes.set_ylim(bottom=0)
    if any(lines):
        axes.legend(fontsize="small")
    figure.savefig(path, metadata={"Date": None})


def _table(sweep: Sweep, points: Sequence[Point]) -> SweepTable:
    return SweepTable(sweep, [tuple(point.value(path) for path in sweep.columns.values()) for point in points])


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.5g}"
