"""What the objects of an attempt are made from."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from caloscale.cluster import names
from caloscale.cluster.capacity.labels import NodeLabels, load_labels
from caloscale.spec import AnyRun
from caloscale.status import Placed

Manifest = dict[str, Any]


@dataclass(frozen=True)
class Launch:
    """An attempt that is to be launched."""

    owner: names.RunKey
    attempt: int
    run: AnyRun
    """What the operator understands of its run configuration."""
    configuration: Mapping[str, Any]
    """What the workers read (`caloscale.cluster.capacity.resizing.worker_configuration`)."""
    placed: Placed
    image: str
    queue: str | None = None
    """Kueue queue that admits them."""
    node_labels: NodeLabels = field(default_factory=load_labels)
    """What labels and taints of nodes say."""
    alternatives: tuple[Placed, ...] = ()
    """The same layout in other pools, one of which the queue may choose (`caloscale.cluster.capacity.resizing`)."""

    @property
    def name(self) -> str:
        """Name of the job."""
        return names.job_name(self.owner.name, self.attempt)

    @property
    def labels(self) -> dict[str, str]:
        """Labels of the job and of its pods."""
        return self.owner.labels(names.WORKER, self.attempt)

    def metadata(self) -> Manifest:
        """Metadata of the job; its annotations are the plan that the admission policy holds it to."""
        plan = {
            names.WORKERS: str(self.placed.workers),
            names.NODES: str(self.placed.nodes),
            names.ACCELERATORS_PER_WORKER: str(self.placed.accelerators_per_worker),
            # on GKE by its label there, which a table of one's own may give another name
            names.ACCELERATOR: self.placed.node_selector.get(names.GKE_ACCELERATOR, self.placed.accelerator),
        }
        queue = {names.QUEUE_LABEL: self.queue} if self.queue else {}
        return {
            "name": self.name,
            "namespace": self.owner.namespace,
            "labels": {**self.labels, **queue},
            "annotations": plan,
            "ownerReferences": [self.owner.reference],
        }
