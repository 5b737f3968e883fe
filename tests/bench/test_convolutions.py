"""The bench of the convolutions on small networks: figures that belong together."""

from __future__ import annotations

import json

import pytest
import tensorflow as tf

from caloscale.bench.convolutions import bench_convolutions, time_convolutions, total_of
from caloscale.bench.results import ConvolutionsBench
from caloscale.bench.tables import bench_tables
from caloscale.errors import BenchError
from caloscale.models.layers.convolution import convolution
from tests.bench.test_page import MACHINE
from tests.training.conftest import small_run


def networks():
    inputs = tf.keras.Input((3, 2, 4, 1))
    y = convolution(inputs, 2, (3, 3, 3), upsampling=(4, 4, 4), name="folded")
    for name in ("one", "other"):
        y = convolution(y, 2, (3, 3, 3), pad=(1, 1, 1), name=name)
    judge = convolution(inputs, 1, (1, 2, 2), name="judge")
    return {"generator": tf.keras.Model(inputs, y), "discriminator": tf.keras.Model(inputs, judge)}


def test_figures_of_layers_and_of_all():
    layers, peak = time_convolutions(networks(), 2, "float32", rounds=2)
    assert [(one.network, one.layers) for one in layers] == [
        ("generator", ("folded",)),
        ("generator", ("one", "other")),
        ("discriminator", ("judge",)),
    ]
    folded, twice, judge = layers
    assert (folded.upsampling, twice.upsampling) == ((4, 4, 4), (1, 1, 1))
    assert (folded.flop, judge.flop) == (2 * 10 * 6 * 14 * 27 * 2, 2 * 3 * 1 * 3 * 4)
    assert peak > 0
    total = total_of(layers, peak)
    assert total.flop == folded.flop + 2 * twice.flop + judge.flop
    for name in ("reference", "ours"):
        times = [getattr(one, name) for one in (folded, twice, twice, judge)]
        assert all(min(one.forward, one.input_gradient, one.kernel_gradient) > 0 for one in times)
        assert getattr(total, name).total == pytest.approx(sum(one.total for one in times))
    for one in (*layers, total):
        assert one.ratio == pytest.approx(one.gflops / one.reference_gflops)
        assert 1e6 * one.gflops * one.ours.total == pytest.approx(3 * one.flop)
        assert one.peak_share == pytest.approx(one.gflops / peak)
    made = ConvolutionsBench(
        preset="variable-angle",
        precision="float32",
        batch=2,
        rounds=2,
        peak_gflops=peak,
        layers=layers,
        total=total,
        machine=MACHINE,
    )
    assert ConvolutionsBench.model_validate_json(made.model_dump_json(by_alias=True)) == made
    assert {"referenceGflops", "peakShare", "ours"} <= set(json.loads(made.model_dump_json(by_alias=True))["total"])
    (table,) = bench_tables(made)
    names = [row[0] for row in table.rows]
    assert names[:2] == ["generator folded (3,3,3) 1-2 after x4 x4 x4", "generator one, other (3,3,3) 2-2"]
    assert names[-1] == "all" and all(len(row) == len(table.columns) for row in table.rows)


def test_networks_without_such_layers():
    with pytest.raises(BenchError, match="compact have no 3D convolution"):
        bench_convolutions(small_run(), 2, rounds=1)
