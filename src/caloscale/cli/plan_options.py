"""Options of the commands that plan and price."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated

import typer

Prices = Annotated[
    list[Path] | None,
    typer.Option("--prices", metavar="FILE", help="CSV of prices that go before the catalogue's. May be repeated."),
]
Measurements = Annotated[
    list[Path] | None,
    typer.Option(
        "--measurements", metavar="FILE", help="CSV of own measurements (caloscale calibrate). May be repeated."
    ),
]
AsOf = Annotated[
    dt.datetime | None,
    typer.Option("--as-of", formats=["%Y-%m-%d"], metavar="DATE", help="Day of the prices; absent: today."),
]


def day_of(as_of: dt.datetime | None) -> dt.date:
    """The day that was asked for, or today."""
    return as_of.date() if as_of else dt.date.today()
