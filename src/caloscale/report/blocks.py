"""What a report consists of: facts, tables, figures with alternative texts, sections. Blocks know no physics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

Tone = Literal["", "good", "bad", "open", "pale", "strong"]


@dataclass(frozen=True)
class Text:
    """A paragraph; tone: pale for what is said in passing, strong for what comes first."""

    text: str
    tone: Tone = ""


@dataclass(frozen=True)
class Notice:
    """What a reader must not miss. detail: preformatted text below it."""

    text: str
    failed: bool = False
    detail: str = ""


@dataclass(frozen=True)
class Statement:
    """A word, such as "accepted", and the sentence that explains it."""

    word: str
    text: str
    tone: Tone


@dataclass(frozen=True)
class Fact:
    """A number with its name."""

    label: str
    value: str
    detail: str = ""

    @property
    def text(self) -> str:
        """The number and its detail in a line."""
        return f"{self.value}, {self.detail}" if self.detail else self.value


@dataclass(frozen=True)
class Facts:
    """Numbers at a glance."""

    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Cell:
    """A cell of a table that is more than a number. link: name of the cell that explains it; name: its own."""

    text: str
    tone: Tone = ""
    link: str = ""
    name: str = ""


@dataclass(frozen=True)
class Table:
    """A table; the first cell of a row names the row, with `total` the last row is the sum of the others.

    note: how it is to be read. wide: columns that a narrow terminal does without.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str | Cell, ...], ...]
    total: bool = False
    note: str = ""
    wide: tuple[str, ...] = ()

    @classmethod
    def of(cls, caption: str, rows: Sequence[Mapping[str, str | Cell]], **options: Any) -> Table:
        """A table of rows by column, of which there is at least one. options: the other fields."""
        return cls(caption, tuple(rows[0]), tuple(tuple(row.values()) for row in rows), **options)

    def texts(self) -> list[tuple[str, ...]]:
        """The rows as texts."""
        return [tuple(cell.text if isinstance(cell, Cell) else cell for cell in row) for row in self.rows]


@dataclass(frozen=True)
class Figure:
    """A figure on disk. alternative: what is seen in it, in words."""

    name: str
    title: str
    caption: str
    alternative: str
    png: Path


@dataclass(frozen=True)
class Values:
    """Nested names and values, such as a configuration."""

    values: Mapping[str, Any]


@dataclass(frozen=True)
class Details:
    """Blocks that are shown on demand."""

    summary: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Section:
    """Blocks under a heading; sections in it are a level below."""

    title: str
    blocks: tuple[Block | Section, ...]

    def headings(self) -> Iterator[str]:
        """Titles of the sections and figures directly in it."""
        return (block.title for block in self.blocks if isinstance(block, Section | Figure))


Block = Text | Notice | Statement | Facts | Table | Figure | Values | Details


@dataclass(frozen=True)
class Page:
    """A whole report. lead: one sentence below the title. notices: before all sections."""

    title: str
    lead: str
    notices: tuple[Notice, ...]
    sections: tuple[Section, ...]


def anchor(title: str) -> str:
    """The address of a heading in its page."""
    return "-".join("".join(c if c.isalnum() else " " for c in title.lower()).split())


def words(name: str) -> str:
    """generatorLoss, generator_loss or generator/loss as "generator loss"."""
    spaced = "".join(f" {c.lower()}" if c.isupper() and k and name[k - 1].islower() else c for k, c in enumerate(name))
    return " ".join(spaced.replace("_", " ").replace("/", " ").replace(".", " ").split())


def markdown(*blocks: Block) -> str:
    """Texts, statements and tables as Markdown."""
    parts: list[str] = []
    for block in blocks:
        match block:
            case Table():
                rows: list[Sequence[str]] = list(block.texts())
                if block.total:
                    rows[-1] = [f"**{cell}**" if cell else "" for cell in rows[-1]]
                lines = [block.columns, ["---", *["---:"] * (len(block.columns) - 1)], *rows]
                cells = [[cell.replace("|", "/").replace("\n", "<br>") for cell in line] for line in lines]
                text = "\n".join(f"| {' | '.join(line)} |" for line in cells)
                parts += filter(None, (block.caption and f"{block.caption}:", text, block.note))
            case Statement():
                parts.append(f"**{block.word[0].upper()}{block.word[1:]}: {block.text}**")
            case Text():
                parts.append(f"**{block.text}**" if block.tone == "strong" else block.text)
            case Notice():
                parts.append(f"**{block.text}**")
            case _:
                raise TypeError(f"{type(block).__name__} has no Markdown")
    return "\n\n".join(parts) + "\n"
