"""Each bench from beginning to end on a detector of 7 x 6 x 4 cells: real processes, figures that belong together."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from caloscale.bench import benches
from caloscale.bench.benches import bench_generate, bench_step, simulate_some
from caloscale.bench.profiling import profile_step
from caloscale.bench.results import bench_table, describe_machine, machine_text
from caloscale.errors import BenchError, SimulationError
from tests.models import needs_bfloat16
from tests.training.conftest import small_run


def test_the_machine():
    machine = describe_machine()
    assert machine.cores >= 1 and machine.memory_gib > 0
    assert {"caloscale", "numpy", "keras"} <= set(machine.versions)
    assert machine.processor in machine_text(machine)


def test_the_step_is_measured_with_the_threads_of_the_run(monkeypatch):
    environments = {}

    def contender(name, *_, environment=None):
        environments[name] = environment
        raise BenchError("enough")

    monkeypatch.setattr(benches, "Contender", contender)
    monkeypatch.setattr(benches, "make_model", lambda *_: None)
    with pytest.raises(BenchError, match="enough"):
        benches.measure_machine(small_run("train.threads.intra=1"))
    assert environments == {"step": {"TF_NUM_INTRAOP_THREADS": "1"}}


def test_a_machine_is_measured_as_the_one_that_its_seconds_are_priced_as(monkeypatch):
    """With the GPUs that are added to its type: without them it is another, cheaper machine."""

    class Quick(nullcontext):
        def timing(self, scale):
            return SimpleNamespace(median=scale)

    monkeypatch.setattr(benches, "Contender", lambda *_, **__: Quick(Quick()))
    for name in ("make_model", "simulate_some", "interleave"):
        monkeypatch.setattr(benches, name, lambda *_: None)
    for machine in ("n1-standard-8", "n1-standard-8 with 1 x nvidia-tesla-t4", "a2-highgpu-1g"):
        run = small_run(f"budget.pricedAs.machineType={machine}")
        assert benches.measure_machine(run).machine_type == machine


@pytest.mark.long
def test_a_step():
    made = bench_step(small_run(), 8, rounds=3)
    ours, reference = made.contenders
    assert ours.ratio.rounds == reference.milliseconds_per_shower.rounds == 3 and reference.ratio.median == 1
    # Nothing is folded in this network: both do the same arithmetic.
    flop = [one.gflops * one.milliseconds_per_shower.median for one in (ours, reference)]
    assert flop[0] == pytest.approx(flop[1])
    assert ours.gflops < made.peak_gflops and min(ours.peak_memory_mib, reference.peak_memory_mib) > 20
    assert [row[0] for row in bench_table(made).rows] == ["ours", "reference"]


@needs_bfloat16
@pytest.mark.long
def test_generation_in_every_runtime(monkeypatch):
    monkeypatch.setattr(benches, "simulate_some", lambda _: None)
    made = bench_generate(small_run(), 8, rounds=2)
    names = [(one.name, one.precision) for one in made.contenders]
    assert names[0] == ("reference", "float32") and {("tensorflow", "bfloat16"), ("openvino", "bfloat16")} < set(names)
    assert made.contenders[0].ratio.median == 1
    for one in made.contenders:
        assert one.problem is None and one.milliseconds_per_shower.median > 0, one
    assert "not measured" in bench_table(made).note


@pytest.mark.long
def test_generation_on_one_thread():
    made = bench_generate(small_run(), 1, precisions=("float32",), threads=1, rounds=2)
    assert made.geant4 is None and all(one.problem is None for one in made.contenders)
    text = bench_table(made)
    assert "batches of 1, 1 thread" in text.caption and "all cores" in text.note


@pytest.mark.long
def test_geant4_is_measured_on_the_same_cores():
    pytest.importorskip("calzone")
    made = simulate_some(small_run("data.energyGev=[90, 110]"))
    # A shower of 100 GeV takes some tenths of a second on a core, whatever the machine.
    assert made is not None and 0.005 < made.seconds_per_shower < 20
    assert made.energy_gev == (90, 110)


def test_a_failure_of_geant4_is_named(monkeypatch, caplog):
    def fail(*_):
        raise SimulationError("a simulation process ended by SIGSEGV", remedy="run it again")

    monkeypatch.setattr(benches, "simulate", fail)
    assert simulate_some(small_run()) is None
    assert "Geant4 is not measured: a simulation process ended by SIGSEGV" in caplog.text


def test_more_showers_that_took_no_longer_are_no_speed(monkeypatch, caplog):
    """Other work disturbed the shorter simulation: the difference is no time of a shower."""
    seconds = iter((9.0, 8.0))
    monkeypatch.setattr(
        benches, "simulate", lambda data, _: SimpleNamespace(showers=data.showers, seconds=next(seconds))
    )
    assert simulate_some(small_run()) is None and "disturbed" in caplog.text


@pytest.mark.long
def test_a_profile_without_a_training():
    profile = profile_step(small_run(), 8, steps=2)
    assert profile.steps == 2
    assert sum(share.share for share in profile.shares) + profile.input_wait + profile.idle == pytest.approx(1)
