"""The compiled step against a plain one: four tapes, losses and optimisers written out, in eager mode."""

import math

import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import kstest

from caloscale.bench.work import synthetic_batch
from caloscale.models import build, family_of, latent, noise_size
from caloscale.models.families.gan.step import Computed, _Tapes, flipped
from caloscale.models.families.step import Step, StepContext, build_optimizers
from caloscale.models.layers import convolution
from caloscale.models.optimizers import Schedule
from caloscale.random import EventDraws
from caloscale.spec import load_run
from caloscale.training.state import TrainingState, compile_step
from tests.models import needs_bfloat16
from tests.training.conftest import eagerly, random_showers, small_run, train_step
from tests.training.quick_networks import QUICK, quick_networks

__all__ = ["eagerly"]

CONSTANT = Schedule(0, "constant")
PLAIN = ("model.dropout=0", "train.decay=constant", "train.warmupEpochs=0")
CASES = {
    "published terms": (
        "train.optimizer=rmsprop",
        "train.energyScoreWeight=0",
        "train.averageDecay=0",
        "train.lossWeights={layers: 0, transverse: 0, depth: 0, counts: 0, hits: 0}",
    ),
    "proper scores": ("train.optimizer=adam", "train.energyScoreWeight=0.7", "train.generatorUpdates=1"),
}


def a_batch(run, count=4, seed=2):
    showers = random_showers(count, seed, run.data.shape)
    preprocessing = run.data.preprocessing
    cells = (showers.cells_gev * preprocessing.units_per_gev) ** preprocessing.power
    sums = showers.ecal_sum_gev * preprocessing.units_per_gev
    angle = showers.angle_rad
    arrays = {"cells": cells, "energy_gev": showers.energy_gev, "angle_rad": angle, "ecal_sum": sums}
    return {name: tf.constant(value) for name, value in arrays.items()} | {
        "measured_angle_rad": tf.constant(angle + np.float32(0.01))
    }


class PlainOptimizer:
    """RMSprop and Adam as Keras documents them."""

    def __init__(self, run, rate):
        self.adam, self.rate, self.steps, self.slots = run.train.optimizer == "adam", rate, 0, {}

    def update(self, variables, gradients):
        self.steps += 1
        for index, (variable, gradient) in enumerate(zip(variables, gradients)):
            g = gradient.numpy().astype(np.float64)
            m, v = self.slots.get(index, (0.0, 0.0))
            if self.adam:
                m, v = 0.5 * m + 0.5 * g, 0.99 * v + 0.01 * g * g
                rate = self.rate * np.sqrt(1 - 0.99**self.steps) / (1 - 0.5**self.steps)
                change = rate * m / (np.sqrt(v) + 1e-7)
            else:
                v = 0.9 * v + 0.1 * g * g
                change = self.rate * g / np.sqrt(v + 1e-7)
            self.slots[index] = (m, v)
            variable.assign(variable.numpy() - change.astype(np.float32))


def plain_loss(run, outputs, targets, labels, real=None, partner=None):
    """Mean over the batch of the weighted terms, for the outputs that the networks of the case have."""
    weights, energy_score_weight = run.train.loss_weights, run.train.energy_score_weight
    p = tf.clip_by_value(outputs["real_fake"], 1e-7, 1 - 1e-7)
    total = -weights.real_fake * tf.reduce_mean(labels * tf.math.log(p) + (1 - labels) * tf.math.log(1 - p))

    def percent(name):
        return 100 * tf.reduce_mean(tf.abs(outputs[name] - targets[name]) / targets[name])

    published = {
        "energy": percent("energy"),
        "ecal_sum": percent("ecal_sum"),
        "angle": tf.reduce_mean(tf.abs(outputs["angle"] - targets["angle"])),
    }

    def norm(values):
        return 100 * tf.reduce_mean(tf.sqrt(tf.reduce_sum(values**2, axis=1) + 1e-6))

    def roots(showers, name):
        return tf.sqrt(showers[name] / (showers["ecal_sum"] + 1e-3) + 1e-4)

    def logarithm(showers):
        return tf.math.log(showers["ecal_sum"] + 1e-3)

    def terms(to):
        return {
            **{name: norm(roots(outputs, name) - roots(to, name)) for name in ("layers", "transverse")},
            "depth": norm(outputs["depth"] - to["depth"]),
            "counts": 100 * tf.reduce_mean(tf.abs(outputs["counts"] - to["counts"])),
            "hits": tf.reduce_mean(tf.abs(outputs["hits"] - to["hits"])),
            "energy": 100 * tf.reduce_mean(tf.abs(outputs["energy"] - to["energy"]) / targets["energy"]),
            "ecal_sum": 100
            * tf.reduce_mean(tf.abs(tf.math.log((outputs["ecal_sum"] + 1e-3) / (to["ecal_sum"] + 1e-3)))),
            "angle": tf.reduce_mean(tf.abs(outputs["angle"] - to["angle"])),
        }

    compared = {} if real is None else terms(real)
    apart = {} if partner is None else terms(partner)
    for name in {**published, **compared}:
        if energy_score_weight == 0 or real is None:
            term = published.get(name, compared.get(name))
        else:
            term = compared[name] - energy_score_weight * apart[name]
        total += getattr(weights, name) * term
    return total


def plain_step(run, networks, optimizers, batch, number):
    generator, discriminator = networks.values()
    count = len(batch["energy_gev"])

    def section(index):
        return EventDraws(run.train.seed, number, index, 0, count)

    def generate(index, training):
        noise = section(index).normal((noise_size(run.model, run.data),))
        fed = latent(noise, batch, run.model, run.data)
        return generator(fed, training=training)

    def flips(index):
        return tf.cast(section(index).uniform((1,)) < run.train.label_flip, tf.float32)

    targets = {
        "energy": batch["energy_gev"][:, None] / run.data.preprocessing.energy_scale_gev,
        "angle": batch["measured_angle_rad"][:, None],
        "ecal_sum": batch["ecal_sum"][:, None],
    }
    losses = {}

    def update(tape, loss, network, optimizer):
        variables = network.trainable_variables
        optimizer.update(variables, tape.gradient(loss, variables))

    fake = generate(0, False)
    with tf.GradientTape() as tape:
        of_real = discriminator(batch["cells"][..., None], training=True)
        losses["discriminator_real"] = plain_loss(run, of_real, targets, 1 - flips(1))
    update(tape, losses["discriminator_real"], discriminator, optimizers[1])
    with tf.GradientTape() as tape:
        of_fake = discriminator(fake, training=True)
        losses["discriminator_fake"] = plain_loss(run, of_fake, targets, flips(2))
    update(tape, losses["discriminator_fake"], discriminator, optimizers[1])
    for turn in range(run.train.generator_updates):
        with tf.GradientTape() as tape:
            outputs = discriminator(generate(3 + turn, True), training=True)
            losses["generator"] = plain_loss(run, outputs, targets, tf.ones((count, 1)), of_real, of_fake)
        update(tape, losses["generator"], generator, optimizers[0])
    return losses


@pytest.mark.parametrize(
    ("case", "compiled"),
    [
        ("published terms", False),
        ("proper scores", False),
        pytest.param("proper scores", True, marks=pytest.mark.integration),
    ],
)
def test_step_equals_a_plain_one(case, compiled, request):
    if not compiled:
        tf.config.run_functions_eagerly(True)
        request.addfinalizer(lambda: tf.config.run_functions_eagerly(False))
    run = small_run(*PLAIN, *CASES[case], "train.labelFlip=0.3")
    state = TrainingState(run)
    step = compile_step(state, CONSTANT)
    twin = build(run.model, run.data)
    for copy, network in zip(twin.values(), state.networks.values()):
        copy.set_weights(network.get_weights())
    rates = run.train.learning_rate, run.train.discriminator_learning_rate
    optimizers = [PlainOptimizer(run, rate) for rate in rates]
    for number in range(2):
        batch = a_batch(run, seed=number)
        losses = step(batch, 0.0)
        expected = plain_step(run, twin, optimizers, batch, number)
        for name, value in expected.items():
            np.testing.assert_allclose(losses[name], value, rtol=2e-4, err_msg=f"{name} of step {number}")
    for copy, network in zip(twin.values(), state.networks.values()):
        for one, other in zip(copy.get_weights(), network.get_weights()):
            np.testing.assert_allclose(other, one, atol=2e-4)
    assert state.steps_made == 2
    assert int(state.first_bad_step.numpy()) == -1


def test_the_generator_does_not_change_the_discriminator():
    """Nor the other way round: each tape moves one network."""
    run = small_run(*PLAIN, *QUICK, "train.learningRate=1e-30")
    networks = quick_networks(run.model, run.data)
    before = [network.get_weights() for network in networks.values()]
    train_step(run, networks, build_optimizers(run, networks), a_batch(run), StepContext(0, 0.0, 0, 4), CONSTANT)
    unchanged = [
        all(np.allclose(a, b, rtol=0, atol=1e-20) for a, b in zip(weights, network.get_weights()))
        for weights, network in zip(before, networks.values())
    ]
    assert unchanged == [True, False]


def test_a_head_without_weight_in_the_loss_stays_as_it_is():
    run = small_run(*PLAIN, *QUICK, "train.lossWeights.energy=0")
    networks = quick_networks(run.model, run.data)
    heads = [networks["discriminator"].get_layer(name) for name in ("energy", "real_fake")]
    before = [head.get_weights() for head in heads]
    train_step(run, networks, build_optimizers(run, networks), a_batch(run), StepContext(0, 0.0, 0, 4), CONSTANT)
    unchanged = [np.array_equal(weights[0], head.get_weights()[0]) for weights, head in zip(before, heads)]
    assert unchanged == [True, False]


def test_label_flips_are_drawn_in_every_step():
    """Also within one graph: the public code drew them when it was traced, once for a whole training."""
    drawn = tf.function(lambda step: flipped(tf.ones((500, 1)), 0.05, EventDraws(1, step, 1, 0, 500)))
    first, second = (drawn(tf.constant(step)).numpy() for step in (0, 1))
    assert not np.array_equal(first, second)
    assert 1 - np.mean([first, second]) == pytest.approx(0.05, abs=0.03)
    np.testing.assert_array_equal(flipped(tf.zeros((9, 1)), 0.0, EventDraws(1, 0, 1, 0, 9)), np.zeros((9, 1)))


def test_losses_are_per_shower():
    """Showers that are twice in the batch give the same loss; a larger global batch divides it."""
    run = small_run(*PLAIN, *QUICK, "train.labelFlip=0")
    batch = a_batch(run)
    twice = {name: tf.concat([value, value], axis=0) for name, value in batch.items()}
    found = []
    for showers, global_batch in ((batch, 4), (twice, 8), (batch, 8)):
        tf.keras.utils.set_random_seed(1)
        networks = quick_networks(run.model, run.data)
        context = StepContext(0, 0.0, 0, global_batch)
        losses = train_step(run, networks, build_optimizers(run, networks), showers, context, CONSTANT)
        found.append(float(losses["discriminator_real"]))
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[2] == pytest.approx(found[0] / 2, rel=1e-4)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("replicas", [1, 12])
def test_all_replicas_at_the_end_are_at_the_end(replicas, monkeypatch):
    """train.maxMinutes ends at a progress of 1: twelve twelfths are less in float32."""

    class Alike:
        """One of several replicas that all have the same values."""

        def all_reduce(self, _, value):
            return sum([value] * (replicas - 1), value)

    monkeypatch.setattr(tf.distribute, "get_replica_context", Alike)
    run = small_run(*PLAIN, *QUICK)
    networks = quick_networks(run.model, run.data)
    for progress, expected in ((1.0, 1.0), (0.5, pytest.approx(0.5))):
        context = StepContext(0, tf.constant(progress), 0, 4 * replicas, replicas)
        losses = train_step(run, networks, build_optimizers(run, networks), a_batch(run), context, CONSTANT)
        assert float(losses["progress"]) == expected


def test_energies_drawn_apart_from_the_batch(monkeypatch):
    """As published for perpendicular electrons: uniform energies, and the sum that a fit gives for them."""
    fit = [0.0018, -0.023, 0.11, -0.28, 2.21]
    run = small_run("train.energyScoreWeight=0", "train.primaries=uniform", f"train.ecalSumFit={fit}")
    networks, fed = build(run.model, run.data), []
    watched = Computed(
        lambda latents, training: fed.append(latents) or networks["generator"](latents, training=training),
        networks["discriminator"],
        tf.identity,
    )
    batch, context = a_batch(run, 64), StepContext(0, tf.constant(0.0), 0, 64)
    step = Step(family_of(run.model), run, networks, build_optimizers(run, networks), batch, context, CONSTANT)
    tapes, part = _Tapes(step, watched), step.micro_batches[0]
    energies = []
    for section in (0, 3):
        _, targets = tapes.generate(0, part, step.draws(section, part), training=False)
        energy = targets["energy"].numpy()
        np.testing.assert_allclose(fed[-1].numpy()[:, :1], energy, rtol=1e-6)
        np.testing.assert_allclose(targets["ecal_sum"], 50 * np.polyval(fit, energy) * energy, rtol=1e-5)
        np.testing.assert_array_equal(targets["angle"], batch["measured_angle_rad"][:, None])
        energies.append(100 * energy[:, 0])
    low, high = run.data.energy_gev
    for drawn in energies:
        assert kstest(drawn, "uniform", (low, high - low)).pvalue > 1e-3
        assert not np.intersect1d(drawn, batch["energy_gev"]).size
    assert not np.array_equal(*energies)


@pytest.mark.usefixtures("eagerly")
def test_only_what_a_step_changes_is_reduced_and_saved(monkeypatch):
    """The compact generator's random directions are constants, not weights."""
    sent = []

    class Counting:
        """One of two equal replicas."""

        def all_reduce(self, _, value):
            sent.append(int(tf.size(value)))
            return 2 * value

    monkeypatch.setattr(tf.distribute, "get_replica_context", Counting)
    run = small_run(*PLAIN, "train.optimizer=adam", "train.generatorUpdates=2", "train.averageDecay=0.9")
    state = TrainingState(run)
    context = StepContext(0, tf.constant(0.0), 0, 8, 2)
    losses = train_step(run, state.networks, state.optimizers, a_batch(run), context, CONSTANT)
    generator, discriminator = (sum(math.prod(w.shape) for w in n.trainable_weights) for n in state.networks.values())
    assert sum(math.prod(w.shape) for w in state.networks["generator"].weights) == generator
    progress, named = 1, len(losses) - 1
    assert sum(sent) == 2 * discriminator + 2 * generator + progress + named
    weights, average, slots, step = generator + discriminator, generator, 2 * (generator + discriminator), 1
    assert sum(math.prod(v.shape) for v in state.variables().values()) == weights + average + slots + step


def losses_of(run, batch, networks=build):
    """A step's losses, and the networks behind it."""
    state = TrainingState(run, None, networks)
    context = StepContext(0, 0.0, 0, len(batch["energy_gev"]))
    return train_step(run, state.networks, state.optimizers, batch, context, CONSTANT), state


@pytest.mark.integration
@pytest.mark.usefixtures("eagerly")
def test_micro_batches_make_the_same_update():
    """Dropout, noise and flips belong to the showers, so only the rounding of the sums differs."""
    overrides = ("train.labelFlip=0.3", "train.generatorUpdates=1", "train.optimizer=adam")
    whole, state = losses_of(small_run(*overrides), a_batch(small_run()))
    pieces, other = losses_of(small_run(*overrides, "train.maxBatchPerReplica=2"), a_batch(small_run()))
    for name, value in whole.items():
        assert float(pieces[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-6), name
    # Adam's means are linear in the gradients. Its change of a weight is g / |g|, which turns rounding into a sign.
    for name in ("generator", "discriminator"):
        mean, again = (one.optimizers[name].mean.numpy() for one in (state, other))
        np.testing.assert_allclose(again, mean, rtol=0, atol=2e-4 * np.abs(mean).max(), err_msg=name)


@needs_bfloat16
@pytest.mark.integration
@pytest.mark.usefixtures("eagerly")
def test_bfloat16_is_close_and_keeps_weights_losses_and_updates_in_float32():
    overrides = (*PLAIN, "train.labelFlip=0", "train.generatorUpdates=1")
    full, _ = losses_of(small_run(*overrides), a_batch(small_run()))
    half, state = losses_of(small_run(*overrides, "train.precision=bfloat16"), a_batch(small_run()))
    assert {variable.dtype for variable in state.variables().values()} == {tf.float32, tf.int64}
    assert {half[name].dtype for name in half.keys() - {"progress"}} == {tf.float32}
    convolutions = [layer for layer in state.networks["discriminator"].layers if "conv" in layer.name]
    assert {layer.compute_dtype for layer in convolutions} == {"bfloat16"}
    assert tf.keras.mixed_precision.global_policy().name == "float32"
    assert float(half["discriminator_real"]) == pytest.approx(float(full["discriminator_real"]), rel=0.02)
    assert float(half["discriminator_real"]) != float(full["discriminator_real"])


@pytest.mark.usefixtures("eagerly")
def test_the_average_follows_the_weights():
    """decay d: average <- d average + (1 - d) weights, with a smaller d in the first steps."""
    run = small_run(*PLAIN, *QUICK, "train.averageDecay=0.5")
    state = TrainingState(run, build=lambda model, data, **_: quick_networks(model, data))
    step = compile_step(state, CONSTANT)
    expected = state.networks["generator"].get_weights()
    for number in range(2):
        step(a_batch(run), 0.0)
        decay = min(0.5, (1 + number) / (10 + number))
        current = state.networks["generator"].get_weights()
        expected = [decay * a + (1 - decay) * w for a, w in zip(expected, current)]
    for one, other in zip(state.released.get_weights(), expected):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("preset", ["variable-angle", "fixed-angle"])
def test_the_published_networks_train_with_the_same_step(preset):
    run = load_run(preset=preset, overrides=["train.batchPerReplica=1"])
    state = TrainingState(run)
    step = compile_step(state, CONSTANT)
    before = [network.get_weights()[0].copy() for network in state.networks.values()]
    losses = step(a_batch(run, count=1), 0.0)
    assert all(np.isfinite(float(value)) for value in losses.values())
    for weights, network in zip(before, state.networks.values()):
        assert not np.array_equal(weights, network.get_weights()[0])


@pytest.mark.parametrize(("ways", "own"), [("auto", True), ("keras", False)])
def test_keras_layers_are_asked_for_by_one_field(ways, own, monkeypatch):
    """Convolutions and batch normalisation of a network in a training are Keras' own, or neither of them."""
    monkeypatch.setattr(convolution, "has_wide_registers", lambda: True)
    state = TrainingState(load_run(preset="fixed-angle", overrides=[f"train.convolutions={ways}"]))
    network = state.networks["discriminator"]
    traced = tf.function(lambda x: network(x, training=True), autograph=False).get_concrete_function(
        tf.TensorSpec((2, *network.input_shape[1:]))
    )
    operations = traced.graph.get_operations()
    strides = {tuple(one.get_attr("strides")) for one in operations if one.type == "Conv3D"}
    assert ((1, 1, 1, 2, 1) in strides) == own
    assert ("FusedBatchNormV3" in {one.type for one in operations}) == own


@pytest.mark.integration
@pytest.mark.parametrize("machine", ["has_wide_registers", "has_matrix_units"])
def test_the_ways_of_the_convolutions_train_alike(machine, monkeypatch):
    """Three steps of the published networks, with dropout: the same losses within rounding, and twice the same bits."""
    monkeypatch.setattr(convolution, machine, lambda: True)
    # Adam and RMSprop divide by the gradient's size at first: with a large rate rounding would decide.
    overrides = ["train.learningRate=1e-5", "train.decay=constant", "train.warmupEpochs=0"]

    def trained(ways):
        run = load_run(preset="fixed-angle", overrides=[*overrides, f"train.convolutions={ways}"])
        state = TrainingState(run)
        step, batch = compile_step(state, CONSTANT), synthetic_batch(run, 2)
        losses = [{name: float(value) for name, value in step(batch, 0.0).items()} for _ in range(3)]
        return losses, [weight.numpy() for weight in state.variables().values()]

    (found, weights), (again, repeated), (expected, _) = (trained(ways) for ways in ("auto", "auto", "keras"))
    assert found == again
    assert all(np.array_equal(one, other) for one, other in zip(weights, repeated, strict=True))
    assert found != expected
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-3)
