"""The profile: shares from intervals by hand, from TensorFlow's own profiler, and within a loop."""

import json
import logging
import math
import os
import subprocess
import sys
import tempfile
import time
from functools import partial

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st
from tensorflow.tsl.profiler.protobuf import xplane_pb2

from caloscale.models import build
from caloscale.models.arithmetic import flops
from caloscale.models.families.gan import Gan
from caloscale.models.families.step import PARTS, part_scope, phase_and_part, phase_scope
from caloscale.models.optimizers import Schedule
from caloscale.ports import free_ports
from caloscale.profiling.peak import measure_peak
from caloscale.profiling.profile import StepProfiler, describe, divide, keeper
from caloscale.profiling.result import Profile
from caloscale.profiling.trace import COMPILED, INPUT, STEP, Interval, Recording, Trace, read_trace
from caloscale.showers.tfrecord.manifest import read_manifest
from caloscale.training.input import TrainingShowers
from caloscale.training.state import TrainingState, make_steps
from tests.training.conftest import small_run


def operation(start, end, phase="generator", part="forward", kind="Mul"):
    return Interval(start, end, f"phase.{phase}/part.{part}/x", kind)


def trace(operations, inputs=((0, 10),), steps=((10, 100),)):
    return Trace(
        tuple(Interval(*times, INPUT) for times in inputs),
        tuple(Interval(*times, STEP) for times in steps),
        tuple(sorted(operations, key=lambda one: one.start)),
    )


def test_intervals_by_hand():
    """ns: waits 0-10; 20-60 a convolution; 40-60 an update beside it; 90-120 reaches beyond the step; else idle."""
    found, waited, idle, matrix, seconds = divide(
        trace(
            [
                operation(20, 60, "discriminator_real", "back_propagation", "Conv3DBackpropFilterV2"),
                operation(40, 60, "generator", "optimizer"),
                operation(90, 120),
            ]
        )
    )
    expected = {
        ("discriminator_real", "back_propagation"): 30e-9,
        ("generator", "optimizer"): 10e-9,
        ("generator", "forward"): 10e-9,
    }
    assert found == pytest.approx(expected)
    assert (waited, idle, matrix, seconds) == pytest.approx((10e-9, 40e-9, 30e-9, 100e-9))


def test_an_all_reduce_beside_a_computation_costs_nothing():
    found, *_ = divide(trace([operation(20, 60), operation(50, 90, "generator", "all_reduce")]))
    assert found == pytest.approx({("generator", "forward"): 40e-9, ("generator", "all_reduce"): 30e-9})


times = st.tuples(st.integers(0, 200), st.integers(0, 60), st.sampled_from(Gan.phases), st.sampled_from(PARTS))


@given(st.lists(times, max_size=12), st.integers(0, 30), st.integers(1, 30))
def test_shares_always_add_up_to_the_steps(drawn, wait, length):
    operations = [operation(start, start + width, phase, part) for start, width, phase, part in drawn]
    marks = [(k * (wait + length), k * (wait + length) + wait) for k in range(3)]
    steps = [(end, end + length) for _, end in marks]
    found, waited, idle, _, seconds = divide(trace(operations, marks, steps))
    assert seconds == pytest.approx(3e-9 * (wait + length))
    assert sum(found.values()) + waited + idle == pytest.approx(seconds)
    # An instant-by-instant count is the same.
    at = np.arange(0, 3 * (wait + length)) + 0.5
    running = [(o.start < at) & (at < o.end) for o in operations]
    waiting = np.any([(a < at) & (at < b) for a, b in marks], axis=0)
    busy = np.any(running, axis=0) if running else np.zeros(len(at), bool)
    assert waited == pytest.approx(1e-9 * np.sum(waiting & ~busy))
    assert idle == pytest.approx(1e-9 * np.sum(~waiting & ~busy))


def test_without_a_step_there_is_no_profile():
    with pytest.raises(ValueError, match="no step"):
        divide(trace([], steps=()))


@pytest.mark.parametrize(
    ("name", "kind", "place"),
    [
        ("phase.fakes/generator/conv1/Conv3D", "Conv3D", ("fakes", "forward")),
        ("step/phase.generator_1/discriminator/dense/MatMul", "MatMul", ("generator", "forward")),
        ("gradient_tape/phase.discriminator_real/d/mul", "Mul", ("discriminator_real", "back_propagation")),
        ("replica_1/phase.discriminator_fake/part.optimizer_2/mul", "Mul", ("discriminator_fake", "optimizer")),
        ("phase.generator/x", "CollectiveReduceV2", ("generator", "all_reduce")),
        ("generator/conv1/Conv3D", "Conv3D", (None, "forward")),
    ],
)
def test_phase_and_part_of_operations(name, kind, place):
    assert phase_and_part(name, kind) == place


def test_scopes_reach_the_profiler_and_gradients_keep_them():
    x = tf.Variable(tf.ones((256, 256)))

    @tf.function
    def step():
        with phase_scope("discriminator_real"), tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.matmul(x, x))
        with phase_scope("discriminator_real"), part_scope("optimizer"):
            x.assign_sub(1e-6 * tape.gradient(loss, x))
        with phase_scope("generator"):
            return tf.reduce_sum(tf.linalg.matmul(x, x))

    step()
    found = []
    profiler = StepProfiler(found.append, first=1, count=2)
    begin = time.perf_counter()
    for number in range(4):
        if number == 1:
            begin = time.perf_counter()
        profiler.batch_ready()
        step().numpy()
        profiler.step_done()
        if number == 2:
            elapsed = time.perf_counter() - begin
    assert len(found) == 1 and len(found[0].steps) == 2
    places = {phase_and_part(one.name, one.kind) for one in found[0].operations}
    assert places >= {
        ("discriminator_real", "forward"),
        ("discriminator_real", "back_propagation"),
        ("discriminator_real", "optimizer"),
        ("generator", "forward"),
    }
    assert 0 < divide(found[0])[4] < elapsed


def test_kernels_of_an_accelerator_are_read_instead_of_the_host():
    """The form that TensorFlow writes for GPUs; there is none here."""
    space = xplane_pb2.XSpace()
    host, device = space.planes.add(name="/host:CPU"), space.planes.add(name="/device:GPU:0")
    device.stat_metadata[1].name = "tf_op"
    for plane, line_name, events in (
        (host, "python", [("caloscale/input", 0, 1000), ("caloscale/step", 1000, 4000)]),
        (host, "tf_Compute/1", [("phase.generator/x:Mul", 0, 9000)]),
        (device, "stream", [("sgemm", 2000, 3000)]),
    ):
        line = plane.lines.add(name=line_name, timestamp_ns=5)
        for name, start, length in events:
            key = len(plane.event_metadata) + 1
            plane.event_metadata[key].name = name
            event = line.events.add(metadata_id=key, offset_ps=start * 1000, duration_ps=length * 1000)
            if plane is device:
                event.stats.add(metadata_id=1, str_value="phase.generator/part.optimizer/y:MatMul")
    found = read_trace(space.SerializeToString())
    assert found.operations == (Interval(2005, 5005, "phase.generator/part.optimizer/y", "MatMul"),)
    seconds, waited, idle, matrix, whole = divide(found)
    assert seconds == pytest.approx({("generator", "optimizer"): 3e-6})
    assert (waited, idle, matrix, whole) == pytest.approx((1e-6, 1e-6, 3e-6, 5e-6))


def test_what_xla_compiled_for_a_step_is_read():
    """By TensorFlow's profiler itself: the call has no event of its own, and its name scopes are kept."""
    compiled = tf.function(lambda x: tf.reduce_sum(tf.sqrt(x) * x), jit_compile=True)

    @tf.function(autograph=False)
    def step(x):
        with tf.name_scope("phase.generator/generator/shower"):
            return compiled(x)

    step(tf.ones((1000, 1000)))
    recording = Recording()
    step(tf.ones((1000, 1000))).numpy()
    calls = [one for one in recording.end().operations if one.kind == COMPILED]
    assert len(calls) == 1 and calls[0].end > calls[0].start
    assert "phase.generator/generator/shower/" in calls[0].name


@pytest.fixture(scope="module")
def profile_of_a_training(shards, tmp_path_factory):
    run = small_run("train.generatorUpdates=1", "train.energyScoreWeight=0")
    file = tmp_path_factory.mktemp("profile") / "profile.json"
    showers = TrainingShowers(shards, read_manifest(shards), 8, seed=1, mirror=True)
    state = TrainingState(run)
    profiler = StepProfiler(keeper(run, state.networks, 8, file), first=2, count=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("caloscale.profiling.profile.measure_peak", partial(measure_peak, size=128))
        make_steps(
            state,
            Schedule(0, "constant"),
            showers.batches(start=0, stop=6),
            6,
            before=lambda: profiler.batch_ready() or 0.0,
            after=lambda _: profiler.step_done() is None,
        )
    assert state.steps_made == 6
    return run, Profile.model_validate_json(file.read_text())


@pytest.mark.integration
def test_the_step_of_the_engine(profile_of_a_training):
    run, profile = profile_of_a_training
    assert sum(share.share for share in profile.shares) + profile.input_wait + profile.idle == pytest.approx(1)
    places = {(share.phase, share.part) for share in profile.shares if share.share > 0}
    assert {phase for phase, _ in places} >= {"fakes", "discriminatorReal", "discriminatorFake", "generator"}
    for phase in ("discriminatorReal", "discriminatorFake", "generator"):
        assert {(phase, "forward"), (phase, "backPropagation"), (phase, "optimizer")} <= places
    assert not {part for phase, part in places if phase == "fakes"} - {"forward"}
    # Most of a step is under a scope; learning rates, counters and the average are not.
    assert sum(share.share for share in profile.shares if share.phase == "rest") < 0.5
    assert profile.steps == 3 and profile.batch == 8 and profile.device == "CPU"
    networks = build(run.model, run.data)
    generator, discriminator = (flops(network) for network in networks.values())
    # Showers; discriminator on real and generated ones; an update of the generator.
    work = 8 * (generator + 2 * 3 * discriminator + 3 * generator + 2 * discriminator)
    assert profile.gflop_per_step == pytest.approx(1e-9 * work)
    assert profile.gflops == pytest.approx(profile.gflop_per_step / profile.seconds_per_step)
    assert profile.statement.startswith("Limited by") and f"{profile.peak_gflops:.0f}" in profile.statement


def test_what_limits():
    run = small_run()
    networks = build(run.model, run.data)

    def limits(operations, wait=10, run=run):
        return describe(trace(operations, ((0, wait),), ((wait, 100),)), run, networks, 8, 100.0)

    def limit(operations, wait=10):
        return limits(operations, wait).limit

    assert limit([operation(10, 95, kind="Conv2D")]) == "compute"
    assert limit([operation(10, 95, kind="Mul")]) == "memory"
    assert limit([operation(10, 40)]) == "idle"
    assert limit([operation(60, 95)], wait=60) == "input"
    assert limit([operation(10, 50), operation(50, 95, kind="CollectiveReduceV2")]) == "communication"
    assert "showers" not in limits([operation(10, 40)]).statement
    by_keras = small_run("train.loop=builtin")  # takes its batches within the step
    assert "or waiting for showers" in limits([operation(10, 40)], run=by_keras).statement


def test_a_loop_that_ends_early_leaves_the_profiler_free(tmp_path):
    profiler = StepProfiler(pytest.fail, first=0, count=5)
    profiler.batch_ready()
    profiler.step_done()
    with pytest.raises(tf.errors.AlreadyExistsError):
        tf.profiler.experimental.start(str(tmp_path))
    profiler.close()
    tf.profiler.experimental.start(str(tmp_path))
    tf.profiler.experimental.stop(save=False)


def test_a_profile_without_a_folder_for_temporary_files_ends_no_training(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "removed"))
    profiler = StepProfiler(pytest.fail, first=0, count=1)
    profiler.batch_ready()
    profiler.step_done()
    assert "no profile" in caplog.text


def test_a_profile_that_cannot_be_made_ends_no_training(tmp_path, caplog):
    tf.profiler.experimental.start(str(tmp_path))
    try:
        with caplog.at_level(logging.WARNING):
            profiler = StepProfiler(pytest.fail, first=1, count=1)
            for _ in range(3):
                profiler.batch_ready()
                profiler.step_done()
            profiler.close()
    finally:
        tf.profiler.experimental.stop(save=False)
    assert "no profile" in caplog.text


@pytest.mark.parametrize(
    ("start", "per_epoch", "last"),
    [(0, None, 5), (0, 100, 5), (0, 7, 5), (0, 6, 8), (0, 5, 7), (1, 5, 6), (3, 5, 5), (0, 2, 5)],
)
def test_the_steps_are_taken_from_behind_the_end_of_an_epoch(start, per_epoch, last):
    """Steps 3, 4 and 5 of the loop, or the first three of the next epoch (which holds more than that)."""
    found = []
    profiler = StepProfiler(found.append, first=3, count=3, start=start, per_epoch=per_epoch)
    recorded_after = None
    for number in range(12):
        profiler.batch_ready()
        profiler.step_done()
        if found and recorded_after is None:
            recorded_after = number
    assert recorded_after == last


WORKER = """
import sys
import tensorflow as tf
from caloscale.profiling.profile import StepProfiler, divide
from caloscale.models.families.step import part_scope, phase_scope

ring = tf.distribute.experimental.CommunicationImplementation.RING
options = tf.distribute.experimental.CommunicationOptions(implementation=ring)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)

@tf.function(autograph=False)
def step():
    def replica():
        with phase_scope("generator"), part_scope("all_reduce"):
            context = tf.distribute.get_replica_context()
            return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.ones(4_000_000))[0]
    return strategy.run(replica)

found = []
profiler = StepProfiler(found.append, first=1, count=3)
for _ in range(5):
    profiler.batch_ready()
    step()
    profiler.step_done()
seconds, _, _, _, whole = divide(found[0])
print(seconds["generator", "all_reduce"] / whole)
"""


@pytest.mark.long
def test_all_reduces_of_two_real_processes_are_seen(tmp_path):
    """A step that does nothing but reduce 16 MB is an all-reduce for most of its time."""
    (tmp_path / "worker.py").write_text(WORKER)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    processes = []
    for index in range(2):
        task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
        command = [sys.executable, str(tmp_path / "worker.py")]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        shares = [float(process.communicate()[0]) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert all(0.5 < share < 1 for share in shares)


@pytest.mark.long
def test_a_training_leaves_a_profile(shards, tmp_path):
    from caloscale.training.loop import train

    train(small_run("train.epochs=9"), shards, tmp_path)  # 45 steps
    profile = Profile.model_validate_json((tmp_path / "profile.json").read_text())
    assert profile.steps == 8 and profile.batch == 8
    assert sum(share.share for share in profile.shares) + profile.input_wait + profile.idle == pytest.approx(1)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_peak_is_a_rate_of_products(precision):
    assert 0 < measure_peak(precision, size=256, rounds=3) < math.inf
