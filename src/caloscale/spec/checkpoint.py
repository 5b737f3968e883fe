"""What is saved during a training."""

from __future__ import annotations

from pydantic import Field

from caloscale.spec.block import Block
from caloscale.spec.place import Place


class Checkpoint(Block):
    """What is saved during training, for resuming."""

    every_seconds: float = Field(60.0, gt=0)
    """Seconds between two checkpoints; the end of the training is saved always."""
    keep: int = Field(3, ge=1)
    """Newest checkpoints that are kept, beside the selected one."""
    uri: Place | None = None
    """Where checkpoints are kept: a folder, or gs://bucket/prefix, which holds a copy of those on the machine's
    disk, so that another machine can resume. Absent: in the workspace, and in its bucket when it is in one."""
