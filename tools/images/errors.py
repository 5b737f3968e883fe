"""What can go wrong when images are built."""

from __future__ import annotations

from caloscale.errors import CaloscaleError


class ImageError(CaloscaleError):
    """No engine that builds images, or it failed."""

    exit_code = 4

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(f"{problem}\n  remedy: {remedy}")
