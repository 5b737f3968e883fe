"""The machine catalogue: what a node is made of, and what it is priced by."""

from __future__ import annotations

import datetime as dt
import functools
from typing import Literal

from pydantic import Field, model_validator

from caloscale.errors import InputError, InvalidValueError
from caloscale.planning.catalogue.measurements import Provider
from caloscale.planning.catalogue.rows import SourcedRow, builtin, read_rows
from caloscale.spec.problem import suggest


class Machine(SourcedRow):
    """A node: a machine type with the GPUs that are attached to it (none: a CPU machine)."""

    provider: Provider
    """Cloud that has it; kind: nodes of a cluster on the user's own machine, which have no price; none: not in the
    catalogue."""
    machine_type: str = Field(min_length=1)
    """Name of the machine type."""
    accelerator: str = ""
    """GPU model, as the GKE label says it; empty: none."""
    per_node: int = Field(default=0, ge=0, le=64)
    """GPUs of the node."""
    vcpus: int = Field(gt=0)
    """Virtual processors (two to a core on most machines)."""
    memory_gib: float = Field(gt=0)
    """Memory, GiB."""
    priced_by: Literal["parts", "host", "whole", "none", "own"]
    """parts: vCPU and GiB of the family, plus GPUs; host: a row for the host, plus GPUs; whole: one row for
    everything; none: not priced; own: a row of one's own for the machine type, or for each GPU."""
    price_sku: str = ""
    """sku of the price rows: the family (parts), the host (host) or the machine (whole)."""
    price_units: float = Field(default=1, gt=0)
    """Units of the host row: a2-highgpu-8g costs eight times a2-highgpu-1g."""
    usual: bool = True
    """Whether the planner considers it where no machine type is given: one host for each GPU and number."""
    note: str = ""
    """What else a reader should know."""

    @model_validator(mode="after")
    def _is_whole(self) -> Machine:
        if bool(self.accelerator) != bool(self.per_node):
            raise InvalidValueError("accelerator and per_node belong together", remedy="give both or neither")
        if bool(self.price_sku) == (self.priced_by == "none"):
            raise InvalidValueError("price_sku is needed unless priced_by is none", remedy="name the rows of the price")
        return self

    @property
    def title(self) -> str:
        """Machine type and accelerators, such as ``n1-standard-64 with 8 x nvidia-tesla-v100``."""
        return self.machine_type + (f" with {self.per_node} x {self.accelerator}" if self.accelerator else "")


@functools.cache
def load_machines() -> tuple[Machine, ...]:
    """All nodes of the catalogue; raises InputError for duplicate rows."""
    rows = read_rows(builtin("machines.csv"), Machine, InputError)
    seen = set()
    for source, row in rows:
        key = (row.provider, row.machine_type, row.accelerator, row.per_node)
        if key in seen:
            raise InputError("is given twice", file=source, value=row.title, remedy="remove one of the rows")
        seen.add(key)
    return tuple(row for _, row in rows)


OWN = "own"
"""Machine type and region of machines that have none."""


def own_machine(machine_type: str, accelerator: str = "", per_node: int = 0) -> Machine:
    """A machine that is not in the catalogue; its size is not known here."""
    return Machine(
        provider="none",
        machine_type=machine_type or OWN,
        accelerator=accelerator if per_node else "",
        per_node=per_node if accelerator else 0,
        vcpus=1,
        memory_gib=1,
        priced_by="own",
        price_sku=machine_type or OWN,
        source="run configuration, or labels of the nodes",
        observed_on=dt.date.min,
    )


def provider_of(machine_type: str, topology: str | None = None) -> Provider:
    """Who sells a machine type, or a TPU slice; none: it is not in the catalogue."""
    if topology is not None:
        return "gcp"
    return next((machine.provider for machine in load_machines() if machine.machine_type == machine_type), "none")


def find_machine(machine_type: str, *, accelerator: str = "", per_node: int = 0) -> Machine:
    """The node with a machine type and GPUs; a type whose GPUs are fixed needs no accelerator.

    Raises InputError with the nearest name, or with what the catalogue has.
    """
    machines = load_machines()
    of_type = [machine for machine in machines if machine.machine_type == machine_type]
    if not of_type:
        raise InputError(
            "is not a machine type of the catalogue",
            field="machineType",
            value=machine_type,
            remedy=suggest(machine_type, {machine.machine_type for machine in machines})
            or "see caloscale prices --machines",
        )
    wanted = [m for m in of_type if (m.accelerator, m.per_node) == (accelerator, per_node)]
    if not wanted and not accelerator:
        wanted = of_type if len(of_type) == 1 else []
    if not wanted:
        raise InputError(
            f"has no {per_node} x {accelerator or 'GPU'} in the catalogue",
            field="machineType",
            value=machine_type,
            remedy="it comes as " + ", ".join(m.title for m in of_type),
        )
    return wanted[0]
