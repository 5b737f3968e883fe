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
    step = _Step(run, networks, optimizers, batch, random, global_batch)
    real, ones = batch["cells"][..., None], tf.ones((step.size, 1))
    fake = step.generate(training=False)
    _, of_real = step.teach_discriminator(real, ones)
    partner, of_fake = step.teach_discriminator(fake, 1 - ones)
    for _ in range(run.train.generator_updates):
        of_generated = step.teach_generator(partner)
    return _named(of_real, of_fake, of_generated)


class _Step:
    """What the four tapes of a step share."""

    def __init__(
        self,
        run: Run,
        networks: Networks,
        optimizers: Optimizers,
        batch: Batch,
        random: Any,
        global_batch: int | None,
    ) -> None:
        self.run, self.networks, self.optimizers, self.batch, self.random = run, networks, optimizers, batch, random
        self.size = batch["cells"].shape[0]
        self.divisor = float(global_batch or self.size)
        self.targets = targets_of(batch, run)

    def generate(self, *, training: bool) -> Any:
        """Showers of the batch's energies and angles, from fresh noise."""
        noise = self.random.normal((self.size, noise_size(self.run.model)))
        fed = latent(noise, self.batch["energy_gev"], self.batch["angle_rad"], self.run.model, self.run.data)
        return self.networks.generator(fed, training=training)

    def teach_discriminator(self, cells: Any, labels: Any) -> tuple[dict[str, Any], Losses]:
        """One update of the discriminator; its outputs and losses for these showers."""
        discriminator = self.networks.discriminator
        labels = flipped(labels, self.run.train.label_flip, self.random)
        with tf.GradientTape() as tape:
            outputs = dict(discriminator(cells, training=True))
            # What else the real showers say of themselves (counts, profiles) is the target for generated ones.
            for name in outputs.keys() - self.targets.keys() - {"real_fake"}:
                self.targets[name] = outputs[name]
            per_shower, terms = adversarial_loss(outputs, self.targets, labels, self.run.train.loss_weights)
            loss = tf.reduce_sum(per_shower) / self.divisor
        _update(tape, loss, discriminator, self.optimizers.discriminator)
        return outputs, self._means(loss, terms)

    def teach_generator(self, partner: Mapping[str, Any]) -> Losses:
        """One update of the generator. partner: outputs for other generated showers, for `train.spread`."""
        train = self.run.train
        labels = tf.ones((self.size, 1))
        with tf.GradientTape() as tape:
            outputs = self.networks.discriminator(self.generate(training=True), training=True)
            per_shower, terms = generator_loss(
                outputs, self.targets, labels, train.loss_weights, partner=partner, spread=train.spread
            )
            loss = tf.reduce_sum(per_shower) / self.divisor
        _update(tape, loss, self.networks.generator, self.optimizers.generator)
        return self._means(loss, terms)

    def _means(self, loss: Any, terms: Mapping[str, Any]) -> Losses:
        return {"loss": loss, **{name: tf.reduce_sum(term) / self.divisor for name, term in terms.items()}}


def _update(tape: Any, loss: Any, network: Any, optimizer: Any) -> None:
    variables = network.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))


def _named(real: Losses, fake: Losses, generated: Losses) -> Losses:
    """The losses that are worth keeping, flat."""
    return {
        "discriminator_real": real["loss"],
        "discriminator_fake": fake["loss"],
        "discriminator_real_fake": (real["real_fake"] + fake["real_fake"]) / 2,
        "discriminator_energy": real["energy"],
        "generator": generated["loss"],
        **{f"generator_{name}": value for name, value in generated.items() if name != "loss"},
    }
