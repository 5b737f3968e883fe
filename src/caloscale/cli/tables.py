"""Tables in a terminal; in a pipe they are as wide as they need."""

import re
import sys
from collections.abc import Collection, Iterable, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from caloscale.report import blocks

WIDTH = 80
"""Columns that a table without --wide fits."""
_NUMBER = re.compile(r"[+-]?[\d,.]+(e[+-]?\d+)?%?")


def console() -> Console:
    """Where tables go."""
    return Console(width=None if sys.stdout.isatty() else 160, highlight=False, markup=False)


def show(*shown: blocks.Block | blocks.Section, wide: bool = False, keep: Collection[str] = ()) -> None:
    """Print what a page shows; without ``wide`` a table has the columns that 80 columns hold.

    keep: columns that are the last to be left out.
    """
    out, after_table = console(), False
    for block in shown:
        if after_table or (isinstance(block, blocks.Table) and block is not shown[0]):
            out.print()
        after_table = isinstance(block, blocks.Table)
        match block:
            case blocks.Text():
                out.print(block.text, style="bold" if block.tone == "strong" else "", soft_wrap=True)
            case blocks.Notice():
                out.print(f"warning: {block.text}", soft_wrap=True)
            case blocks.Facts():
                for fact in block.facts:
                    out.print(f"{fact.label}: {fact.text}", soft_wrap=True)
            case blocks.Table():
                rows = block.texts()
                left_out = () if wide else surplus(block.columns, rows, keep, block.wide)
                out.print(table(block.caption, block.columns, rows, left_out))
                if block.note:
                    out.print(block.note, soft_wrap=True)
            case blocks.Figure():
                out.print(f"figure: {block.png}", soft_wrap=True)
            case _:
                raise TypeError(f"{type(block).__name__} is for pages alone")


def surplus(
    columns: Sequence[str], rows: Sequence[Sequence[str]], keep: Collection[str] = (), wide: Collection[str] = ()
) -> tuple[str, ...]:
    """The columns without which a table fits 80 columns: those named wide, then the last ones not to be kept."""
    left_out, ruler = list(wide), Console(width=1000)
    for column in reversed([one for one in columns if one not in keep and one not in wide]):
        if Measurement.get(ruler, ruler.options, table("", columns, rows, left_out)).maximum <= WIDTH:
            break
        left_out.append(column)
    return tuple(column for column in columns if column in left_out)


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], without: Collection[str] = frozenset()
) -> Table:
    """A table of text, without some of the columns; columns of numbers are aligned to the right."""
    kept = [index for index, column in enumerate(columns) if column not in without]
    columns = [columns[index] for index in kept]
    held = [tuple(row[index] for index in kept) for row in rows]
    several_lines = any("\n" in cell for row in held for cell in row)
    shown = Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        collapse_padding=True,
        leading=int(several_lines),
    )
    for index, column in enumerate(columns):
        numbers = all(_NUMBER.fullmatch(row[index]) for row in held if row[index])
        shown.add_column(column, justify="right" if numbers else "left")
    for row in held:
        shown.add_row(*row)
    return shown
