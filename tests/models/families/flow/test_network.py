"""The generator: energies of the layers, empty cells, files; the losses of a shower do not depend on its neighbours."""

import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from caloscale.errors import ConfigurationError, ShowerFileError
from caloscale.models.arithmetic import flops
from caloscale.models.card import load_network
from caloscale.models.families.family import build, family_of
from caloscale.models.families.flow import scores, training
from caloscale.models.families.flow.detector import MOMENTS
from caloscale.models.families.flow.neighbours import coefficient_count
from caloscale.models.families.flow.network import Finish
from caloscale.models.families.flow.representation import LEAST_LAYER, describe_primary, layers_of_numbers, moments
from caloscale.models.layers.dropout import drawing_from
from caloscale.random import EventDraws, latent_noise
from caloscale.showers.preprocessing import to_gev, to_network
from caloscale.spec import load_run

SMALL = (
    "data.geometry.cells=[7, 6, 8]",
    "data.geometry.layers=[{count: 5, absorberMm: 2}, {count: 3, absorberMm: 4}]",
    "data.geometry.depthMm=40",
    "data.preprocessing.rebin=[1, 1, 1]",
    "model.settings.width=16",
    "model.settings.layerSteps=2",
)
LAYERS = 8


def no_finish(flow):
    sizes = coefficient_count(flow.detector), LAYERS, LAYERS, scores.BINS
    return Finish(*(np.zeros(size, np.float32) for size in sizes))


@pytest.fixture(scope="module", params=["grid", pytest.param("cylinder", marks=pytest.mark.integration)])
def run(request):
    perpendicular = ["data.angleDeg=[90,90]"] * (request.param == "cylinder")
    return load_run(preset="flow", overrides=[*SMALL, f"data.geometry.cellShape={request.param}", *perpendicular])


@pytest.fixture(scope="module")
def showers(run):
    """300 showers of independent cells about an axis."""
    rng = np.random.default_rng(0)
    energy, angle = rng.uniform(5, 40, 300), np.deg2rad(rng.uniform(60, 120, 300))
    x, y, z = np.indices(run.data.shape) - np.array([3, 2.5, 3])[:, None, None, None]
    if cylinder(run):
        angle = np.full(300, np.pi / 2)
        azimuth, radius = (x + 3.5) * 2 * np.pi / 7 - np.pi, y + 3
        x, y = radius * np.cos(azimuth), radius * np.sin(azimuth)
    mean = np.exp(-(np.hypot(x - 0.3 * z / np.tan(angle)[:, None, None, None], y)) - np.abs(z) / 2)
    cells = rng.gamma(0.5, mean * 2e-3 * energy[:, None, None, None]).astype(np.float32)
    cells[cells < run.data.preprocessing.threshold_gev] = 0
    return {
        "cells": to_network(cells, run.data.preprocessing),
        "energy_gev": energy.astype(np.float32),
        "angle_rad": angle.astype(np.float32),
    }


@pytest.fixture(scope="module")
def adapted(run, showers):
    """The network, with what is measured on the showers."""
    tf.keras.utils.set_random_seed(3)
    network = build(run.model, run.data)["generator"]
    family = family_of(run.model)
    values = family.adapt(run, {"generator": network}, lambda most: {n: v[:most] for n, v in showers.items()})
    for weight, value in zip(family.adapted_weights(network), values["generator"], strict=True):
        weight.assign(value)
    return network


def test_fewer_training_showers_than_coefficients_are_refused(run, adapted, showers):
    """What they leave of the numbers is rounding, by which all would be divided."""
    few = {name: values[:14] for name, values in showers.items()}
    with pytest.raises(ShowerFileError, match=r"have 14 coefficients.*got 14.*\n.*data\.showers"):
        family_of(run.model).adapt(run, {"generator": adapted}, lambda _: few)


@pytest.fixture
def network(adapted):
    """The same; weights that a test changes are set again afterwards."""
    before = adapted.get_weights()
    yield adapted
    adapted.set_weights(before)


def cylinder(run):
    return run.data.geometry.cell_shape == "cylinder"


def latent(run, count=40, seed=1):
    family = family_of(run.model)
    noise = latent_noise(seed, 0, count, family.noise_size(run.model, run.data))
    rng = np.random.default_rng(seed)
    primaries = {"energy_gev": rng.uniform(5, 40, count), "angle_rad": rng.uniform(1.1, 2.0, count)}
    if cylinder(run):
        primaries["angle_rad"] = np.full(count, np.pi / 2)
    return family.latent(noise, primaries, run.model, run.data)


def test_the_cell_on_the_axis_begins_with_a_large_energy(run):
    """Its hazards sum up to little, those of a cell of the fringe to much: likelihood alone learns this slowly."""
    flow = build(run.model, run.data)["generator"].get_layer("flow")
    cells_x, cells_y, depth = run.data.shape
    layers = tf.fill((1, depth), 1e-3)
    zeros = [tf.zeros((1, size)) for size in (flow.numbers, MOMENTS, flow.detector.primary_size)]
    factors = flow.marginals.call(zeros[0], zeros[1], layers, zeros[2], tf.zeros((1, 2, depth)))
    hazards = np.exp(factors.of_all_cells().numpy()).sum(axis=2).reshape(depth, cells_x, cells_y)
    on_axis, fringe = hazards[:, 3, 2:4], hazards[:, 0]  # of 7 x 6 cells
    if cylinder(run):
        on_axis, fringe = hazards[:, :, 0], hazards[:, :, 5]
    assert on_axis.max() < 1 and fringe.min() > 3


def test_layers_have_the_energies_of_stage_1(run, network):
    inputs, flow = latent(run), network.get_layer("flow")
    cells = to_gev(network(inputs)[..., 0], run.data.preprocessing).numpy()
    energy, primary, _ = describe_primary(inputs, flow.detector)
    noise = inputs[:, 2 : 2 + flow.numbers]
    whitened = flow.whitening.within(flow.layer_flow.call(noise, primary))
    depth = flow.detector.shape[2]
    wanted = layers_of_numbers(flow.whitening.undo(whitened, primary)[:, :depth], energy, flow.detector).numpy()
    floor = run.data.preprocessing.threshold_gev
    wanted[wanted < LEAST_LAYER * floor] = 0
    found = cells.sum(axis=(1, 2))
    assert (wanted > 0).mean() > 0.5
    # A cell below the threshold is cut.
    np.testing.assert_allclose(found, wanted, atol=5 * floor, rtol=1e-3)
    assert ((found == 0) == (wanted == 0)).all()


def test_showers_have_empty_cells_and_do_not_depend_on_the_batch(run, network):
    inputs = latent(run)
    cells = network(inputs).numpy()
    assert np.isfinite(cells).all() and (cells >= 0).all() and 0.05 < (cells == 0).mean() < 0.99
    np.testing.assert_allclose(network(inputs[7:9]).numpy(), cells[7:9], atol=1e-5)


@pytest.mark.parametrize("runtime", ["tensorflow", "onnx"])
def test_the_fast_form_makes_the_showers_of_the_network(run, network, runtime):
    """In batches of one shower, too; with the weights of now; and numbers that are none are not hidden."""
    form = family_of(run.model).fast_form(network, run, runtime, "float32")
    assert form.unit == "GeV"
    inputs, threshold = latent(run), run.data.preprocessing.threshold_gev
    compute = tf.function(form.cells, [tf.TensorSpec((None, inputs.shape[1]))], autograph=False)

    def assert_same():
        truth, ours = to_gev(network(inputs)[..., 0], run.data.preprocessing).numpy(), compute(inputs).numpy()
        assert truth.max() > 0 and np.abs(np.where(ours < threshold, 0, ours) - truth).max() < 1e-5 * truth.max()
        np.testing.assert_allclose(compute(inputs[3:4]), ours[3:4], atol=1e-5 * truth.max())

    assert_same()
    bias = network.get_layer("flow").marginals.offset.bias
    bias.assign_add(tf.fill(bias.shape, 1.5))
    assert_same()
    bias.assign(np.where(np.arange(bias.shape[0]) == 0, np.nan, bias))
    assert not np.isfinite(compute(inputs)).all(axis=(1, 2, 3)).any()


def test_a_file_holds_the_network(run, network, tmp_path):
    network.save(tmp_path / "generator.keras")
    again = load_network(tmp_path / "generator.keras", run.model)
    np.testing.assert_array_equal(again(latent(run)), network(latent(run)))


def test_whitened_numbers_of_the_training_showers_have_mean_0_and_covariance_1(run, network, showers):
    flow = network.get_layer("flow")
    primary, numbers = training._measure(showers, 0, run.data, flow.detector)
    pairs = training._mirrored(primary, numbers, mirror=True)
    whitened = np.concatenate([flow.whitening.call(numbers, primary).numpy() for primary, numbers in pairs])
    np.testing.assert_allclose(whitened.mean(axis=0), 0, atol=0.05)
    np.testing.assert_allclose(np.cov(whitened.T), np.eye(flow.numbers), atol=0.06)
    back = flow.whitening.undo(flow.whitening.call(numbers, primary), primary).numpy()
    inside = np.abs(whitened[: len(back)] @ flow.whitening.root.numpy()) < 3
    np.testing.assert_allclose(back[inside], numbers.numpy()[inside], rtol=5e-3, atol=5e-3)


def test_numbers_that_are_too_narrow_are_calibrated(run, network, showers, monkeypatch):
    """A flow that leaves normal numbers as they are makes the numbers of the showers: 10% less width and means
    that are off by a tenth of it are found as such; a flow that makes nothing like them is not mended."""
    flow = network.get_layer("flow")
    kernel, whitening = flow.layer_flow.out.kernel, flow.whitening
    before = [weight.numpy() for weight in (kernel, whitening.mean, whitening.log_width)]
    monkeypatch.setattr(training, "_excess", lambda *_: 0.0)
    monkeypatch.setattr(training, "_measure_finish", lambda *_: no_finish(flow))
    width = np.exp(before[2][0])
    design = training._design(training._measure(showers, 0, run.data, flow.detector)[0].numpy())

    def calibrated(factor, shift):
        whitening.log_width.assign(before[2] + np.log(factor) * np.eye(len(before[2]))[:, :1])
        whitening.mean.assign(before[1] + shift * width * np.eye(len(before[1]))[:, :1])
        return training.calibrate(run, network, showers)

    kernel.assign(np.zeros_like(before[0]))
    right, narrow, far = calibrated(1.0, 0.0), calibrated(0.9, 0.1), calibrated(0.3, 2.0)
    changes = [whitened - start for whitened, start in zip(right, before[1:])]
    assert np.abs(changes[0][0] / width).mean() < 0.1 and np.abs(changes[1][0]).mean() < 0.1
    differences = [(design @ (ours - truth)).mean(axis=0) for ours, truth in zip(narrow, right[:2])]
    np.testing.assert_allclose(differences[0] / width, 0, atol=0.05)
    np.testing.assert_allclose(differences[1], 0, atol=0.05)
    assert ((far[0] - right[0])[0] / width > 1.5).all() and ((far[1] - right[1])[0] < -0.8).all()
    more_hits = np.eye(len(before[1]))[:, :1] * ([0.0] * 11 + [0.05]) * width[-12:]
    monkeypatch.setattr(training, "_excess", lambda *_: np.stack([more_hits, np.zeros_like(more_hits)]))
    # The rounds approach a constant excess as a geometric series.
    np.testing.assert_allclose(
        right[0] - calibrated(1.0, 0.0)[0], np.pad(more_hits, ((0, 0), (len(width) - 12, 0))) * 15 / 16, atol=1e-5
    )


def test_the_width_of_numbers_is_their_mean_absolute_deviation():
    """Against scipy's for a width that depends on the primary: numbers of heavy tails and normal ones of equal mean
    absolute deviation have the same width, though their standard deviations differ by a tenth."""
    random = np.random.default_rng(3)
    design = np.column_stack([np.ones(40_000), random.uniform(-1, 1, 40_000)])
    heavy, normal = stats.t(5), stats.norm()
    units = [one.rvs(40_000, random_state=random) / one.expect(np.abs) for one in (heavy, normal)]
    numbers = np.stack(units, axis=1) * np.exp(design @ [0.3, 0.4])[:, None] + (design @ [2.0, 1.0])[:, None]
    mean, log_width = training._fit(design, numbers)
    np.testing.assert_allclose(mean, [[2, 2], [1, 1]], atol=0.04)
    np.testing.assert_allclose(log_width - [[np.log(np.sqrt(np.pi / 2)) + 0.3], [0.4]], 0, atol=0.015)


def test_widths_about_the_axis_of_the_window_are_those_of_the_observable(run, network):
    """By NumPy: the rms of the deposits' places in the window, which contains the inclination."""
    detector = network.get_layer("flow").detector
    if detector.cylinder:
        pytest.skip("places of a cylinder are no grid")
    cells = np.random.default_rng(2).gamma(0.3, 1e-3, (20, *detector.shape)).astype(np.float32)
    _, _, axis = describe_primary(latent(run, 20), detector)
    made = training._describe(tf.constant(cells), axis, detector).numpy()
    np.testing.assert_array_equal(made[:, :MOMENTS], moments(tf.constant(cells), axis, detector).numpy())
    for column, dimension in ((MOMENTS, 1), (MOMENTS + 1, 2)):
        profile = np.moveaxis(cells, dimension, 1).sum(axis=(2, 3), dtype=float)
        place = np.arange(profile.shape[1])
        mean = (profile @ place / profile.sum(axis=1))[:, None]
        variance = (profile * (place - mean) ** 2).sum(axis=1) / profile.sum(axis=1)
        np.testing.assert_allclose(made[:, column], np.sqrt(variance), rtol=1e-4)


@pytest.mark.integration
def test_finished_showers_have_the_moments_of_the_training_showers(run, network, monkeypatch):
    """Training showers are those of this network with other moments: calibrated without them, it makes the same."""
    monkeypatch.setattr(training, "_measure_finish", lambda *_: no_finish(network.get_layer("flow")))
    flow, held = network.get_layer("flow"), [2, 6, 8, 10, 11]
    kernel, bias = flow.layer_flow.out.kernel, flow.marginals.offset.bias
    kernel.assign(tf.zeros_like(kernel))
    bias.assign_add(4.0 * (np.arange(bias.shape[0]) % scores.PARAMETERS == 0))
    inputs = latent(run, 1500, seed=7)
    _, primary, axis = describe_primary(inputs, flow.detector)
    start = inputs.shape[1] - flow.numbers - int(np.prod(flow.detector.shape))
    whitened, numbers = flow.make_numbers(inputs[:, start : start + flow.numbers], primary)
    design = training._design(primary.numpy())
    correction = np.zeros((2, *flow.whitening.mean.shape))
    held_widths = np.exp(flow.whitening.log_width.numpy()[0, -MOMENTS:][held])
    correction[0, 0, np.array(held) - MOMENTS], correction[1, 0, np.array(held) - MOMENTS] = -0.1 * held_widths, 0.05
    other = tf.constant(training._corrected(flow, numbers.numpy(), design, correction), tf.float32)

    def moments_of(cells):
        return training._fit(design, moments(cells, axis, flow.detector).numpy().astype(np.float64))

    cells = flow.cells_gev(inputs, sparse=True, numbers=(whitened, other))
    truth, plain = moments_of(cells), moments_of(flow.cells_gev(inputs, sparse=True))
    calibrated = training.calibrate(run, network, table_of(run, cells, inputs))
    for weight, value in zip((flow.whitening.mean, flow.whitening.log_width), calibrated):
        weight.assign(value)
    found = moments_of(flow.cells_gev(latent(run, 1500, seed=7), sparse=True))
    width, first = np.exp(truth[1][0]), design.mean(axis=0)
    for at, scale, most in ((0, width, 0.1), (1, 1.0, 0.08)):
        missing, without = (np.abs(first @ (one[at] - truth[at]) / scale)[held] for one in (found, plain))
        assert missing.max() < most and missing.mean() < 0.75 * without.mean(), (missing, without)


def table_of(run, cells, inputs):
    """Showers of the generator's inputs, in GeV, as a family gets them."""
    return {
        "cells": to_network(np.asarray(cells), run.data.preprocessing),
        "energy_gev": inputs[:, 0].numpy() * run.data.preprocessing.energy_scale_gev,
        "angle_rad": inputs[:, 1].numpy(),
    }


def with_finish(run, network, truth, logit, count=700):
    """What is measured on some showers that this network made with this finish, and `cells` of the truth, without a
    finish and with the measured one. logit: added to those of a hit."""
    flow = network.get_layer("flow")
    bias = flow.marginals.offset.bias
    bias.assign_add(1.0 * logit * (np.arange(bias.shape[0]) % scores.PARAMETERS == 0))
    inputs = latent(run, count, seed=4)
    cells = flow.cells_gev(inputs, sparse=True, finish=truth).numpy()
    plain = flow.cells_gev(inputs, sparse=True).numpy()
    graph = training._graph_of_cells(flow)
    found = training._measure_finish(run, network, table_of(run, cells, inputs), np.random.default_rng(5), graph)
    again = flow.cells_gev(latent(run, count, seed=6), sparse=True, finish=found).numpy()
    return found, (cells, plain, again)


def test_correlations_and_faint_cells_are_those_of_the_training_showers(run, network):
    """Truth: the coefficients with which this network made the showers, at the primaries of others; numbers of cells in
    the bins of a particle's energy. Layers that are scaled change these, so that other hazards can give equal ones."""
    flow = network.get_layer("flow")
    beside = [*np.linspace(0.15, 0.05, 6), *np.linspace(0.1, 0.05, 5)] if cylinder(run) else 6 * [0.12] + 6 * [0.06]
    neighbours = np.array([*beside, 0.15, 0.1, 0.05, *6 * [0]], np.float32)
    hazards = np.array([0.3, 0.1, -0.1, -0.3, -0.1, *(scores.BINS - scores.FAINT_BINS) * [0]], np.float32)
    truth = no_finish(flow)._replace(neighbours=neighbours, hazards=hazards)
    found, cells = with_finish(run, network, truth, logit=4)
    # The innermost cells of an untrained cylinder are as its layers are, whatever their coefficients; nearly all cells
    # are hit.
    decided = [1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13] if cylinder(run) else [5, 11, 12, 13, 14]
    np.testing.assert_allclose(found.neighbours[decided], neighbours[decided], atol=0.04)
    bounds = np.append(np.array(scores.EDGES_MIP[: scores.FAINT_BINS + 1]) * flow.detector.mip_gev, 1) + 2e-5
    wanted, without, corrected = (np.histogram(part, bounds)[0] for part in cells)
    assert abs(without / wanted - 1).max() > 0.05
    assert abs(corrected / wanted - 1).max() < 0.5 * abs(without / wanted - 1).max()


def test_hazards_stay_without_a_faint_hit(run, network, showers):
    """Every cell of all showers is hit, and far above the threshold."""
    bright = {name: values[:30] for name, values in showers.items()}
    bright["cells"] = to_network(np.full(bright["cells"].shape, 0.05, np.float32), run.data.preprocessing)
    graph = training._graph_of_cells(network.get_layer("flow"))
    found = training._measure_finish(run, network, bright, np.random.default_rng(5), graph)
    assert not found.hazards.any() and all(np.isfinite(values).all() for values in found)


@pytest.mark.integration
def test_spreads_of_hits_and_of_the_core_are_those_of_the_training_showers(run, network):
    """Standard deviations over showers of the number of hits of a layer, and of the share of its largest cell."""
    spreads = np.full(LAYERS, -0.5, np.float32)
    truth = no_finish(network.get_layer("flow"))._replace(core=spreads, counts=spreads)
    _, cells = with_finish(run, network, truth, logit=1)
    counts = [(part > 0).sum(axis=(1, 2)).std(axis=0) for part in cells]
    shares = [(part.max(axis=(1, 2)) / np.maximum(part.sum(axis=(1, 2)), 1e-9)).std(axis=0) for part in cells]
    for wanted, without, corrected in (counts, shares):
        assert (without / wanted - 1).mean() > 0.05
        assert abs((corrected / wanted - 1).mean()) < 0.5 * (without / wanted - 1).mean()


def test_parameters_of_some_cells_are_those_of_all(network):
    flow = network.get_layer("flow")
    rng = np.random.default_rng(0)
    shape, primaries = flow.detector.shape, flow.detector.primary_size

    def normal(*size):
        return tf.constant(rng.normal(size=(3, *size)), tf.float32)

    layers = tf.exp(normal(shape[2]) - 5)
    factors = flow.marginals.call(normal(flow.numbers), normal(12), layers, normal(primaries), normal(2, shape[2]))
    cells = np.argwhere(rng.random((3, shape[2], *shape[:2])) < np.linspace(0, 0.9, shape[2])[:, None, None])
    shower, layer, x, y = cells.T
    every = factors.of_all_cells().numpy()[shower, layer, :, x * shape[1] + y]
    np.testing.assert_allclose(factors.of_some(tf.constant(cells)), every, rtol=1e-3, atol=1e-4)
    assert every.shape == (len(cells), scores.BINS)


def test_the_loss_of_a_shower_does_not_depend_on_how_a_batch_is_shared(run, network, showers):
    """Two halves, as two replicas have them."""
    flow = network.get_layer("flow")

    def losses(first, last):
        part = {name: values[first:last] for name, values in showers.items()}
        random = EventDraws(1, 5, 0, first, last - first)
        with drawing_from(random):
            return flow.losses_of(tf.constant(part["cells"]), training.primaries_of(part, run.data), random)

    whole, terms = losses(0, 8)
    np.testing.assert_allclose(whole, np.concatenate([losses(0, 4)[0], losses(4, 8)[0]]), rtol=2e-3)
    assert set(terms) == {"layers", "cell_energies"}
    assert np.isfinite(whole).all() and whole.shape == (8,)


def test_an_empty_shower_has_a_finite_loss_and_gradient(run, network, showers):
    flow = network.get_layer("flow")
    cells = np.array(showers["cells"][:4])
    cells[1] = 0
    part = {name: values[:4] for name, values in showers.items()}
    random = EventDraws(1, 5, 0, 0, 4)
    with tf.GradientTape() as tape, drawing_from(random):
        loss, _ = flow.losses_of(tf.constant(cells), training.primaries_of(part, run.data), random)
    assert np.isfinite(loss).all()
    assert all(np.isfinite(one).all() for one in tape.gradient(loss, network.trainable_variables))


@pytest.mark.parametrize(
    ("preset", "override", "problem"),
    [
        ("flow", "model.settings.layerDropout=1", "layerDropout"),
        ("flow", "model.settings.width=1", "width"),
        ("flow", "model.settings.widht=64", "widht"),
        ("flow-par04", "data.geometry.cells=[2, 9, 45]", "three azimuths"),
        *(
            ("flow", f"data.preprocessing.rebin={rebin}", r"two cells along x and along y[\s\S]*lower data\.preproc")
            for rebin in ([51, 51, 1], [51, 3, 1], [3, 51, 1])
        ),
    ],
)
def test_impossible_settings_and_showers_are_refused(preset, override, problem):
    """With one cell across the loss was infinite: the width of all showers is the same."""
    with pytest.raises(ConfigurationError, match=problem):
        load_run(preset=preset, overrides=[override])


def test_operations_of_a_shower_are_those_of_its_matrices(run, network):
    """Written down for 7 x 6 x 8 cells: 20 numbers, 6 of a primary, width 16, 24 + 6 of style, 24 terms; 10 features of
    each place, 5 of an azimuth."""
    layers = 2 * 2 * (31 * 16 + 2 * 16 * 16 + 16 * 20)
    dense = 34 * 64 + 64 * 24 + 30 * (8 * 19 * 24 + 8 * 19 + 2 * 32)
    first = 5 if cylinder(run) else 10
    positions = 8 * (7 * first + 6 * 10) * 32 + 8 * (7 + 6) * (32 * 32 + 32 * 24)
    products = 19 * 8 * 7 * (6 + 1) * 24
    assert flops(network) == 2 * (layers + dense + positions + products)


@pytest.mark.integration
def test_few_hits_beside_each_other_are_those_of_the_training_showers(run, network):
    """Pairs of neighbours along y, and of diagonal ones, where one cell of six is hit."""
    if cylinder(run):
        pytest.skip("coefficients of a cylinder belong to its radii")
    neighbours = np.array([*6 * [0.4], *6 * [0.2], *9 * [0]], np.float32)
    truth = no_finish(network.get_layer("flow"))._replace(neighbours=neighbours)
    _, cells = with_finish(run, network, truth, logit=0, count=1000)
    hits = [part > 0 for part in cells]
    for beside in (
        [np.sum(part[:, :, 1:] & part[:, :, :-1]) for part in hits],
        [np.sum(part[:, 1:, 1:] & part[:, :-1, :-1]) for part in hits],
    ):
        wanted, without, corrected = beside
        assert without < 0.8 * wanted
        assert abs(corrected / wanted - 1) < 0.03


def test_spreads_of_layers_are_smoothed_for_two_layers_too():
    """A layer and a half of its neighbour, divided by the weights that are there."""
    sums = np.array([[40.0, 40.0], [0.0, 0.0], [160.0, 40.0]])
    truth = np.log([(160 / 2 + 40 / 4) / 30, (40 / 2 + 160 / 4) / 30]) / 2
    np.testing.assert_allclose(training._log_spreads(sums), truth)
