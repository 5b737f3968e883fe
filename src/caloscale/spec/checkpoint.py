"""What is saved during a training."""

from __future__ import annotations

import re

from pydantic import Field, field_validator

from caloscale.errors import InvalidValueError
from caloscale.spec.block import Block


class Checkpoint(Block):
    """What is saved during training, for resuming."""

    every_seconds: float = Field(60.0, gt=0)
    """Seconds between two checkpoints; the end of the training is saved always."""
    keep: int = Field(3, ge=1)
    """Newest checkpoints that are kept, beside the selected one."""
    uri: str | None = None
    """Where checkpoints are kept: a folder, or gs://bucket/prefix, which holds a copy of those on the machine's
    disk, so that another machine can resume. Absent: in the workspace, and in its bucket when it is in one."""

    @field_validator("uri")
    @classmethod
    def _is_a_place(cls, uri: str | None) -> str | None:
        scheme = re.match(r"([a-z0-9+.-]+)://", uri or "", re.IGNORECASE)
        if uri == "" or (scheme and not re.match(r"gs://[^/]+", uri or "")):
            raise InvalidValueError(
                "is neither a folder nor a bucket", remedy="write gs://bucket/prefix or the path of a folder"
            )
        return uri
