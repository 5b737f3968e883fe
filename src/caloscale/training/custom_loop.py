"""One step of the training: four gradient tapes, compiled as one graph.

Showers are generated; tape 1: the discriminator learns from real showers, tape 2: from the generated ones; tapes 3
and 4: the generator learns twice, from fresh noise at the same energies and angles. Nothing is drawn or decided on
the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from caloscale.models import Networks, latent, noise_size
from caloscale.models.losses import adversarial_loss
from caloscale.models.scores import generator_loss
from caloscale.spec import Run

Batch = Mapping[str, Any]
Losses = dict[str, Any]


@dataclass(frozen=True)
class Optimizers:
    """An optimiser for each network; built, so that their state can be restored."""

    generator: Any
    discriminator: Any


def build_optimizers(run: Run, networks: Networks) -> Optimizers:
    """The optimisers of the document, one for each network."""
    train = run.train

    def one(rate: float, network: Any) -> Any:
        if train.optimizer == "adam":
            optimizer = tf.keras.optimizers.Adam(rate, beta_1=0.5, beta_2=0.99)
        else:
            optimizer = tf.keras.optimizers.RMSprop(rate, rho=0.9)
        optimizer.build(network.trainable_variables)
        return optimizer

    of_discriminator = train.discriminator_learning_rate or train.learning_rate
    return Optimizers(one(train.learning_rate, networks.generator), one(of_discriminator, networks.discriminator))


def targets_of(batch: Batch, run: Run) -> dict[str, Any]:
    """What the discriminator's heads should say of showers of these energies and angles, each (B, 1)."""
    return {
        "energy": batch["energy_gev"][:, None] / run.data.preprocessing.energy_scale_gev,
        "angle": batch["measured_angle_rad"][:, None],
        "ecal_sum": batch["ecal_sum"][:, None],
    }


def flipped(labels: Any, share: float, random: Any) -> Any:
    """Labels (B, 1) of which a share is turned over, drawn anew at every call."""
    flip = tf.cast(random.uniform(tf.shape(labels)) < share, labels.dtype)
    return labels * (1 - flip) + (1 - labels) * flip


def train_step(
    run: Run,
    networks: Networks,
    optimizers: Optimizers,
    batch: Batch,
    random: Any,
    global_batch: int | None = None,
) -> Losses:
    """One step on a batch; updates weights and optimisers and returns losses, means over the batch.

    batch: as `TrainingShowers.batches` gives it. random: a tf.random.Generator. global_batch: showers of all replicas
    together, by which losses are divided; absent: this batch is all.
    """
    generator, discriminator = networks
    weights = run.train.loss_weights
    real = batch["cells"][..., None]
    size = real.shape[0]
    divisor = float(global_batch or size)
    targets = targets_of(batch, run)
    ones = tf.ones((size, 1))

    def generate(training: bool) -> Any:
        noise = random.normal((size, noise_size(run.model)))
        fed = latent(noise, batch["energy_gev"], batch["angle_rad"], run.model, run.data)
        return generator(fed, training=training)

    def learn(tape: Any, loss: Any, network: Any, optimizer: Any) -> None:
        variables = network.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))

    def discriminate(cells: Any, labels: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        labels = flipped(labels, run.train.label_flip, random)
        with tf.GradientTape() as tape:
            outputs = discriminator(cells, training=True)
            # What else real showers say of themselves (bin counts, profiles) is the target for generated ones.
            for name in outputs.keys() - targets.keys() - {"real_fake"}:
                targets[name] = outputs[name]
            per_shower, terms = adversarial_loss(outputs, targets, labels, weights)
            loss = tf.reduce_sum(per_shower) / divisor
        learn(tape, loss, discriminator, optimizers.discriminator)
        return outputs, {"loss": loss, **_means(terms, divisor)}

    fake = generate(training=False)
    _, real_terms = discriminate(real, ones)
    partner, fake_terms = discriminate(fake, 1 - ones)
    for _ in range(run.train.generator_updates):
        with tf.GradientTape() as tape:
            outputs = discriminator(generate(training=True), training=True)
            per_shower, terms = generator_loss(
                outputs, targets, ones, weights, partner=partner, spread=run.train.spread
            )
            loss = tf.reduce_sum(per_shower) / divisor
        learn(tape, loss, generator, optimizers.generator)
    return _named(real_terms, fake_terms, {"loss": loss, **_means(terms, divisor)})


def _means(terms: Mapping[str, Any], divisor: float) -> Losses:
    return {name: tf.reduce_sum(term) / divisor for name, term in terms.items()}


def _named(real: Losses, fake: Losses, generated: Losses) -> Losses:
    """The losses that are worth keeping, flat."""
    return {
        "discriminator_real": real["loss"],
        "discriminator_fake": fake["loss"],
        "discriminator_real_fake": (real["real_fake"] + fake["real_fake"]) / 2,
        "discriminator_energy": real["energy"],
        "generator": generated.pop("loss"),
        **{f"generator_{name}": value for name, value in generated.items()},
    }
