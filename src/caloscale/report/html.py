"""A report as one HTML page that needs no other file."""

import base64
from pathlib import Path
from typing import Any

import jinja2

from caloscale.report.blocks import Cell, Page, Section, anchor, words

DOTS_PER_INCH = 130
"""Of the figures."""
READABLE_DOTS_PER_INCH = 72
"""Letters of 12 points are 12 pixels high: on a narrow screen figures are not made smaller than that."""


def render(page: Page) -> str:
    """The page as HTML: images are inlined, nothing is loaded from elsewhere, all text is escaped.

    Raises OSError when a figure cannot be read.
    """
    return _environment().get_template("report.html").render(page=page)


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"words": words, "anchor": anchor, "image": _image}
    environment.tests |= {
        "listing": lambda value: isinstance(value, list | tuple),
        "section": lambda value: isinstance(value, Section),
    }
    environment.filters["value"] = lambda value: f"{value:.4g}" if isinstance(value, float) else str(value)
    environment.filters["kind"] = lambda block: type(block).__name__
    environment.filters["cell"] = lambda cell: cell if isinstance(cell, Cell) else Cell(cell)
    return environment


def _image(png: Path) -> dict[str, Any]:
    """An image with its size in pixels, which the header of a PNG states, and the width at which it can be read."""
    content = png.read_bytes()
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    return {
        "base64": base64.b64encode(content).decode("ascii"),
        "width": width,
        "height": height,
        "readable": round(width * READABLE_DOTS_PER_INCH / DOTS_PER_INCH),
    }
