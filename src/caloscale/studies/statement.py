"""What follows from the points of a study."""

from __future__ import annotations

from caloscale.spec.block import Block


class Statement(Block):
    """A sentence with its numbers."""

    claim: str
    """What the study said, or what was asked."""
    finding: str
    """What comes out, with dates and assumptions."""
    figures: dict[str, float]
    """The numbers in it, by name."""
