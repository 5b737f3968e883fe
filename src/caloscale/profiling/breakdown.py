"""The time of a training step by layer or by type of operation, beside what the machine allows.

An instant belongs to the operations that run then, as in the profile. The limit of a row is a roofline (Williams,
Waterman, Patterson, CACM 52 (2009) 65): the longer one of its arithmetic at the peak of a matrix product and its
least traffic at the bandwidth of the memory.
"""

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Literal, NamedTuple

import tensorflow as tf

from caloscale.models import Networks, flops_per_layer
from caloscale.models.scopes import phase_and_part
from caloscale.profiling.peak import Peak
from caloscale.profiling.profile import charge, is_matrix
from caloscale.profiling.result import Breakdown, Row, Work
from caloscale.profiling.trace import Interval, Trace
from caloscale.spec import Run

OUTSIDE = "outside of layers"
_OF_KINDS: tuple[tuple[str, Work], ...] = (("BackpropInput", "inputGradient"), ("BackpropFilter", "kernelGradient"))


class LayerCost(NamedTuple):
    """A pass of one shower through a layer."""

    flop: float | None
    """Multiplications and additions; None: no convolution or matrix product."""
    elements: float
    """Numbers of its inputs and outputs."""
    weights: float
    """Its weights, which a batch reads once."""
    behind: str | None = None
    """network/layer whose output alone it takes."""


def layer_costs(networks: Networks) -> dict[str, LayerCost]:
    """By network/layer. Names of networks are their roles."""
    costs = {}
    for role, network in networks.items():
        arithmetic = flops_per_layer(network, folded=True)
        makers = {
            id(tensor): f"{role}/{layer.name}" for layer in network.layers for tensor in tf.nest.flatten(layer.output)
        }
        for layer in network.layers:
            behind = None if isinstance(layer.input, list | tuple) else makers.get(id(layer.input))
            tensors = [*tf.nest.flatten(layer.input), *tf.nest.flatten(layer.output)]
            elements = float(sum(math.prod(tensor.shape[1:]) for tensor in tensors))
            flop = arithmetic.get(layer.name)
            costs[f"{role}/{layer.name}"] = LayerCost(flop, elements, float(layer.count_params()), behind)
    return costs


def layer_of(name: str, layers: Mapping[str, LayerCost]) -> str:
    """network/layer of an operation by its name, `OUTSIDE` for none. A scope that is entered again has a number."""
    roles = "|".join(sorted({layer.partition("/")[0] for layer in layers}))
    for role, scope in re.findall(rf"(?:^|/)({roles})(?:_\d+)?/([^/]+)", name):
        for layer in (f"{role}/{scope}", f"{role}/{re.sub(r'_[0-9]+$', '', scope)}"):
            if layer in layers:
                return layer
    return OUTSIDE


def work_of(operation: Interval) -> Work:
    """What an operation computes."""
    _, part = phase_and_part(operation.name, operation.kind)
    if part == "back_propagation":
        return next((work for word, work in _OF_KINDS if word in operation.name + operation.kind), "gradient")
    return {"forward": "forward", "all_reduce": "allReduce", "optimizer": "optimizer"}[part]  # type: ignore[return-value]


def break_down(
    trace: Trace,
    by: Literal["layer", "operation"],
    run: Run,
    networks: Networks,
    batch: int,
    peak: Peak,
    gigabytes_per_second: float,
) -> Breakdown:
    """The traced steps, each on ``batch`` showers. Raises ValueError without a whole step."""
    costs = layer_costs(networks)

    def key(operation: Interval) -> tuple[str, Work]:
        if by == "operation":
            return operation.kind.removeprefix("_Mkl").removeprefix("Native"), work_of(operation)
        layer = layer_of(operation.name, costs)
        if "Fused" in operation.kind and layer in costs and costs[layer].flop is None:
            layer = (
                costs[layer].behind or layer
            )  # an activation that TensorFlow computes within the convolution before it
        return layer, work_of(operation)

    spent, waited, idle, seconds = charge(trace, key, lambda one: one[1] == "allReduce")
    names: dict[tuple[str, Work], list[str]] = defaultdict(list)
    products: dict[tuple[str, Work], list[str]] = defaultdict(list)
    for operation in trace.operations:
        names[key(operation)].append(operation.name)
        if is_matrix(operation):
            products[key(operation)].append(operation.name)
    steps, itemsize = len(trace.steps), tf.as_dtype(peak.precision).size
    rows = []
    for (name, work), value in spent.items():
        mine = names[name, work]
        figures: dict[str, float] = {}
        if by == "layer" and name in costs and work != "optimizer":
            cost = costs[name]
            passes = len(mine) / steps / _operations_of_a_pass(mine, name)
            traffic = itemsize * passes * (batch * cost.elements + cost.weights)
            figures = {"mib": traffic / 2**20}
            if cost.flop is not None and products[name, work]:
                each = _operations_of_a_pass(products[name, "forward"] or products[name, work], name)
                figures["gflop"] = 1e-9 * cost.flop * batch * len(products[name, work]) / steps / each
            least = max(figures.get("gflop", 0.0) / peak.gflops, 1e-9 * traffic / gigabytes_per_second)
            figures["limit_milliseconds"] = 1e3 * least
        rows.append(
            Row(
                name=name,
                work=work,
                share=value / seconds,
                milliseconds=1e3 * value / steps,
                operations=len(mine) / steps,
                **figures,
            )
        )
    return Breakdown(
        by=by,
        preset=run.model.network,
        precision=peak.precision,
        batch=batch,
        steps=steps,
        seconds_per_step=seconds / steps,
        rows=tuple(sorted(rows, key=lambda row: -row.share)),
        input_wait=waited / seconds,
        idle=idle / seconds,
        peak_gflops=peak.gflops,
        gigabytes_per_second=gigabytes_per_second,
    )


def _operations_of_a_pass(names: list[str], layer: str) -> float:
    """Operations of a layer in one call of its network: each call has a scope of its own."""
    different, call = set(names), re.compile(rf"^.*?(?:^|/){layer.partition('/')[0]}(?:_\d+)?/")
    calls = {found[0] for found in map(call.match, different) if found}
    return len(different) / max(len(calls), 1)
