"""Catalogues are plain data: CSV files whose rows are checked one by one, with the line named in every error."""

import csv
import datetime as dt
import io
from collections.abc import Callable, Iterable
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, Field, GetCoreSchemaHandler, ValidationError, field_validator
from pydantic_core import CoreSchema

from caloscale.errors import InputError, InvalidValueError
from caloscale.spec.block import Block
from caloscale.spec.problem import list_problems


class SourcedRow(Block):
    """A row with the source of its figures and the day on which they were seen."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: type[BaseModel], handler: GetCoreSchemaHandler) -> CoreSchema:
        """Without the checks of `Block`: the cells of a CSV file are texts."""
        return handler(source)

    source: str = Field(min_length=3)
    """Publication, catalogue or run that the figures come from."""
    observed_on: dt.date
    """Day on which they were seen there (a source known to the year: its first day)."""

    @field_validator("observed_on")
    @classmethod
    def _was_seen(cls, day: dt.date) -> dt.date:
        if day > tomorrow():  # a figure of the future would never be old
            problem = f"is in the future: today is {dt.date.today()} by the clock of this machine"
            raise InvalidValueError(problem, remedy="give the day on which the figure was seen")
        return day


def tomorrow() -> dt.date:
    """The latest day on which something may have been seen: somewhere the next day has begun."""
    return dt.datetime.now(dt.UTC).date() + dt.timedelta(days=1)


RowT = TypeVar("RowT", bound=SourcedRow)


def builtin(name: str) -> Traversable:
    """A catalogue that comes with the package, such as ``prices.csv``."""
    return resources.files("caloscale.planning.catalogue").joinpath("data", name)


def builtin_rows(name: str, row: type[RowT]) -> tuple[RowT, ...]:
    """The rows of a catalogue that comes with the package."""
    return tuple(each for _, each in read_rows(builtin(name), row, InputError))


def read_rows(file: Traversable | Path, row: type[RowT], error: Callable[..., InputError]) -> list[tuple[str, RowT]]:
    """The rows of a CSV catalogue, each with its position (``file:line``) for later errors.

    Lines that begin with # are comments. Cells that are empty take the field's default. Raises ``error`` (an
    InputError class) naming file, line, column, value and remedy for anything that is not a row.
    """
    name, columns = str(file), list(row.model_fields)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise error("cannot be read as text", file=name, remedy=f"a CSV with {', '.join(columns)}") from problem
    lines = [(n, line) for n, line in enumerate(text.splitlines(), start=1) if line.strip() and line[0] != "#"]
    table = []
    for number, line in lines:
        try:
            table.append(next(csv.reader([line], strict=True)))
        except csv.Error as problem:
            remedy = "check quotes; no line breaks inside them"
            raise error(f"is not CSV: {problem}", file=f"{name}:{number}", remedy=remedy) from problem
    if not table:
        raise error("has no header line", file=name, remedy=f"begin with the line {','.join(columns)}")
    header = table[0]
    unknown = [column for column in header if column not in columns]
    if unknown or len(set(header)) != len(header):
        semicolons = "separate the cells by commas, and write decimal points: " if ";" in header[0] else ""
        remedy = f"{semicolons}use {','.join(columns)}"
        raise error("has a header with unknown or doubled columns", file=name, value=header, remedy=remedy)
    return [
        (f"{name}:{number}", _row(f"{name}:{number}", header, cells, row, error))
        for (number, _), cells in zip(lines[1:], table[1:])
    ]


def rows_csv(row: type[RowT], rows: Iterable[RowT]) -> str:
    """Rows as the text of a file that `read_rows` reads."""
    text = io.StringIO()
    table = csv.DictWriter(text, list(row.model_fields), lineterminator="\n")
    table.writeheader()
    for one in rows:
        table.writerow({k: "" if v is None else v for k, v in one.model_dump(mode="json").items()})
    return text.getvalue()


def _row(source: str, header: list[str], cells: list[str], row: type[RowT], error: Callable[..., InputError]) -> RowT:
    if len(cells) != len(header):
        raise error(f"has {len(cells)} cells, the header has {len(header)}", file=source, remedy="check the commas")
    try:
        return row.model_validate({k: v.strip() for k, v in zip(header, cells) if v.strip()}, by_name=True)
    except ValidationError as problems:
        first = list_problems(problems, row)[0]
        column = first.location[0] if first.location else None
        field = next((name for name, f in row.model_fields.items() if column in (name, f.alias)), None)
        raise error(first.text, file=source, field=field, value=first.value, remedy=first.remedy) from problems
