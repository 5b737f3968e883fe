"""What is known of an accelerator and of a network before anything is measured."""

from __future__ import annotations

import functools
from typing import Literal

from pydantic import Field

from caloscale.errors import ConfigurationError, InputError
from caloscale.planning.catalogue.rows import SourcedRow, builtin, read_rows
from caloscale.spec.problem import suggest


class Accelerator(SourcedRow):
    """A GPU, or a TPU chip with all its cores."""

    accelerator: str = Field(min_length=1)
    """Name: the GKE label of a GPU, the generation of a TPU (tpu-v3)."""
    kind: Literal["gpu", "tpu"]
    """gpu or tpu."""
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
    generator_mb: float = Field(gt=0)
    """Gradients of the generator, MB; summed over the replicas twice a step."""
    discriminator_mb: float = Field(gt=0)
    """Gradients of the discriminator, MB; summed over the replicas twice a step."""
    activation_mib: float = Field(gt=0)
    """Smallest memory that a step needs per shower of the batch, MiB: the layers' outputs stored once in float32."""
    cells: int = Field(gt=0)
    """Cells of a shower for which arithmetic and memory hold."""

    def on(self, cells: int) -> Network:
        """The network on showers of this many cells: arithmetic and memory grow with those of a layer.

        Fewer layers save less than this says: a compact network on a fifth of them does half of the arithmetic.
        """
        ratio = cells / self.cells
        return self.model_copy(
            update={
                "gflop_per_shower": ratio * self.gflop_per_shower,
                "activation_mib": ratio * self.activation_mib,
                "cells": cells,
            }
        )

    @property
    def reduced_bytes(self) -> tuple[float, ...]:
        """Sizes of the all-reduces of a step, bytes."""
        return (self.discriminator_mb * 1e6,) * 2 + (self.generator_mb * 1e6,) * 2


class Carbon(SourcedRow):
    """Carbon intensity of a region's electricity."""

    region: str = Field(min_length=1)
    """Region of the cloud."""
    grams_per_kwh: float = Field(gt=0)
    """g CO2 equivalent per kWh."""


@functools.cache
def load_accelerators() -> dict[str, Accelerator]:
    """All accelerators by name."""
    rows = [row for _, row in read_rows(builtin("accelerators.csv"), Accelerator, InputError)]
    return {row.accelerator: row for row in rows}


@functools.cache
def load_networks() -> dict[str, Network]:
    """All networks by preset."""
    return {row.network: row for _, row in read_rows(builtin("networks.csv"), Network, InputError)}


@functools.cache
def load_carbon() -> dict[str, Carbon]:
    """Carbon intensity by region; regions without a row have none."""
    return {row.region: row for _, row in read_rows(builtin("carbon.csv"), Carbon, InputError)}


def replicas_of(accelerator: str, count: int) -> int:
    """Replicas of the network on so many accelerators, or processors' nodes: one each where nothing else is known."""
    known = load_accelerators().get(accelerator)
    return count * (known.replicas if known is not None else 1)


def find_accelerator(name: str, *, field: str = "hardware.accelerator") -> Accelerator:
    """The accelerator of a name; raises ConfigurationError with the nearest name."""
    known = load_accelerators()
    if name not in known:
        raise ConfigurationError(
            "is not an accelerator of the catalogue",
            field=field,
            value=name,
            remedy=suggest(name, known) or f"one of: {', '.join(known)}",
        )
    return known[name]
