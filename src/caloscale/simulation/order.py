"""What a worker process is told to do."""

from __future__ import annotations

from pathlib import Path

from caloscale.spec import Data
from caloscale.spec.block import Block


class Order(Block):
    """The first line that a worker reads; the numbers of its files follow."""

    data: Data
    """The document's data block."""
    folder: Path
    """Where the files go."""
    fingerprint: str
    """Written into each file."""
