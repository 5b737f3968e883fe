"""The bench of the 3D convolutions, layer by layer: ours beside plain ones, in one process and by turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from caloscale.bench.machine import describe_machine
from caloscale.bench.results import ConvolutionFigures, ConvolutionsBench, ConvolutionTime, PassTimes
from caloscale.errors import BenchError
from caloscale.progress import bar
from caloscale.spec import Run
from caloscale.tensorflow_import import load_tensorflow_quietly

ROUNDS = 7
"""Rounds over all passes, of which the fastest counts; a minute for the published networks in batches of 8."""


def bench_convolutions(run: Run, batch: int, *, rounds: int | None = None) -> ConvolutionsBench:
    """Time the passes of each 3D convolution of both networks on ``batch`` showers.

    Raises BenchError when the networks have none.
    """
    machine = describe_machine()
    load_tensorflow_quietly()
    from caloscale.models import build
    from caloscale.profiling.convolutions import convolution_layers
    from caloscale.profiling.peak import with_measured_precision

    run = with_measured_precision(run)
    precision, networks = run.train.precision, build(run.model, run.data)
    if not any(map(convolution_layers, networks.values())):
        raise BenchError(f"the networks of {run.model.network} have no 3D convolution; give --preset variable-angle")
    layers, peak = time_convolutions(networks, batch, precision, rounds or ROUNDS)
    return ConvolutionsBench(
        preset=run.model.network,
        precision=precision,
        batch=batch,
        rounds=rounds or ROUNDS,
        peak_gflops=peak,
        layers=layers,
        total=total_of(layers, peak),
        machine=machine,
    )


def time_convolutions(
    networks: Mapping[str, Any], batch: int, precision: str, rounds: int
) -> tuple[tuple[ConvolutionTime, ...], float]:
    """Times of the distinct convolutions of Keras models, in the order of their layers, and GFLOP/s of a large matrix
    product in the same rounds."""
    import tensorflow as tf

    from caloscale.profiling import convolutions as passes
    from caloscale.profiling.peak import SIZE

    asked = [
        (network, convolution, layers)
        for network, model in networks.items()
        for convolution, layers in passes.convolution_layers(model).items()
    ]
    left, right = (tf.cast(tf.random.stateless_normal((SIZE, SIZE), (1, seed)), precision) for seed in (1, 2))
    works: dict[tuple[int, str, str], Callable[[], Any]] = {(-1, "product", ""): lambda: tf.matmul(left, right)}
    for number, (_, convolution, layers) in enumerate(asked):
        operands = passes.random_operands(convolution, batch, precision)
        plain = passes.reference_passes(convolution, operands)
        ours = passes.layer_passes(layers[0], convolution, operands)
        for which in passes.PASSES:
            works[number, "plain", which], works[number, "ours", which] = plain[which], ours[which]
    with bar("bench convolutions", (rounds + 1) * len(works), "calls") as shown:
        seconds = passes.seconds_by_turns(works, rounds, after=lambda: shown.update(1))

    peak = 2e-9 * SIZE**3 / min(seconds[-1, "product", ""])

    def times(number: int, whose: str) -> PassTimes:
        return PassTimes(**{one: 1e3 * min(seconds[number, whose, one]) / batch for one in passes.PASSES})

    found = tuple(
        ConvolutionTime(
            network=network,
            layers=tuple(layer.name for layer in layers),
            kernel=convolution.shape.kernel,
            channels=convolution.channels,
            filters=convolution.filters,
            upsampling=convolution.upsampling,
            **_figures(times(number, "plain"), times(number, "ours"), convolution.flop, peak),
        )
        for number, (network, convolution, layers) in enumerate(asked)
    )
    return found, peak


def total_of(layers: Sequence[ConvolutionTime], peak_gflops: float) -> ConvolutionFigures:
    """Of all layers together, each as often as the networks have it."""

    def added(times: Sequence[PassTimes]) -> PassTimes:
        counted = [(len(layer.layers), one) for layer, one in zip(layers, times)]
        return PassTimes(
            forward=sum(count * one.forward for count, one in counted),
            input_gradient=sum(count * one.input_gradient for count, one in counted),
            kernel_gradient=sum(count * one.kernel_gradient for count, one in counted),
        )

    plain, ours = added([layer.reference for layer in layers]), added([layer.ours for layer in layers])
    flop = sum(len(layer.layers) * layer.flop for layer in layers)
    return ConvolutionFigures(**_figures(plain, ours, flop, peak_gflops))


def _figures(plain: PassTimes, ours: PassTimes, flop: int, peak_gflops: float) -> dict[str, Any]:
    rates = [1e-6 * 3 * flop / one.total for one in (plain, ours)]
    return {
        "flop": flop,
        "reference": plain,
        "ours": ours,
        "ratio": plain.total / ours.total,
        "reference_gflops": rates[0],
        "gflops": rates[1],
        "peak_share": rates[1] / peak_gflops,
    }
