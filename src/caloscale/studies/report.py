"""What a study leaves: tables as Markdown, CSV and JSON, figures, statements."""

import csv
import datetime as dt
import functools
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from caloscale import __version__
from caloscale.errors import ConfigurationError
from caloscale.planning.search.candidates import pareto_front
from caloscale.report.blocks import Block, Figure, Notice, Page, Section, Table, Text, markdown
from caloscale.report.html import render
from caloscale.storage.atomic import atomic_writer, write_text
from caloscale.studies.conclusions import SWEEP, cost_statements, crossing_statements, waterfall_statements
from caloscale.studies.measures import MEASURES, Context
from caloscale.studies.points import Point, Statement
from caloscale.studies.runner import run_points
from caloscale.studies.sweep import NAME, SPEED_UP, Plot, SpeedUp, Study, Sweep

CONCLUSIONS = {
    "cost": (cost_statements, ("flat", "tpu", "tpu-host", "time")),
    "crossing": (crossing_statements, ()),
    "waterfall": (waterfall_statements, (SWEEP,)),
}
"""Functions that draw statements from the points, and the sweeps that they read, by the name in a study."""


@dataclass(frozen=True)
class SweepTable:
    """The points of a sweep as rows."""

    sweep: Sweep
    points: list[Point]
    """Of each repetition, in the order of the sweep."""

    @property
    def kind(self) -> str:
        """Where the figures of the points come from."""
        return MEASURES[self.sweep.measure].kind

    @functools.cached_property
    def values(self) -> list[dict[str, Any]]:
        """Values of the columns for each point by heading, as in JSON; each repetition is a row."""
        rows = [{name: point.value(path) for name, path in self.sweep.columns.items()} for point in self.points]
        asked = self.sweep.speed_up
        return speed_ups(asked, [point.repetition for point in self.points], rows) if asked else rows

    @functools.cached_property
    def groups(self) -> list[list[dict[str, Any]]]:
        """Of each point the values of its repetitions that did not fail, or else of the first."""
        rows, size = list(zip(self.points, self.values, strict=True)), len(self.sweep.points())
        repetitions = [rows[start::size] for start in range(size)]
        return [[values for point, values in own if point.error is None] or [own[0][1]] for own in repetitions]

    @property
    def headings(self) -> tuple[str, ...]:
        """Headings of the table: the columns, and which of published, measured and modelled a row is."""
        return (*self.sweep.headings, *(["figures"] if self.sweep.published else []))

    @property
    def cells(self) -> list[tuple[str, ...]]:
        """The table as text: numbers with five figures, nothing for null; of repetitions the median and the range."""
        mixed = [self.kind] if self.sweep.published else []
        failed = {index % len(self.groups) for index, point in enumerate(self.points) if point.error is not None}
        rows = []
        for index, group in enumerate(self.groups):
            texts = [_spread([values[name] for values in group]) for name in self.sweep.headings]
            if index in failed and "" in texts:
                texts[texts.index("")] = "failed"
            rows.append((*texts, *mixed))
        for row in self.sweep.published:
            rows.append((*(_text(row.values.get(column)) for column in self.sweep.headings), "published"))
        return rows

    @property
    def problems(self) -> list[str]:
        """Why points failed."""
        return [" ".join(str(point.error).split()) for point in self.points if point.error is not None]

    @property
    def note(self) -> str:
        """What the table's figures are."""
        parts = [] if self.sweep.published else [f"All figures: {self.kind}."]
        if self.sweep.repetitions > 1:
            seeds = f", each with another {self.sweep.seed}" if self.sweep.seed else ""
            parts.append(f"Median (smallest to largest) of {self.sweep.repetitions} repetitions, interleaved{seeds}.")
        parts += [f"Published: {source}." for source in dict.fromkeys(row.source for row in self.sweep.published)]
        parts += [self.sweep.note] if self.sweep.note else []
        size = len(self.sweep.points())
        unmet = sorted({index % size + 1 for index, point in enumerate(self.points) if point.result.get("binding")})
        if unmet:
            rows = f"row{'s' * (len(unmet) > 1)} {', '.join(map(str, unmet))}"
            parts.append(f"Nothing meets the limits of budget in {rows}: the nearest is shown.")
        if any(point.result.get("residuals", "") is None for point in self.points):
            parts.append(
                "The truth is not known, so there are no residuals: columns of parameters.mean and "
                "parameters.std show the solution."
            )
        parts += [f"Failed: {problem}" for problem in self.problems]
        return " ".join(parts)


@dataclass(frozen=True)
class Outcome:
    """A study that was run."""

    study: Study
    as_of: dt.date
    """Day that `today` stood for."""
    tables: list[SweepTable]
    statements: list[Statement]

    def as_json(self) -> str:
        """Everything as JSON."""
        content = {
            "study": self.study.name,
            "title": self.study.title,
            "asOf": str(self.as_of),
            "caloscale": __version__,
            "statements": [s.as_values() for s in self.statements],
            "tables": {table.sweep.name: table.values for table in self.tables},
            "kinds": {table.sweep.name: table.kind for table in self.tables},
            "published": {
                table.sweep.name: [{**row.values, "source": row.source} for row in table.sweep.published]
                for table in self.tables
                if table.sweep.published
            },
            "failed": {table.sweep.name: table.problems for table in self.tables if table.problems},
        }
        return json.dumps(content, indent=1) + "\n"

    def as_page(self, command: str, folder: Path) -> Page:
        """Everything as the page of a report; the figures lie in the folder."""
        about = [Section("About", (Text(self.study.described),))] if self.study.about else []
        findings = tuple(Text(f"{statement.claim}: {statement.finding}") for statement in self.statements)
        sections = [Section("Conclusions", findings)] if findings else []
        for table in self.tables:
            drawn = [] if table.sweep.plot is None else [_figure(table.sweep.name, table.sweep.plot, folder)]
            block = Table(table.sweep.title, table.headings, tuple(table.cells), note=table.note)
            sections.append(Section(table.sweep.title, (block, *drawn)))
        lead = f"{command}, today: {self.as_of}, caloscale {__version__}."
        failed = [problem for table in self.tables for problem in table.problems]
        notices = (Notice(f"{len(failed)} points failed", True, "\n".join(failed)),) if failed else ()
        return Page(self.study.title, lead, notices, (*about, *sections))

    @property
    def exit_code(self) -> int:
        """0, or the exit code of the first point that failed."""
        codes = [point.error.exit_code for table in self.tables for point in table.points if point.error is not None]
        return codes[0] if codes else 0


def _figure(name: str, plot: Plot, folder: Path) -> Figure:
    series = f", one line for each {' and '.join(plot.series)}" if plot.series else ""
    seen = f"{plot.y} against {plot.x}{series}."
    return Figure(name, f"{plot.y} against {plot.x}", seen, seen, folder / f"{name}.png")


def _as_markdown(page: Page) -> str:
    """A page of a study; its figures are in the same folder."""
    blocks: list[Block] = [Text(f"# {page.title}"), Text(page.lead), *page.notices]
    for section in page.sections:
        blocks.append(Text(f"## {section.title}"))
        for block in section.blocks:
            assert not isinstance(block, Section)
            blocks.append(Text(f"![{block.title}]({block.name}.svg)") if isinstance(block, Figure) else block)
    return markdown(*blocks)


def run_study(study: Study, context: Context, folder: Path, command: str) -> Outcome:
    """Run a study in a folder: study.md, study.html, study.json, a CSV and (with a plot) an SVG and PNG for each sweep.

    Points that the folder holds are taken from there. Raises the error of the first point when all points failed.
    """
    _require_conclusions(study)
    points = run_points(study, context, folder)
    tables = [SweepTable(sweep, points[sweep.name]) for sweep in study.sweeps]
    statements: list[Statement] = []
    if study.conclusions is not None and not any(table.problems for table in tables):
        statements = CONCLUSIONS[study.conclusions][0](points)
    outcome = Outcome(study, context.as_of, tables, statements)
    _remove_others(study, folder)
    for table in (table for table in tables if table.sweep.plot is not None):
        for kind in ("svg", "png"):
            with atomic_writer(folder / f"{table.sweep.name}.{kind}") as temporary:
                draw(table, temporary, kind)
    for table in tables:
        with atomic_writer(folder / f"{table.sweep.name}.csv") as temporary, temporary.open("w", newline="") as file:
            csv.writer(file).writerows(_tidy(table))
    page = outcome.as_page(command, folder)
    write_text(folder / "study.json", outcome.as_json())
    write_text(folder / "study.md", _as_markdown(page))
    write_text(folder / "study.html", render(page))
    return outcome


def _remove_others(study: Study, folder: Path) -> None:
    """Remove the tables and figures of an earlier study in this folder that are not of this one."""
    try:
        earlier = [*json.loads((folder / "study.json").read_text(encoding="utf-8"))["tables"]]
    except (OSError, ValueError, KeyError, TypeError):
        return
    kept = {sweep.name: ("csv", "svg", "png") if sweep.plot else ("csv",) for sweep in study.sweeps}
    for name in (name for name in earlier if re.fullmatch(NAME, name)):
        for kind in {"csv", "svg", "png"}.difference(kept.get(name, ())):
            (folder / f"{name}.{kind}").unlink(missing_ok=True)


def speed_ups(asked: SpeedUp, repetitions: Sequence[int], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the columns of a speed-up; None where a time, a number or the time to compare with is missing.

    repetitions: of each row its repetition; rows are compared within one, and within the values of the series.
    """
    series = [str([row[name] for name in asked.series]) for row in rows]
    smallest: dict[str, float] = {}
    for key, row in zip(series, rows):
        if units := row[asked.units]:
            smallest[key] = min(smallest.get(key, units), units)
    places = list(zip(repetitions, series, strict=True))
    base: dict[tuple[int, str], float] = {}
    for place, row in zip(places, rows):
        if row[asked.time] and row[asked.units] == smallest.get(place[1]):
            base.setdefault(place, row[asked.time])  # the first of several with as many
    extended = []
    for place, row in zip(places, rows):
        time, units, of_base = row[asked.time], row[asked.units], base.get(place)
        gain = smallest[place[1]] * of_base / time if time and units and of_base else None
        extended.append({**row, **dict(zip(SPEED_UP, (gain, gain and gain / units), strict=True))})
    return extended


def _tidy(table: SweepTable) -> list[tuple[Any, ...]]:
    """Rows of a CSV: one observation a row, with where it comes from."""
    rows: list[tuple[Any, ...]] = [(*table.sweep.headings, "repetition", "figures", "error")]
    for point, values in zip(table.points, table.values, strict=True):
        rows.append((*values.values(), point.repetition, table.kind, "" if point.error is None else str(point.error)))
    for published in table.sweep.published:
        rows.append((*(published.values.get(column) for column in table.sweep.headings), "", "published", ""))
    return rows


def _require_conclusions(study: Study) -> None:
    """Raise ConfigurationError where the conclusions are not known or miss a sweep: before points are computed."""
    if (name := study.conclusions) is None:
        return
    if name not in CONCLUSIONS:
        remedy = f"one of {', '.join(CONCLUSIONS)}, or leave them out"
        raise ConfigurationError("are not known", field="conclusions", value=name, remedy=remedy)
    if missing := set(CONCLUSIONS[name][1]) - {sweep.name for sweep in study.sweeps}:
        problem = f"need a sweep {', '.join(sorted(missing))}"
        raise ConfigurationError(problem, field="conclusions", value=name, remedy="leave them out")


def draw(table: SweepTable, path: Path, kind: str = "svg") -> None:
    """The plot of a sweep as a file; of repetitions the median with the range, published values dashed."""
    from matplotlib.figure import Figure as Canvas  # slow to import, and a study without a plot has no need of it

    plot = table.sweep.plot
    assert plot is not None
    numeric = all(isinstance(values[plot.x], int | float | None) for values in table.values)
    across_of = (lambda x: x) if numeric else _text  # an axis has numbers or text
    figure = Canvas(figsize=(7, 4.5), layout="constrained", dpi=120)
    axes = figure.add_subplot()
    lines: dict[str, list[tuple[Any, float, float, float]]] = {}
    for group in table.groups:
        values = [float(one[plot.y]) for one in group if one[plot.y] is not None]
        if values:
            drawn = (across_of(group[0][plot.x]), statistics.median(values), min(values), max(values))
            lines.setdefault(_label(plot, group[0]), []).append(drawn)
    for label, line in lines.items():
        x, y, low, high = zip(*line, strict=True)
        errors = [[b - a for a, b in zip(low, y)], [b - a for a, b in zip(y, high)]]
        style = "none" if plot.front else "-"
        spread = errors if table.sweep.repetitions > 1 else None
        axes.errorbar(x, y, spread, marker="o", linestyle=style, capsize=3, label=label)
    published: dict[str, list[tuple[Any, Any]]] = {}
    for row in table.sweep.published:
        if row.values.get(plot.x) is not None and row.values.get(plot.y) is not None:
            label = ", ".join(filter(None, ("published", _label(plot, row.values))))
            published.setdefault(label, []).append((across_of(row.values[plot.x]), row.values[plot.y]))
    for label, pairs in published.items():
        axes.plot(*zip(*pairs, strict=True), marker="s", fillstyle="none", linestyle="--", label=label)
    axes.set(xlabel=plot.x, ylabel=plot.y, title=table.sweep.title)
    if plot.front:
        across, up = np.array([values[:2] for line in lines.values() for values in line], float).reshape(-1, 2).T
        best = pareto_front(across, up, np.ones(len(across), bool))
        axes.step(across[best], up[best], where="post", color="grey", linewidth=1, label="none has less of both")
        axes.set_xscale("log")
    elif plot.log:
        axes.set(xscale="log", yscale="log")
    elif axes.dataLim.ymin >= 0:
        axes.set_ylim(bottom=0)
    if any([*lines, *published]):
        axes.legend(fontsize="small")
    figure.savefig(path, format=kind, metadata={"Date": None} if kind == "svg" else None)


def _label(plot: Plot, values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_text(values[name])}" for name in plot.series if values.get(name) is not None)


def _spread(values: Sequence[Any]) -> str:
    """The median of numbers with their range; of other values what they have in common."""
    if len(values) == 1 or len(set(map(str, values))) == 1:
        return _text(values[0])
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return f"{_text(statistics.median(values))} ({_text(min(values))} to {_text(max(values))})"
    return ", ".join(dict.fromkeys("none" if value is None else _text(value) for value in values))


def _text(value: Any) -> str:
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.5g}"
