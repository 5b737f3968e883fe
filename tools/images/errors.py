"""What can go wrong when images are built."""

from __future__ import annotations

from caloscale.errors import CaloscaleError


class ImageError(CaloscaleError):
    """No engine that builds images, or it failed."""

    exit_code = 4
