"""TensorFlow, ONNX Runtime and OpenVINO make the same showers; exported files are used by their metadata alone."""

import contextlib
import functools
import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnx
import openvino
import pytest
import tensorflow as tf

from caloscale.errors import CheckpointError, InputError
from caloscale.inference import runtime as runtime_module
from caloscale.inference.export import runtimes
from caloscale.inference.export.runtimes import exported, is_exported
from caloscale.inference.generator import load_generator
from caloscale.inference.runtime import Runtime, cores, open_fastest, open_runtime
from caloscale.installation import install_command
from caloscale.models import build
from caloscale.models.card import read_card
from caloscale.models.layers import convolution
from caloscale.random import latent_noise
from caloscale.spec import build_run
from tests.models import needs_bfloat16

from .model_folders import COMPACT, shared_model

ROUNDING = 3e-5
"""Of a shower's largest cell; measured: 1e-5 in a thousand showers of the trained compact network."""
IN_OPENVINO = "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def fed(runtime, count):
    energy, angle = np.linspace(*runtime.card.energy_gev, count), np.linspace(1.1, 2.0, count)
    if runtime.card.geometry.cell_shape == "cylinder":
        angle = np.full(count, np.pi / 2)
    return latent_noise(7, 0, count, runtime.noise_size), energy.astype(np.float32), angle.astype(np.float32)


def assert_same(ours, truth, threshold):
    """Equal but for rounding, which may carry a cell at the threshold to either side."""
    at_threshold = ((ours == 0) != (truth == 0)) & (np.maximum(ours, truth) <= threshold * 1.0001)
    largest = truth.max(axis=(1, 2, 3), keepdims=True)
    assert (largest > 0).all()
    assert (np.abs(ours - truth)[~at_threshold] <= (ROUNDING * largest + 0 * ours)[~at_threshold]).all()
    assert at_threshold.mean() < 1e-4


@functools.cache
def of_tensorflow(path, count):
    """A model in TensorFlow, what it was fed with, and its showers: traced once, for both other runtimes."""
    truth = open_runtime(path)
    batch = fed(truth, count)
    return truth, batch, truth.generate_batch(*batch)


@pytest.mark.parametrize(
    ("model", "count", "runtime"),
    [
        ("folder", 200, "onnx"),
        ("folder", 200, "openvino"),
        pytest.param("flow", 200, "onnx", marks=pytest.mark.integration),
        pytest.param("flow", 200, "openvino", marks=pytest.mark.integration),
        pytest.param("cylinder", 200, "onnx", marks=pytest.mark.integration),
        pytest.param("cylinder", 200, "openvino", marks=pytest.mark.integration),
        pytest.param("variable_angle", 2, "onnx", marks=pytest.mark.long),
        pytest.param("variable_angle", 2, "openvino", marks=pytest.mark.long),
    ],
)
def test_the_same_showers_in_all_runtimes(request, model, count, runtime):
    path = request.getfixturevalue(model)
    truth, batch, expected = of_tensorflow(path, count)
    ours = open_runtime(path, runtime)
    assert ours.noise_size == truth.noise_size
    threshold = truth.card.preprocessing.threshold_gev
    assert_same(ours.generate_batch(*batch), expected, threshold)
    assert_same(ours.generate_batch(*(values[:1] for values in batch)), expected[:1], threshold)
    record = json.loads((path / "exports" / runtime / "export.json").read_text())
    assert 0 <= record["deviation"] < ROUNDING


@pytest.mark.parametrize(
    "runtime",
    [
        pytest.param("tensorflow", marks=needs_bfloat16),
        pytest.param("openvino", marks=pytest.mark.skipif(not IN_OPENVINO, reason="this processor has no bfloat16")),
    ],
)
def test_bfloat16_changes_cells_but_not_the_physics(folder, runtime):
    """Cells are exponentials of numbers of up to about eight, of which eight bits are left: 2^-9 of them is 1.6%.

    A trained network is nearer (docs/generation.md); this one has random weights, which differ between machines.
    """
    exact, rough = (open_runtime(folder, runtime, precision=p) for p in ("float32", "bfloat16"))
    assert (exact.precision, rough.precision) == ("float32", "bfloat16")
    batch = fed(exact, 400)
    ours, truth = rough.generate_batch(*batch), exact.generate_batch(*batch)
    assert not np.allclose(ours, truth, rtol=1e-4)
    assert ours.sum() == pytest.approx(truth.sum(), rel=0.03)
    np.testing.assert_allclose(ours.sum((0, 1, 2)), truth.sum((0, 1, 2)), rtol=0.03)


@needs_bfloat16
@pytest.mark.integration
@pytest.mark.parametrize("preset", ["fixed-angle", "variable-angle"])
def test_bfloat16_of_the_published_networks(tmp_path_factory, preset):
    """In all runtimes that have it: an instruction of one processor may be used wrongly by one of them. And in
    float32 in the others."""
    model = shared_model(tmp_path_factory, preset, ("model.latentSize=8",))
    exact = open_runtime(model)
    (low, high), count = exact.card.energy_gev, 3
    energy, angle = np.linspace(low, high, count, dtype=np.float32), np.full(count, np.pi / 2, np.float32)
    batch = (latent_noise(7, 0, count, exact.noise_size), energy, angle)
    truth = exact.generate_batch(*batch)
    for runtime in ("tensorflow", *["openvino"] * IN_OPENVINO):
        ours = open_runtime(model, runtime, precision="bfloat16").generate_batch(*batch)
        assert 1e-4 < np.abs(ours - truth).max() / truth.max() < 0.05, runtime
        np.testing.assert_allclose(ours.sum((1, 2, 3)), truth.sum((1, 2, 3)), rtol=0.03)
    for runtime in ("onnx", "openvino"):
        assert_same(open_runtime(model, runtime).generate_batch(*batch), truth, exact.card.preprocessing.threshold_gev)


def test_an_export_is_made_once_and_one_of_another_version_again(copy):
    before = exported(copy, "openvino").stat().st_mtime_ns
    assert exported(copy, "openvino").stat().st_mtime_ns == before
    record = copy / "exports" / "openvino" / "export.json"
    text = json.loads(record.read_text())
    assert is_exported(copy, "openvino")
    for changed in ({**text, "source": "0"}, {name: value for name, value in text.items() if name != "source"}):
        record.write_text(json.dumps(changed))
        assert not is_exported(copy, "openvino")


@pytest.mark.integration
def test_int8_rounds_convolutions_and_keeps_the_sum_of_a_shower(folder):
    """The sum is no result of a convolution: it stays as it is, up to cells that cross the threshold."""
    exact, rough = (open_runtime(folder, "openvino", precision=p) for p in ("float32", "int8"))
    batch = fed(exact, 100)
    ours, truth = rough.generate_batch(*batch), exact.generate_batch(*batch)
    largest = truth.max(axis=(1, 2, 3), keepdims=True)
    deviation = np.abs(ours - truth) / largest
    assert 1e-4 < deviation.max() < 0.5
    np.testing.assert_allclose(ours.sum((1, 2, 3)), truth.sum((1, 2, 3)), rtol=1e-2)


def test_convolutions_that_others_read_have_weights_of_8_bits(folder):
    """Of the compact network two: shift, width and bend are the last ones, and dense layers stay as they are."""
    model = openvino.Core().read_model(exported(folder, "openvino-int8"))
    types = {}
    for one in model.get_ordered_ops():
        if one.get_type_name() in ("Convolution", "MatMul"):
            reads = [one.input_value(number).get_node() for number in (0, 1)]
            types.setdefault(one.get_type_name(), []).append({read.get_type_name() for read in reads})
    rounded = ["FakeQuantize" in read for read in types["Convolution"]]
    assert sorted(rounded) == [False, False, False, True, True]
    assert not any("FakeQuantize" in read for read in types["MatMul"])


@pytest.mark.parametrize("runtime", ["tensorflow", "onnx", "openvino"])
def test_what_does_not_belong_together(folder, runtime):
    opened = open_runtime(folder, runtime)
    noise, energy, angle = fed(opened, 3)
    for batch in ((noise[:2], energy, angle), (noise[:, 1:], energy, angle), (noise, energy, angle[:1])):
        with pytest.raises(InputError, match="do not belong together"):
            opened.generate_batch(*batch)
    assert opened.generate_batch(noise[:0], energy[:0], angle[:0]).shape == (0, 5, 4, 3)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"runtime": "torch"}, "runtime: is not known.*[\\s\\S]*tensorflow or onnx or openvino"),
        ({"precision": "int4"}, "precision: is not known.*[\\s\\S]*int8"),
        ({"precision": "int8"}, "TensorFlow.*[\\s\\S]*openvino"),
        ({"runtime": "onnx", "precision": "int8"}, "ONNX Runtime.*[\\s\\S]*openvino"),
        ({"runtime": "onnx", "precision": "bfloat16"}, "ONNX Runtime.*[\\s\\S]*openvino"),
        ({"threads": 77}, "threads: cannot change once TensorFlow has started"),
    ],
)
def test_what_cannot_be_had(folder, options, problem):
    tf.constant(1) + 1  # TensorFlow has started
    with pytest.raises(InputError, match=problem) as error:
        open_runtime(folder, **options)
    assert error.value.exit_code == 2
    assert error.value.remedy


def test_a_network_that_cannot_be_merged_is_not_rounded(tmp_path_factory):
    conditions = shared_model(tmp_path_factory, "compact", (*COMPACT, "data.azimuthDeg=[-90, 90]"))
    with pytest.raises(InputError, match=r"precision: is not offered for this network.*further condition"):
        open_runtime(conditions, precision="bfloat16")
    chosen, reason = open_fastest(conditions, "tensorflow", {}, batches=1000)
    assert chosen.precision == "float32" and "is not offered for this network" in reason


def test_where_bfloat16_would_be_wrong_it_is_refused_and_never_chosen(folder, monkeypatch):
    monkeypatch.setattr(convolution, "instructions", lambda _: frozenset({"avx2", "fma"}))
    with pytest.raises(InputError, match=r"precision: .*several per cent.*'bfloat16'\)[\s\S]*float32") as error:
        open_runtime(folder, precision="bfloat16")
    assert error.value.exit_code == 2
    chosen, reason = open_fastest(folder, "tensorflow", {}, batches=1000)
    assert chosen.precision == "float32" and "adds up in bfloat16" in reason


class Clocked(Runtime):
    """Showers that take so many seconds by the clock of the test; the first batch takes longer."""

    def __init__(self, card, precision, seconds, clock):
        super().__init__(card, 4, precision=precision, streams=1)
        self.seconds, self.clock, self.batches = seconds, clock, 0

    def _compute(self, inputs):
        self.clock[0] += self.seconds + (5 if self.batches == 0 else 0)
        self.batches += 1
        return np.ones((len(inputs["noise"]), *self.card.shape), np.float32)


@pytest.mark.parametrize(
    ("seconds", "batches", "chosen", "reason"),
    [
        ((0.8, 0.5), 100, "bfloat16", "200 ms a shower in float32, 125 ms a shower in bfloat16"),
        ((0.8, 0.75), 100, "float32", "188 ms a shower in bfloat16; bfloat16 is taken where float32 takes 1.1 times"),
        ((0.8, 1.6), 100, "float32", "400 ms a shower in bfloat16"),
        ((0.8, 0.1), 3, "float32", "3 batches are too few"),
    ],
)
def test_the_faster_precision(folder, monkeypatch, seconds, batches, chosen, reason):
    clock = [0.0]
    made = dict(zip(("float32", "bfloat16"), seconds))

    def open_clocked(folder, runtime, *, precision="float32", **_):
        return Clocked(read_card(folder), precision, made[precision], clock)

    monkeypatch.setattr(runtime_module, "open_runtime", open_clocked)
    monkeypatch.setattr(runtime_module.time, "perf_counter", lambda: clock[0])
    primaries = {"energy_gev": np.full(4, 10.0, np.float32), "angle_rad": np.full(4, 1.5, np.float32)}
    runtime, why = open_fastest(folder, "tensorflow", primaries, batches=batches)
    assert runtime.precision == chosen and reason in why


@pytest.mark.parametrize("runtime", ["onnx", "openvino"])
def test_a_runtime_that_is_not_installed(folder, runtime, monkeypatch):
    monkeypatch.setitem(sys.modules, {"onnx": "onnxruntime"}.get(runtime, runtime), None)
    extra = {"onnx": "generate"}.get(runtime, "infer")
    with pytest.raises(InputError, match=re.escape(install_command(extra))):
        open_runtime(folder, runtime)


def feed(runtime, count=20):
    return dict(zip(("noise", "energy_gev", "angle_rad"), fed(runtime, count)))


def test_an_onnx_file_needs_nothing_of_ours(folder, tmp_path, monkeypatch):
    """Names, shapes and the length of the noise, by the page's own lines of Python."""
    path, truth = exported(folder, "onnx"), open_runtime(folder)
    shutil.copytree(folder, tmp_path / "runs" / "latest" / "model")
    page = (Path(__file__).resolve().parents[2] / "docs" / "generation.md").read_text()
    found = {}
    monkeypatch.chdir(tmp_path)
    exec(page.split("```python\n")[1].split("```")[0], found)
    assert found["cells_gev"].shape == (100, 5, 4, 3) and found["noise_size"] == 4
    expected = truth.generate_batch(found["noise"], found["energy_gev"], found["angle_rad"])
    assert_same(found["cells_gev"], expected, truth.card.preprocessing.threshold_gev)
    assert found["card"] == json.loads((folder / "model.json").read_text())
    shapes = {
        value.name: [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*onnx.load(str(path)).graph.input, *onnx.load(str(path)).graph.output)
    }
    assert shapes == {
        "noise": ["batch", 4],
        "energy_gev": ["batch"],
        "angle_rad": ["batch"],
        "cells_gev": ["batch", 5, 4, 3],
    }
    cells, angle = (found["properties"][f"caloscale.units.{name}"] for name in ("cells_gev", "angle_rad"))
    assert cells == "energy deposited in each cell, GeV, (batch, x 5, y 4, layer 3)"
    assert angle == "angle between direction and face, rad, (batch,)"


def test_the_first_inference_ends_before_others_begin(folder, monkeypatch):
    """The bindings of OpenVINO initialise themselves in the first inference; two of them waited for each other."""
    runtime = open_runtime(folder, "openvino", streams=2)
    infer, meeting, met = runtime._infer, threading.Barrier(2), []

    def meet(*given):
        with contextlib.suppress(threading.BrokenBarrierError):
            met.append(meeting.wait(timeout=1))
        return infer(*given)

    monkeypatch.setattr(runtime, "_infer", meet)
    threads = [threading.Thread(target=runtime.generate_batch, args=fed(runtime, 3)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert met == [] and meeting.broken  # the second came when the first had waited for it in vain


def test_an_openvino_file_needs_nothing_of_ours(folder):
    path = exported(folder, "openvino")
    truth = open_runtime(folder)
    model = openvino.Core().read_model(path)
    compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    cells = compiled(feed(truth))["cells_gev"]
    assert_same(cells, truth.generate_batch(*fed(truth, 20)), truth.card.preprocessing.threshold_gev)
    card = json.loads(model.get_rt_info(["caloscale", "card"]).astype(str))
    assert card == json.loads((folder / "model.json").read_text())
    assert "GeV" in model.get_rt_info(["caloscale", "units", "energy_gev"]).astype(str)


@pytest.fixture
def copy(folder, tmp_path):
    exported(folder, "openvino")
    return shutil.copytree(folder, tmp_path / "model")


def test_a_new_network_is_exported_anew(copy):
    before = open_runtime(copy, "openvino")
    old = before.generate_batch(*fed(before, 5))
    run = build_run(before.card.configuration)
    build(run.model, run.data)["generator"].save(str(copy / "generator.keras"))
    ours, truth = open_runtime(copy, "openvino"), open_runtime(copy)
    assert_same(ours.generate_batch(*fed(ours, 5)), truth.generate_batch(*fed(ours, 5)), 2e-5)
    assert not np.allclose(ours.generate_batch(*fed(ours, 5)), old, rtol=1e-2)


@pytest.mark.parametrize("name", ["generator.bin", "generator.xml", "export.json"])
def test_a_damaged_export_is_none(copy, name):
    assert is_exported(copy, "openvino")
    path = copy / "exports" / "openvino" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    assert not is_exported(copy, "openvino")


def test_an_export_that_disagrees_is_refused(copy, monkeypatch):
    """No export can be closer than nothing: the check itself is what is seen here."""
    shutil.rmtree(copy / "exports")
    monkeypatch.setitem(runtimes.TOLERANCES, "openvino", -1.0)
    with pytest.raises(CheckpointError, match="differs from the network once it is exported to openvino"):
        exported(copy, "openvino")
    assert list((copy / "exports").iterdir()) == []


def test_what_counts_as_a_deviation(folder):
    card = load_generator(folder).card
    threshold = np.float32(card.preprocessing.threshold_gev)
    truth = np.full((2, 5, 4, 3), 0.5, np.float32)
    assert runtimes.deviation(truth, truth, threshold) == 0
    other = truth.copy()
    other[1, 0, 0, 0] = 0.4
    assert runtimes.deviation(other, truth, threshold) == pytest.approx(0.2, rel=1e-6)
    assert runtimes.deviation(truth * np.float32(1.001), truth, threshold) == pytest.approx(0.001, rel=1e-3)
    truth[0, 1, 1, 1], other = threshold, truth.copy()
    other[0, 1, 1, 1] = 0
    assert runtimes.deviation(other, truth, threshold) == 0
    other[0, 1, 1, 1] = np.inf
    assert np.isnan(runtimes.deviation(other, truth, threshold))
    assert np.isnan(runtimes.deviation(other[:1], truth, threshold))


def test_a_signal_behind_two_runtimes_is_only_a_signal(folder):
    """OpenVINO's plugin changes the stack of signals, see `openvino_core`."""
    exported(folder, "openvino")
    program = f"""
import gc, os, signal
import numpy as np
from pathlib import Path
from caloscale.inference.runtime import open_runtime
first, second = (open_runtime(Path({str(folder)!r}), "openvino") for _ in range(2))
one = np.ones(1, np.float32)
for runtime in (first, second):
    runtime.generate_batch(np.zeros((1, runtime.noise_size), np.float32), 9 * one, 1.5 * one)
del first, runtime
gc.collect()
del second
gc.collect()
signal.signal(signal.SIGTERM, lambda *_: print("shown"))
os.kill(os.getpid(), signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "shown\n"), done.stderr


@pytest.mark.integration
def test_each_stream_of_tensorflow_has_its_share_of_the_threads(folder):
    """In a process where TensorFlow has not started; where it has, streams share what it has."""
    program = f"""
from pathlib import Path
import tensorflow as tf
from caloscale.errors import InputError
from caloscale.inference.runtime import open_runtime
open_runtime(Path({str(folder)!r}), streams=2, threads=6)
threading = tf.config.threading
print(threading.get_intra_op_parallelism_threads(), threading.get_inter_op_parallelism_threads())
assert open_runtime(Path({str(folder)!r}), streams=7).streams == 7
try:
    open_runtime(Path({str(folder)!r}), streams=2, threads=77)
except InputError as error:
    assert "77" in str(error), error
else:
    raise AssertionError("other threads than TensorFlow has started with")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["3", "3"]), done.stderr


@pytest.mark.skipif(cores() < 2, reason="needs two cores")
def test_openvino_with_part_of_the_cores_leaves_them_to_the_scheduler(folder):
    """OpenVINO pins from the first core on, so two processes with a thread each would share that core. A thread is
    pinned once it has computed a part, which it does not in every inference on a busy machine."""
    exported(folder, "openvino")
    program = f"""
import os
import numpy as np
from pathlib import Path
from caloscale.inference.runtime import open_runtime
one = np.ones(1, np.float32)
def fewest_cores(runtime):
    runtime.generate_batch(np.zeros((1, runtime.noise_size), np.float32), 9 * one, 1.5 * one)
    return min(len(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task"))
part, whole = (open_runtime(Path({str(folder)!r}), "openvino", threads=threads) for threads in (1, None))
print(min(fewest_cores(part) for _ in range(20)), flush=True)
while fewest_cores(whole) > 1:
    pass
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, f"{cores()}\n"), done.stderr
