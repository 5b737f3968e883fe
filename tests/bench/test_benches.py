"""Each bench from beginning to end on a detector of 7 x 6 x 4 cells: real processes, figures that belong together."""

from __future__ import annotations

import json

import pytest

from caloscale.bench.generate import bench_generate
from caloscale.bench.machine import describe_machine
from caloscale.bench.profiling import profile_step
from caloscale.bench.tables import bench_tables, machine_text
from caloscale.bench.training import bench_input, bench_step
from tests.models import needs_bfloat16
from tests.training.conftest import shards, small_run  # noqa: F401


def test_the_machine():
    machine = describe_machine()
    assert machine.cores >= 1 and machine.memory_gib > 0
    assert {"caloscale", "numpy", "keras"} <= set(machine.versions)
    assert machine.processor in machine_text(machine)


@pytest.mark.long
def test_a_step():
    made = bench_step(small_run(), 8, rounds=3)
    document = json.loads(made.model_dump_json(by_alias=True))
    wanted = {"secondsPerEvent", "ratio", "gflops", "peakGflops", "peakMemoryMiB", "reference", "machine"}
    assert wanted <= set(document)
    assert {"secondsPerEvent", "gflops", "peakMemoryMiB"} <= set(document["reference"])
    assert made.spread.rounds == made.reference.spread.rounds == 3
    # Nothing is folded in this network: both do the same arithmetic.
    assert made.gflops * made.seconds_per_event == pytest.approx(
        made.reference.gflops * made.reference.seconds_per_event
    )
    assert made.gflops < made.peak_gflops
    (text,) = bench_tables(made)
    assert [row[0] for row in text.rows] == ["ours", "reference"]


@needs_bfloat16
@pytest.mark.long
def test_generation_in_every_runtime():
    made = bench_generate(small_run(), 8, rounds=2, geant4=False)
    names = [(one.runtime, one.precision) for one in made.runtimes]
    assert names[0] == ("reference", "float32") and {("tensorflow", "bfloat16"), ("openvino", "bfloat16")} < set(names)
    assert made.runtimes[0].ratio == 1
    for one in made.runtimes:
        assert one.problem is None and one.milliseconds_per_shower > 0, one
    assert "not installed" in bench_tables(made)[0].note


@pytest.mark.long
def test_generation_on_one_thread():
    made = bench_generate(small_run(), 1, precisions=("float32",), threads=1, rounds=2)
    assert made.geant4 is None and all(one.problem is None for one in made.runtimes)
    (text,) = bench_tables(made)
    assert "batches of 1, 1 thread" in text.caption and "all cores" in text.note


@pytest.mark.long
def test_geant4_is_measured_on_the_same_cores():
    pytest.importorskip("calzone")
    from caloscale.bench.generate import simulate_some

    made = simulate_some(small_run("data.energyGev=[90, 110]"))
    # A shower of 100 GeV takes some tenths of a second on a core, whatever the machine.
    assert made is not None and 0.005 < made.seconds_per_shower < 20
    assert made.energy_gev == (90, 110)


@pytest.mark.long
def test_the_input(shards):  # noqa: F811
    made = bench_input(small_run(), 8, dataset=shards, rounds=2)
    assert made.showers == 40
    assert made.ratio == pytest.approx(made.showers_per_second / made.consumed_per_second)


@pytest.mark.long
def test_a_profile_without_a_training():
    profile = profile_step(small_run(), 8, steps=2)
    assert profile.steps == 2
    assert sum(share.share for share in profile.shares) + profile.input_wait + profile.idle == pytest.approx(1)
