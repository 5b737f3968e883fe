"""Each way of a convolution against TensorFlow's own: values and both gradients."""

from contextlib import nullcontext

import numpy as np
import pytest
import tensorflow as tf

from caloscale.bench.reference_step import build_reference
from caloscale.models import build
from caloscale.models.card import load_network
from caloscale.models.families.published.merged import merged
from caloscale.models.layers import convolution
from caloscale.models.layers.convolution import PaddedConv3D, computed_by_keras
from caloscale.models.layers.convolution_ways import Cells, Depths, Direct, Shape, needs_plane
from caloscale.spec import load_run
from tests.models import copy_weights, needs_bfloat16

WAYS = [Direct(), *map(Cells, [(1, 1, 2), (1, 1, 5), (2, 1, 1), (1, 3, 2), (4, 2, 2)]), Depths()]
KERNELS = [(6, 6, 8), (4, 4, 6), (3, 3, 5), (3, 3, 3), (5, 6, 6), (5, 5, 5), (6, 5, 8), (3, 3, 8), (2, 2, 2)]
"""Of the published networks."""


def truth_of(x, kernel, slope, shape):
    """TensorFlow's convolution of the padded volume and its derivatives, float64."""
    x, kernel, slope = (tf.constant(np.asarray(one, np.float64)) for one in (x, kernel, slope))
    zeros = [[0, 0], *([a, b] for a, b in zip(shape.before, shape.behind)), [0, 0]]
    with tf.GradientTape() as tape:
        tape.watch([x, kernel])
        y = tf.nn.conv3d(tf.pad(x, zeros), kernel, [1] * 5, "VALID")
    return [y, *tape.gradient(y, [x, kernel], output_gradients=slope)]


def compare(way, shapes, inputs, outputs, batch, dtype, tolerance, *, graph=True):
    """Of all shapes in one graph, or one operation after the other."""
    rng, given = np.random.default_rng(1), []
    for shape in shapes:
        sizes = ((batch, *shape.inputs, inputs), (*shape.kernel, inputs, outputs), (batch, *shape.outputs, outputs))
        given.append((*(tf.cast(rng.normal(size=size), dtype) for size in sizes), shape))

    def computed():
        return [
            (
                way.forward(x, kernel, shape),
                way.input_gradient(slope, kernel, shape),
                way.kernel_gradient(x, slope, shape),
            )
            for x, kernel, slope, shape in given
        ]

    every = tf.function(computed, autograph=False)() if graph else computed()
    for ours, arguments in zip(every, given, strict=True):
        for found, expected in zip(ours, truth_of(*arguments), strict=True):
            assert found.dtype == dtype and found.shape == expected.shape
            away = np.abs(tf.cast(found, tf.float64).numpy() - expected.numpy()).max()
            assert away < tolerance * np.abs(expected).max(), arguments[-1]


@pytest.mark.parametrize(
    ("way", "kernel"),
    [*((way, (4, 4, 6)) for way in WAYS), *((way, kernel) for way in (WAYS[1], *WAYS[-2:]) for kernel in KERNELS)],
    ids=str,
)
def test_values_and_gradients(way, kernel):
    """Odd and even sizes, zeros on the sides of which some are uneven as for an output of equal size."""
    before, behind = (1, 0, (kernel[2] - 1) // 2), (1, min(2, kernel[1] - 1), kernel[2] // 2)
    shape = Shape((7, 6, 11), kernel, before, behind)
    compare(way, [shape], 3, 2, 2, tf.float64, 1e-12, graph=False)


@pytest.mark.parametrize("way", WAYS, ids=str)
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.integration), 7])
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(tf.float32, 3e-6), pytest.param(tf.bfloat16, 2e-2, marks=needs_bfloat16)]
)
def test_precision(way, batch, dtype, tolerance):
    shape = Shape((9, 8, 13), (5, 6, 6), (2, 2, 2), (2, 3, 3))
    compare(way, [shape], 8, 6, batch, dtype, tolerance)


@needs_bfloat16
@pytest.mark.parametrize("way", [Direct(), Cells((1, 1, 2))], ids=str)
@pytest.mark.parametrize(
    "channels", [4, 8, 15, *(pytest.param(count, marks=pytest.mark.integration) for count in (1, 6, 10, 12, 16))]
)
def test_bfloat16_with_all_widths(way, channels):
    """oneDNN's convolution is wrong with AMX for 4-14 channels and 8, 12 or 16 places; other processors are right."""
    shapes = [Shape((2, 3, 20), (1, 2, width), (0, 1, 1), (0, 0, 1)) for width in range(2, 18)]
    compare(way, shapes, channels, 8, 2, tf.bfloat16, 2e-2)
    wrong = {4: {16}, 6: {16}, 8: {8, 12, 16}, 10: {16}, 12: {8, 16}}
    assert {width for width in range(2, 18) if needs_plane(channels, width)} == wrong.get(channels, set())


LAYERS = [
    # filters, kernel, channels, pad, slope, bias; a row of each kind of the published networks
    (6, (4, 4, 6), 8, (2, 2, 1), 0.0, True),
    (16, (5, 6, 6), 1, "same", 0.3, True),
    (8, (5, 6, 6), 16, (0, 0, 1), 0.3, True),
    (16, (6, 6, 8), 8, "same", 0.3, True),
    (1, (2, 2, 2), 6, (0, 0, 0), 1.0, False),
]


def rounded(values):
    """Numbers that bfloat16 has."""
    return tf.cast(tf.cast(values, tf.bfloat16), tf.float32).numpy()


@pytest.mark.parametrize("way", ["AVX-512", "GPU", "Keras"])
@pytest.mark.parametrize(("filters", "kernel", "channels", "pad", "slope", "bias"), LAYERS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("float32", 1e-5), pytest.param("mixed_bfloat16", 3e-2, marks=needs_bfloat16)]
)
def test_the_layer_is_keras_layers_in_one(
    monkeypatch, way, filters, kernel, channels, pad, slope, bias, dtype, tolerance
):
    """Zeros, convolution and activation one after the other in double precision; its copy by its configuration too."""
    same = pad == "same"
    options = {"padding": "same" if same else "valid", "use_bias": bias}
    zeros = (0, 0, 0) if same else pad
    inputs = tf.keras.Input((9, 8, 11, channels))
    monkeypatch.setattr(convolution, "has_wide_registers", lambda: way != "GPU")
    monkeypatch.setattr(convolution, "has_matrix_units", lambda: way != "AVX-512")
    with computed_by_keras() if way == "Keras" else nullcontext():
        made = PaddedConv3D(filters, kernel, zeros, slope, dtype=dtype, **options)
        layer = PaddedConv3D.from_config(made.get_config())
    network = tf.keras.Model(inputs, layer(inputs))
    plain = tf.keras.Sequential(
        [
            tf.keras.layers.ZeroPadding3D(zeros, dtype="float64"),
            tf.keras.layers.Conv3D(filters, kernel, dtype="float64", **options),
            tf.keras.layers.LeakyReLU(slope, dtype="float64"),
        ]
    )
    plain.build((None, *inputs.shape[1:]))
    rng = np.random.default_rng(3)
    weights = [rounded(rng.normal(size=weight.shape)) for weight in layer.get_weights()]
    assert [w.name for w in layer.weights] == ["kernel", "bias"][: len(weights)]
    layer.set_weights(weights)
    plain.set_weights(layer.get_weights())
    x = tf.constant(rng.normal(size=(3, *inputs.shape[1:])), layer.compute_dtype)
    away = tf.constant(rng.normal(size=(3, *network.output_shape[1:])), layer.compute_dtype)

    @tf.function(autograph=False)
    def computed(function, x, away):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return y, tape.gradient(y, [x, *function.trainable_variables], output_gradients=away)

    found = computed(layer, x, away)
    truth = computed(plain, tf.cast(x, tf.float64), tf.cast(away, tf.float64))
    assert found[0].shape[1:] == network.output_shape[1:]
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(truth), strict=True):
        # A sum near 0 may be rounded to the other sign, and then it has another slope.
        error = np.sqrt(np.mean((tf.cast(one, tf.float64) - other) ** 2) / np.mean(other**2))
        # Keras adds up the gradient of the bias in bfloat16.
        assert error < tolerance * (4 if way == "Keras" else 1)


@pytest.mark.parametrize("preset", [pytest.param("variable-angle", marks=pytest.mark.integration), "fixed-angle"])
def test_networks_made_before_are_read(preset, tmp_path):
    """Files of networks of Keras' own layers: they are merged as they are, and their weights fit ours."""
    run = load_run(preset=preset, overrides=["model.latentSize=8"])
    plain = build_reference(run.model, run.data)
    ours = build(run.model, run.data)
    for name, before, now in zip(plain, plain.values(), ours.values()):
        before.save(tmp_path / f"{name}.keras")
        read = load_network(tmp_path / f"{name}.keras", run.model)
        copy_weights(read, now)
        assert all(np.array_equal(a, b) for a, b in zip(read.get_weights(), now.get_weights(), strict=True))
        assert [w.shape for w in read.weights] == [w.shape for w in now.weights]
    latent = np.random.default_rng(0).standard_normal((2, 8)).astype(np.float32)
    truth = plain["generator"](latent).numpy()
    for network in (ours["generator"], load_network(tmp_path / "generator.keras", run.model)):
        np.testing.assert_allclose(merged(network)(latent), truth, rtol=0, atol=3e-5 * truth.max())


@pytest.mark.parametrize(
    ("flags", "environment", "wide", "bfloat16"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16", {}, True, True),
        ("flags : avx2 avx512f amx_bf16 amx_tile", {}, True, True),
        ("flags : avx2 avx512f avx512_bf16", {"ONEDNN_MAX_CPU_ISA": "avx512_core"}, True, True),
        ("flags : avx2 avx512f avx512_vnni", {}, True, False),
        ("flags : fma avx2", {}, False, False),
        ("flags : avx2 avx512f avx512_bf16", {"TF_ENABLE_ONEDNN_OPTS": "0"}, False, False),
        ("flags : avx2 avx512f avx512_bf16", {"ONEDNN_MAX_CPU_ISA": "AVX2"}, False, False),
        ("flags : avx2 avx512f avx512_bf16", {"DNNL_MAX_CPU_ISA": "AVX2"}, False, False),
        ("Features : fp asimd bf16", {}, False, False),
        ("", {}, False, False),
    ],
)
def test_what_the_processor_can_do(flags, environment, wide, bfloat16, tmp_path, monkeypatch):
    """Wide registers decide how convolutions are computed; whether bfloat16 is added up in float32, if it is right."""
    for name in ("TF_ENABLE_ONEDNN_OPTS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor : 0\n{flags}\n\nprocessor : 1\nflags : avx512_bf16\n")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [])
    assert (convolution.has_wide_registers.__wrapped__(file), convolution.has_bfloat16(file)) == (wide, bfloat16)
    for kind in ("GPU", "TPU"):
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda one, kind=kind: ["one"] * (one == kind))
        assert not convolution.has_wide_registers.__wrapped__(file) and convolution.has_bfloat16(file)


@pytest.mark.parametrize("wide", [False, True])
def test_a_processor_with_narrow_registers_computes_by_keras(wide, monkeypatch):
    monkeypatch.setattr(convolution, "has_wide_registers", lambda: wide)
    assert convolution.is_by_keras() is not wide


@pytest.mark.parametrize(
    ("gpus", "has_units"),
    [([], False), ([(8, 0)], True), ([(9, 0), (9, 0)], True), ([(8, 0), (7, 5)], False), ([None], False)],
)
def test_gpus_with_matrix_units(gpus, has_units, monkeypatch):
    """None: a GPU of another maker, of which TensorFlow has no number."""
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else [])
    monkeypatch.setattr(
        tf.config.experimental, "get_device_details", lambda gpu: {"compute_capability": gpu} if gpu else {}
    )
    assert convolution.has_matrix_units.__wrapped__() is has_units
