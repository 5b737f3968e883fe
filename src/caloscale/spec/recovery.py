"""What is saved during a training, and what happens when machines are preempted or lost."""

from pydantic import Field

from caloscale.spec.block import Block
from caloscale.spec.values import Duration, Place


class Checkpoint(Block):
    """What is saved during training, for resuming."""

    every_seconds: float = Field(60.0, gt=0)
    """Seconds between two checkpoints; the end of the training is saved always."""
    keep: int = Field(3, ge=1)
    """Newest checkpoints that are kept, in addition to the selected one."""
    uri: Place | None = None
    """Where checkpoints are kept: a folder, or gs://bucket/prefix, with a copy of those on the machine's
    disk, so that another machine can resume. Absent: in the workspace, and in its bucket when it is in one."""


class Elastic(Block):
    """Running on fewer nodes than planned, at the same global batch."""

    min_nodes: int | None = Field(default=None, ge=1)
    """Fewest nodes with which the run continues; absent: 1. In a queue: fewest nodes with which it may also start;
    absent: it waits for those of the plan."""
    scale_up: bool = True
    """Return to the planned nodes when they can be had again."""
    scale_up_after: Duration = "1m"
    """How long the planned nodes must have been there before the run returns to them: it costs a restart."""


class Recovery(Block):
    """Restarts after interruptions, and how long to wait for machines."""

    max_restarts: int = Field(default=10, ge=0)
    """Restarts after which the run fails."""
    wait_for_capacity: Duration = "10m"
    """How long to wait for the machines of the plan before planning with fewer."""
    backoff: Duration = "10s"
    """Pause before the first restart; it doubles with each restart that kept no step, up to five minutes."""
    elastic: Elastic = Elastic()
    """Fewer nodes for the time being."""
    save_seconds: float = Field(default=5.0, gt=0)
    """Seconds that a checkpoint stops the training: an assumption for about 20 MB (weights and optimiser of the
    variable-angle network) into a bucket, until a run has measured it."""
