"""The machines of a run, as far as the run configuration fixes them; the planner chooses the rest."""

import math
from collections.abc import Mapping
from importlib import resources
from typing import Any, Literal, Self

import yaml
from pydantic import Field, model_validator
from pydantic.alias_generators import to_camel

from caloscale.errors import InvalidValueError
from caloscale.spec.block import Block
from caloscale.spec.values import Duration

MOST_NODES = 1024
MOST_WORKERS = 2048
"""The status of a run has an entry for each worker, at most some 270 bytes, and the API server takes 1 MiB."""
_NAMES = resources.files("caloscale.spec").joinpath("accelerators.yaml").read_text(encoding="utf-8")
ACCELERATORS: dict[str, str] = yaml.safe_load(_NAMES)
"""Other names of accelerators, in small letters: as people write them, and as GKE labels TPU slices."""


class Hardware(Block):
    """Where the run trains. Every field may be absent: then the planner chooses."""

    cloud: Literal["gcp", "azure", "none"] | None = None
    """gcp or azure; none: machines that no cloud of the catalogue sells, one's own for example, whose price is a row of
    one's own or unknown (node hours and accelerator hours are counted); absent: whichever is best, on a cluster
    whatever its nodes are."""
    accelerator: str | None = None
    """GPU model as GKE labels it (nvidia-tesla-v100), or TPU generation (tpu-v3). Short names (v100, a100, v5e) and
    GKE's labels of TPU slices are taken for these, except with cloud none. Naming one that has no measurement of the
    network lets the planner choose it all the same, by an estimate. On a cluster also cpu: nodes without accelerators,
    count of them."""
    machine_type: str | None = None
    """Machine type of the nodes (n1-standard-64); absent: the usual host of the accelerator and perNode."""
    count: int | None = Field(default=None, ge=1, le=16 * MOST_NODES)
    """GPUs, or TPU chips (v2 and v3: two cores, so two replicas, a chip)."""
    per_node: int | None = Field(default=None, ge=1, le=MOST_WORKERS)
    """Accelerators of a node."""
    topology: str | None = Field(default=None, pattern=r"^\d+(x\d+){1,2}$")
    """Topology of the TPU slice in chips, such as 2x2 or 4x4."""
    capacity_type: Literal["spot", "on-demand"] | None = None
    """spot (also preemptible, low priority): may be preempted at any time, cheaper."""
    region: str | None = None
    """Region of the machines and of the prices."""
    placement: Literal["Aligned", "Free"] = "Aligned"
    """Aligned: one worker a node with all its accelerators. Free: any division into workers."""
    nodes: int | None = Field(default=None, ge=1, le=MOST_NODES)
    """Nodes; absent: from count and perNode."""
    workers: int | None = Field(default=None, ge=1, le=MOST_WORKERS)
    """Workers; absent: one a node (Aligned), or the best (Free)."""
    accelerators_per_worker: int | None = Field(default=None, ge=1, le=MOST_WORKERS)
    """Accelerators of a worker; absent: all of the node (Aligned), or the best (Free)."""
    advertised: bool = False
    """The accelerators are only advertised, as on a development cluster: train on the processor when TensorFlow does
    not see them. False: a worker that was given accelerators and does not see them ends with exit code 140."""
    max_nodes: int = Field(default=16, ge=1, le=MOST_NODES)
    """Most nodes that the planner considers when it chooses the count."""
    queue: str | None = None
    """Kueue queue that admits the run."""
    interruptions_per_node_hour: float | None = Field(default=None, ge=0, le=3600)
    """Interruptions of a spot node per hour. Absent: a rate from own bills where there is one; otherwise unknown,
    and the plan states up to which rate spot pays."""
    provisioning: Duration | None = None
    """Time until a preempted node is replaced and ready. Absent: the mean of the column provisioning_seconds of own
    measurements, otherwise recovery.waitForCapacity is taken as its upper limit."""
    node_lifetime: Duration | None = None
    """Longest life of a spot node (24h for the preemptible machines and TPUs of the study); absent: no limit."""
    disk_gib: float = Field(default=0, ge=0)
    """Boot disk of a node that is billed, GiB; needs a price row of kind disk_gib. 0: left out of the estimate."""
    control_plane: bool = False
    """Count the cluster's control plane; needs a price row of kind control_plane."""

    @model_validator(mode="before")
    @classmethod
    def _has_the_name_of_the_catalogue(cls, given: Any) -> Any:
        if isinstance(given, Mapping) and given.get("cloud") != "none" and isinstance(given.get("accelerator"), str):
            name = given["accelerator"]
            return {**given, "accelerator": ACCELERATORS.get(name.strip().lower(), name)}
        return given

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        for whole, part, number in (("count", "per_node", "nodes"), ("count", "accelerators_per_worker", "workers")):
            total, size, factor = (getattr(self, name) for name in (whole, part, number))
            if total is not None and size is not None and total % size:
                remedy = "change one of the two, or leave one out"
                raise InvalidValueError(f"count {total} is not a multiple of {to_camel(part)} {size}", remedy=remedy)
            if None not in (total, size, factor) and total != size * factor:
                problem = f"count {total} is not {number} {factor} x {to_camel(part)} {size}"
                raise InvalidValueError(problem, remedy="leave one of the three out")
        self._check_topology()
        for of_workers, of_nodes in (("workers", "nodes"), ("accelerators_per_worker", "per_node")):
            worker, node = getattr(self, of_workers), getattr(self, of_nodes)
            if self.placement == "Aligned" and None not in (worker, node) and worker != node:
                name = to_camel(of_workers)
                problem = f"{name} {worker} differ from {to_camel(of_nodes)} {node} with placement Aligned"
                raise InvalidValueError(problem, remedy=f"leave {name} out, or set placement: Free")
        return self

    def _check_topology(self) -> None:
        """Hosts x chips of a host are the chips of the slice."""
        if self.topology is None:
            return
        chips = math.prod(map(int, self.topology.split("x")))
        if self.count not in (None, chips):
            problem = f"count {self.count} is not the number of chips of topology {self.topology}, {chips}"
            raise InvalidValueError(problem, remedy="leave count out")
        if self.nodes is not None and self.per_node is not None and self.nodes * self.per_node != chips:
            problem = f"nodes (hosts) {self.nodes} x perNode (chips of a host) {self.per_node} is not the number of "
            problem += f"chips of topology {self.topology}, {chips}"
            raise InvalidValueError(problem, remedy="leave nodes and perNode out")
