"""A step by layer and by operation: intervals by hand on a small network, and a real step."""

from __future__ import annotations

import pytest
import tensorflow as tf

from caloscale.bench.profiling import break_down_step
from caloscale.models import Networks, build, flops_per_layer
from caloscale.profiling.breakdown import OUTSIDE, break_down, layer_costs, layer_of, work_of
from caloscale.profiling.peak import Peak, measure_bandwidth
from caloscale.profiling.result import Row
from caloscale.profiling.trace import INPUT, STEP, Interval, Trace
from caloscale.report.run_figures import ROWS, breakdown_table, step_breakdown
from tests.training.conftest import small_run

PEAK = Peak(precision="float32", gflops=1.0, median_gflops=1.0)


def networks() -> Networks:
    """A convolution of 4 x 4 cells with kernels of 3 x 3 (1 to 2 channels), an activation; a dense layer."""
    layers = tf.keras.layers
    image, vector = tf.keras.Input((4, 4, 1), name="image"), tf.keras.Input((6,), name="vector")
    x = layers.Conv2D(2, 3, padding="same", name="conv1")(image)
    return {
        "generator": tf.keras.Model(image, layers.LeakyReLU(name="leaky")(x), name="generator"),
        "discriminator": tf.keras.Model(vector, layers.Dense(3, name="head_1")(vector), name="discriminator"),
    }


def test_costs_of_layers_by_hand():
    costs = layer_costs(networks())
    assert costs["generator/conv1"] == (2 * 9 * 2 * 16, 16 + 32, 20, "generator/image")
    assert costs["generator/leaky"] == (None, 32 + 32, 0, "generator/conv1")
    assert costs["discriminator/head_1"] == (36, 9, 21, "discriminator/vector")


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("phase.generator/generator_3/conv1_1/convolution", "generator/conv1"),
        ("gradient_tape/phase.fakes/generator_1/leaky_1/mul", "generator/leaky"),
        ("phase.generator/discriminator/head_1/MatMul", "discriminator/head_1"),
        ("phase.generator/discriminator_2/head_1_1/MatMul", "discriminator/head_1"),
        ("phase.generator/discriminator_2/other/MatMul", OUTSIDE),
        ("mul_46", OUTSIDE),
    ],
)
def test_the_layer_of_an_operation(name, layer):
    assert layer_of(name, layer_costs(networks())) == layer


@pytest.mark.parametrize(
    ("name", "kind", "work"),
    [
        ("phase.generator/generator_1/conv1/convolution", "_MklNativeFusedConv2D", "forward"),
        ("gradient_tape/phase.generator/generator_1/conv1/x", "_MklNativeConv2DBackpropInput", "inputGradient"),
        ("gradient_tape/phase.generator/generator_1/conv1/x", "Conv3DBackpropFilterV2", "kernelGradient"),
        ("gradient_tape/phase.generator/generator_1/leaky/x", "LeakyReluGrad", "gradient"),
        ("phase.generator/part.optimizer/x", "Mul", "optimizer"),
        ("phase.generator/x", "CollectiveReduceV2", "allReduce"),
    ],
)
def test_what_an_operation_computes(name, kind, work):
    assert work_of(Interval(0, 1, name, kind)) == work


def test_two_steps_by_hand():
    """Each step of 100 ns: two calls of the convolution of 20 ns (one computed with the activation behind it, and a
    bias of 5 ns), a gradient of 30."""

    def step(start):
        names = (
            (0, 20, "phase.fakes/generator_1/conv1_1/convolution", "FusedConv2D"),
            (20, 40, "phase.generator/generator_2/leaky_1/LeakyRelu", "FusedConv2D"),
            (40, 45, "phase.generator/generator_2/conv1_1/BiasAdd", "BiasAdd"),
            (45, 75, "gradient_tape/phase.generator/generator_2/conv1_1/back", "Conv2DBackpropFilter"),
        )
        return [Interval(start + a, start + b, name, kind) for a, b, name, kind in names]

    trace = Trace((), tuple(Interval(s, s + 100, STEP) for s in (0, 100)), (*step(0), *step(100)))
    found = break_down(trace, "layer", small_run(), networks(), 8, PEAK, gigabytes_per_second=1.0)
    forward, gradient = found.rows
    assert (forward.name, forward.work, gradient.work) == ("generator/conv1", "forward", "kernelGradient")
    assert (forward.share, gradient.share, found.idle) == pytest.approx((0.45, 0.3, 0.25))
    assert forward.milliseconds == pytest.approx(45e-6) and forward.operations == 3
    assert forward.gflop == pytest.approx(2 * 8 * 576e-9) and gradient.gflop == pytest.approx(8 * 576e-9)
    assert gradient.mib == pytest.approx(4 * (8 * 48 + 20) / 2**20)
    assert gradient.limit_milliseconds == pytest.approx(1e3 * 8 * 576e-9)  # the arithmetic is the longer one
    kinds = break_down(trace, "operation", small_run(), networks(), 8, PEAK, gigabytes_per_second=1.0)
    assert {row.name: row.operations for row in kinds.rows} == {
        "FusedConv2D": 2,
        "BiasAdd": 1,
        "Conv2DBackpropFilter": 1,
    }
    assert all(row.gflop is None for row in kinds.rows)
    with pytest.raises(ValueError, match="no step"):
        break_down(Trace((Interval(0, 1, INPUT),), (), ()), "layer", small_run(), networks(), 8, PEAK, 1.0)


@pytest.mark.integration
def test_a_real_step_by_layer_adds_up():
    """Convolutions have the arithmetic of their shapes: of the generator in each of its calls, and in one gradient each
    for an update."""
    run = small_run()
    found = break_down_step(run, 8, "layer", steps=2)
    assert sum(row.share for row in found.rows) + found.idle + found.input_wait == pytest.approx(1)
    built, updates = build(run.model, run.data), run.train.generator_updates
    seen = {(row.name, row.work): row.gflop for row in found.rows}
    for layer in ("conv1", "conv2"):
        each = 8e-9 * flops_per_layer(built["generator"])[layer]
        assert seen[f"generator/{layer}", "forward"] == pytest.approx((1 + updates) * each)
        assert seen[f"generator/{layer}", "kernelGradient"] == pytest.approx(updates * each)
        each = 8e-9 * flops_per_layer(built["discriminator"])[layer]
        assert seen[f"discriminator/{layer}", "forward"] == pytest.approx((2 + updates) * each)
        assert seen[f"discriminator/{layer}", "kernelGradient"] == pytest.approx(2 * each)
    assert {row.name.partition("/")[0] for row in found.rows} == {"generator", "discriminator", OUTSIDE}


def test_the_bandwidth_is_that_of_a_memory():
    assert 0.1 < measure_bandwidth(size=2**22, rounds=2) < 1e4


def test_the_table_has_the_longest_rows_and_adds_up():
    rows = [
        Row(name=f"generator/l{i}", work="forward", share=0.5 / 30, milliseconds=1.0, operations=1) for i in range(29)
    ]
    longest = Row(
        name="generator/a",
        work="gradient",
        share=0.3,
        milliseconds=9,
        operations=2,
        gflop=0.9,
        mib=2,
        limit_milliseconds=3,
    )
    base = break_down(
        Trace((), (Interval(0, 10, STEP),), (Interval(0, 10, "x", "Mul"),)),
        "layer",
        small_run(),
        networks(),
        8,
        PEAK,
        1.0,
    )
    made = base.model_copy(update={"rows": (longest, *rows), "idle": 0.1, "input_wait": 0.6 - 0.5 * 29 / 30})
    table = breakdown_table(made)
    assert table.rows[0] == ("generator/a", "gradient", "9", "30.0", "2", "100", "2", "33")
    assert len(table.rows) == ROWS + 4 and table.rows[ROWS][0] == f"{30 - ROWS} others"
    shares = [float(row[3]) for row in table.rows[:-1]]
    assert sum(shares) == pytest.approx(100, abs=2) and table.rows[-1][3] == "100.0"
    drawing = step_breakdown(made)
    assert "generator/a (gradient) 9 ms" in drawing.alternative and "1 GFLOP/s" in drawing.caption
