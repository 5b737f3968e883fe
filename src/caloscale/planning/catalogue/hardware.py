"""Hardware of the catalogue: accelerators, machine types, TPU slices, and what is known of a network beforehand."""

import datetime as dt
import functools
import math
from typing import ClassVar, Literal, Self

from pydantic import Field

from caloscale.errors import ConfigurationError, InputError
from caloscale.planning.catalogue.rows import SourcedRow, builtin_rows
from caloscale.spec import PRESETS, Run, load_run
from caloscale.spec.family import find_family
from caloscale.spec.problem import suggest


class Accelerator(SourcedRow):
    """A GPU, or a TPU chip with all its cores."""

    accelerator: str = Field(min_length=1)
    """Name: the GKE label of a GPU, the generation of a TPU (tpu-v3)."""
    kind: Literal["gpu", "tpu"]
    replicas: int = Field(ge=1, le=2)
    """Replicas of the network: one a GPU, one a TPU core (v2 and v3 have two cores a chip)."""
    memory_gib: float = Field(gt=0)
    """Memory, GiB."""
    peak_tflops: float = Field(gt=0)
    """Peak arithmetic in the precision that TensorFlow trains in by default, TFLOP/s."""
    bandwidth_gb_per_s: float = Field(gt=0)
    """Memory bandwidth, GB/s."""
    watts: float | None = Field(default=None, gt=0)
    """Thermal design power, W; absent: not published."""
    estimated_from: str
    """Accelerator whose measurements are scaled when there are none of this one."""


class Network(SourcedRow):
    """A preset as the planner sees it."""

    network: str = Field(min_length=1)
    """Preset."""
    gflop_per_shower: float = Field(gt=0)
    """Arithmetic of a training step per shower, GFLOP."""
    reduced_mb: float = Field(gt=0)
    """Gradients that are summed over the replicas in a step, MB, all all-reduces together."""
    update_gflop: float = Field(default=0.0, ge=0)
    """Part of the arithmetic that each of the two updates of the generator has, GFLOP."""
    update_mb: float = Field(default=0.0, ge=0)
    """The same of the gradients, MB."""
    activation_mib: float = Field(gt=0)
    """Smallest memory that a step needs per shower of the batch, MiB: the layers' outputs stored once in float32."""
    cells: int = Field(gt=0)
    """Cells of a shower for which arithmetic and memory are valid."""

    def on(self, cells: int, updates: int = 2) -> Self:
        """The network on showers of this many cells, with so many updates of the generator in a step: arithmetic and
        memory grow with the cells of a layer.

        Fewer layers save less than this: a compact network on a fifth of them does half of the arithmetic.
        """
        ratio, more = cells / self.cells, updates - 2
        return self.model_copy(
            update={
                "gflop_per_shower": ratio * (self.gflop_per_shower + more * self.update_gflop),
                "reduced_mb": self.reduced_mb + more * self.update_mb,
                "activation_mib": ratio * self.activation_mib,
                "cells": cells,
            }
        )

    def has_step_of(self, other: "Network") -> bool:
        """Whether a step takes as long as a step of another: cells and arithmetic are equal."""
        return (self.cells, self.gflop_per_shower) == (other.cells, other.gflop_per_shower)


class Carbon(SourcedRow):
    """Carbon intensity of a region's electricity."""

    region: str = Field(min_length=1)
    grams_per_kwh: float = Field(gt=0)
    """g CO2 equivalent per kWh."""


@functools.cache
def load_accelerators() -> dict[str, Accelerator]:
    """All accelerators by name."""
    return {row.accelerator: row for row in builtin_rows("accelerators.csv", Accelerator)}


@functools.cache
def load_networks() -> dict[str, Network]:
    """All networks by preset."""
    return {row.network: row for row in builtin_rows("networks.csv", Network)}


@functools.cache
def load_carbon() -> dict[str, Carbon]:
    """Carbon intensity by region; regions without a row have none."""
    return {row.region: row for row in builtin_rows("carbon.csv", Carbon)}


def network_of(run: Run) -> Network:
    """The networks of a run on its showers: a row of the catalogue, or what its family states (`Family.arithmetic`).

    Raises ConfigurationError where neither is known.
    """
    name, cells, known = run.model.network, math.prod(run.data.shape), load_networks()
    if name in known and run.model.filters is None:
        return known[name].on(cells, run.train.generator_updates)
    stated = find_family(run.model.family).arithmetic(run.model, run.data)
    if stated is None:
        problem = "the family states no arithmetic of a step with these settings, and the planner knows no other"
        remedy = "leave model.settings and model.filters out, "
        remedy += f"plan one of: {', '.join(known)}, or extend the family's method arithmetic"
        raise ConfigurationError(problem, field="model.family", value=name, remedy=remedy)
    return Network(
        network=name,
        gflop_per_shower=stated.gflop_per_shower,
        reduced_mb=sum(stated.reduced_megabytes),
        activation_mib=stated.activation_mib,
        cells=cells,
        source=f"family {run.model.family}",
        observed_on=dt.date.today(),
    )


@functools.cache
def network_of_preset(name: str) -> Network | None:
    """The networks of a preset on the showers of the preset, as in its measurements; None: there is no such preset."""
    return network_of(load_run(preset=name)) if name in PRESETS else None


def replicas_of(accelerator: str, count: int) -> int:
    """Replicas of the network on so many accelerators, or processors' nodes: one each where nothing else is known."""
    known = load_accelerators().get(accelerator)
    return count * (known.replicas if known is not None else 1)


def find_accelerator(name: str, *, field: str = "hardware.accelerator") -> Accelerator:
    """The accelerator of a name; raises ConfigurationError with the nearest name."""
    known = load_accelerators()
    if name not in known:
        remedy = suggest(name, known) or f"one of: {', '.join(known)}"
        raise ConfigurationError("is not an accelerator of the catalogue", field=field, value=name, remedy=remedy)
    return known[name]


Provider = Literal["gcp", "azure", "kind", "none"]


class Machine(SourcedRow):
    """A node: a machine type with the GPUs that are attached to it (none: a CPU machine)."""

    topology: ClassVar[None] = None
    hosts: ClassVar[int] = 1
    provider: Provider
    """Cloud that has it; kind: nodes of a cluster on the user's own machine, which have no price; none: not in the
    catalogue."""
    machine_type: str = Field(min_length=1)
    accelerator: str = ""
    """GPU model, as in the GKE label; empty: none."""
    per_node: int = Field(default=0, ge=0)
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

    @property
    def title(self) -> str:
        """Machine type and accelerators, such as ``n1-standard-64 with 8 x nvidia-tesla-v100``."""
        return self.machine_type + (f" with {self.per_node} x {self.accelerator}" if self.accelerator else "")

    @property
    def name(self) -> str:
        """What `find_machine` has it by: its machine type or, where GPUs are added to that (n1), its title."""
        return self.title if self.priced_by == "parts" else self.machine_type


@functools.cache
def load_machines() -> tuple[Machine, ...]:
    """All nodes of the catalogue."""
    return builtin_rows("machines.csv", Machine)


SPOT_ONLY = ("a3-highgpu-1g", "a3-highgpu-2g", "a3-highgpu-4g")
"""Machine types that are not sold on demand, but as spot (and flex-start): parts of a host with H100s."""
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
    """The node with a machine type and GPUs; a type whose GPUs are fixed, and a name with them, needs no accelerator.

    Raises InputError with the nearest name, or with what the catalogue has.
    """
    machines = load_machines()
    of_type = [machine for machine in machines if machine_type in (machine.machine_type, machine.name)]
    if not of_type:
        raise InputError(
            "is not a machine type of the catalogue",
            field="machineType",
            value=machine_type,
            remedy=suggest(machine_type, {machine.name for machine in machines}) or "see caloscale prices --machines",
        )
    if not accelerator and len(of_type) == 1:
        return of_type[0]
    matching = [m for m in of_type if (m.accelerator, m.per_node) == (accelerator, per_node)]
    if not matching:
        problem = f"has no {per_node} x {accelerator or 'GPU'} in the catalogue"
        remedy = "it comes as " + ", ".join(m.title for m in of_type)
        raise InputError(problem, field="machineType", value=machine_type, remedy=remedy)
    return matching[0]


class Slice(SourcedRow):
    """A TPU slice: chips in a topology, on hosts of a machine type."""

    provider: ClassVar[Provider] = "gcp"
    accelerator: str = Field(min_length=1)
    """TPU generation, such as tpu-v3."""
    label: str = ""
    """Value of the node label cloud.google.com/gke-tpu-accelerator."""
    machine_type: str = Field(min_length=1)
    """Machine type of the hosts."""
    per_node: int = Field(ge=1)
    """Chips of a host."""
    topology: str = Field(pattern=r"^\d+(x\d+){1,2}$")
    """Chips along each axis."""
    hosts: int = Field(ge=1)
    """Hosts: product(topology) / chips of a host."""
    price_kind: Literal["tpu_slice", "tpu_chip"]
    """Whether the catalogue prices the slice or the chip."""
    price_sku: str = Field(min_length=1)
    """sku of the price row."""
    retired: bool = False
    """Not sold any more."""
    note: str = ""

    @property
    def chips(self) -> int:
        """Chips of the slice."""
        return math.prod(map(int, self.topology.split("x")))

    @property
    def title(self) -> str:
        """Type, topology and host, such as ``tpu-v3 2x2 (ct3-hightpu-4t)``."""
        return f"{self.accelerator} {self.topology} ({self.machine_type})"


@functools.cache
def load_slices() -> tuple[Slice, ...]:
    """All slices of the catalogue."""
    return builtin_rows("slices.csv", Slice)


def find_kind(machine_type: str, *, accelerator: str, per_node: int, topology: str | None) -> Machine | Slice:
    """The node with a machine type and GPUs, or where there is a topology the slice. Raises as the two searches."""
    if topology is None:
        return find_machine(machine_type, accelerator=accelerator, per_node=per_node)
    return find_slices(accelerator, topology=topology, machine_type=machine_type)[0]


def find_slices(
    accelerator: str, *, topology: str | None = None, chips: int | None = None, machine_type: str | None = None
) -> list[Slice]:
    """Slices of a TPU generation with a topology, a number of chips and a machine type of the hosts, as far as given.

    A topology may exist on two machine types (v5e 2x4: one host of 8 chips or two of 4).
    Raises ConfigurationError that lists what exists when there is none.
    """
    all_of = [row for row in load_slices() if row.accelerator == accelerator]
    fitting = [row for row in all_of if topology in (None, row.topology) and chips in (None, row.chips)]
    slices = [row for row in fitting if machine_type in (None, row.machine_type)]
    if fitting and not slices:
        exist = ", ".join(row.machine_type for row in fitting)
        problem = f"has no slice {fitting[0].topology} of {accelerator}"
        raise ConfigurationError(problem, field="hardware.machineType", value=machine_type, remedy=f"one of {exist}")
    if not slices:
        exist = ", ".join(dict.fromkeys(f"{row.topology} ({row.chips} chips)" for row in all_of))
        of_chips = f" of {chips} chips (hardware.count)" if None not in (topology, chips) else ""
        field, value = ("hardware.count", chips) if topology is None else ("hardware.topology", topology)
        problem = f"{accelerator} has no such slice{of_chips}"
        raise ConfigurationError(problem, field=field, value=value, remedy=f"there are {exist}")
    return slices
