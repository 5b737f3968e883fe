"""TPU slices: which topologies exist, on how many hosts."""

from __future__ import annotations

import functools
import math
from typing import Literal

from pydantic import Field, model_validator

from caloscale.errors import ConfigurationError, InputError, InvalidValueError
from caloscale.planning.catalogue.rows import SourcedRow, builtin, read_rows


class Slice(SourcedRow):
    """A TPU slice: chips in a topology, on hosts of a machine type."""

    accelerator: str = Field(min_length=1)
    """TPU generation, such as tpu-v3."""
    label: str = ""
    """Value of the node label cloud.google.com/gke-tpu-accelerator."""
    machine_type: str = Field(min_length=1)
    """Machine type of the hosts."""
    chips_per_host: int = Field(ge=1)
    """Chips of a host."""
    topology: str = Field(pattern=r"^\d+(x\d+){1,2}$")
    """Chips along each axis."""
    hosts: int = Field(ge=1)
    """Hosts: product(topology) / chips per host."""
    price_kind: Literal["tpu_slice", "tpu_chip"]
    """Whether the catalogue prices the slice or the chip."""
    price_sku: str = Field(min_length=1)
    """sku of the price row."""
    retired: bool = False
    """Not sold any more."""
    note: str = ""
    """What else a reader should know."""

    @model_validator(mode="after")
    def _divides(self) -> Slice:
        if hosts_of(self.topology, self.chips_per_host) != self.hosts:
            raise InvalidValueError(
                f"{self.topology} at {self.chips_per_host} chips a host is not {self.hosts} hosts",
                remedy="hosts = product(topology) / chips per host",
            )
        return self

    @property
    def chips(self) -> int:
        """Chips of the slice."""
        return math.prod(map(int, self.topology.split("x")))

    @property
    def title(self) -> str:
        """Type, topology and host, such as ``tpu-v3 2x2 (ct3-hightpu-4t)``."""
        return f"{self.accelerator} {self.topology} ({self.machine_type})"


def hosts_of(topology: str, chips_per_host: int) -> int:
    """Hosts of a slice, product(topology) / chips per host; raises ValueError when that is no whole number."""
    chips = math.prod(map(int, topology.split("x")))
    if chips % chips_per_host:
        raise InvalidValueError(
            f"topology {topology} has {chips} chips, no multiple of {chips_per_host} a host",
            remedy="choose another topology or machine type",
        )
    return chips // chips_per_host


@functools.cache
def load_slices() -> tuple[Slice, ...]:
    """All slices of the catalogue."""
    return tuple(row for _, row in read_rows(builtin("slices.csv"), Slice, InputError))


def find_slices(
    accelerator: str, *, topology: str | None = None, chips: int | None = None, machine_type: str | None = None
) -> list[Slice]:
    """Slices of a TPU generation with a topology, a number of chips and a machine type of the hosts, as far as given.

    A topology may exist on two machine types (v5e 2x4: one host of 8 chips or two of 4).
    Raises ConfigurationError that lists what exists when there is none.
    """
    all_of = [row for row in load_slices() if row.accelerator == accelerator]
    fitting = [row for row in all_of if topology in (None, row.topology) and chips in (None, row.chips)]
    found = [row for row in fitting if machine_type in (None, row.machine_type)]
    if fitting and not found:
        exist = ", ".join(row.machine_type for row in fitting)
        raise ConfigurationError(
            f"has no slice {fitting[0].topology} of {accelerator}",
            field="hardware.machineType",
            value=machine_type,
            remedy=f"one of {exist}",
        )
    if not found:
        exist = ", ".join(dict.fromkeys(f"{row.topology} ({row.chips} chips)" for row in all_of))
        raise ConfigurationError(
            f"{accelerator} has no such slice"
            + (f" of {chips} chips (hardware.count)" if None not in (topology, chips) else ""),
            field="hardware.topology" if topology is not None else "hardware.count",
            value=topology if topology is not None else chips,
            remedy=f"there are {exist}",
        )
    return found
