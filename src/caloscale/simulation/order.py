"""The order that a worker process receives."""

from __future__ import annotations

from pathlib import Path

from caloscale.spec import Data
from caloscale.spec.block import Block


class Order(Block):
    """The first line of a worker's input; the numbers of its files follow."""

    data: Data
    """The data block of the run configuration."""
    folder: Path
    """Folder of the files."""
    fingerprint: str
    """Written into each file."""
