"""The step of a generator and its discriminator: four gradient tapes, compiled as one graph.

Showers are generated; tape 1: the discriminator is trained on real showers, tape 2: on the generated ones; tapes 3 and
4: the generator is trained twice, from fresh noise at the same energies and angles.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import tensorflow as tf

from caloscale.models.families.gan.conditions import judged
from caloscale.models.families.gan.losses import adversarial_loss, generator_loss
from caloscale.models.families.step import Batch, Losses, MicroBatch, Step, phase_scope
from caloscale.random import EventDraws
from caloscale.spec import Run

DISCRIMINATOR_UPDATES = 2
Outputs = dict[str, tf.Tensor]


class Computed(NamedTuple):
    """How a training step computes the networks. What showers are between the two is a matter of the functions."""

    generator: Callable[..., tf.Tensor]
    """(latent, training) -> generated showers."""
    discriminator: Callable[..., Outputs]
    """(showers, and their condition where there is one, as `judged` gives both; training) -> outputs."""
    showers: Callable[[tf.Tensor], tf.Tensor]
    """(B, X, Y, Z, 1) in network units -> showers."""


def train_step(step: Step, computed: Computed) -> Losses:
    """One step; updates weights and optimisers; losses, means over the global batch, as `Step.finish`."""
    tapes = _Tapes(step, computed)
    with phase_scope("fakes"):
        fakes = [
            tapes.generate(index, micro, step.draws(0, micro), training=False)
            for index, micro in enumerate(step.micro_batches)
        ]
    with phase_scope("discriminator_real"):
        of_real = tapes.update_discriminator(
            1,
            [(computed.showers(micro.cells), targets) for micro, targets in zip(step.micro_batches, tapes.targets)],
            real=True,
        )
    with phase_scope("discriminator_fake"):
        of_fake = tapes.update_discriminator(2, fakes, real=False)
    with phase_scope("generator"):
        updates = step.run.train.generator_updates
        for update in range(updates - 1):
            step.update("generator", 3 + update, tapes.loss_of_generator, number=tapes.number_of_generator(update))
        return step.finish(
            "generator",
            2 + updates,
            tapes.loss_of_generator,
            number=tapes.number_of_generator(updates - 1),
            named=lambda of_generated: _named(of_real, of_fake, of_generated),
        )


def targets_of(batch: Batch, run: Run) -> Outputs:
    """Targets of the discriminator's heads for showers of these energies and angles, each (B, 1)."""
    return {
        "energy": batch["energy_gev"][:, None] / run.data.preprocessing.energy_scale_gev,
        "angle": batch["measured_angle_rad"][:, None],
        "ecal_sum": batch["ecal_sum"][:, None],
    }


def drawn_targets(energy_gev: tf.Tensor, run: Run) -> Outputs:
    """Targets of generated showers of drawn energies (B, 1) GeV: the energy, and the sum by `train.ecalSumFit`."""
    preprocessing = run.data.preprocessing
    energy = energy_gev / preprocessing.energy_scale_gev
    ratio = tf.math.polyval(list(run.train.ecal_sum_fit or ()), energy)
    return {"energy": energy, "ecal_sum": ratio * energy * preprocessing.units_per_gev}


def flipped(labels: tf.Tensor, share: float, random: EventDraws) -> tf.Tensor:
    """Labels (B, 1), of which a share is flipped: y becomes 1 - y. Each step flips others."""
    flip = tf.cast(random.uniform((1,)) < share, labels.dtype)
    return labels * (1 - flip) + (1 - labels) * flip


class _Tapes:
    """The tapes of a step, and what a later one needs of an earlier one, by micro-batch."""

    def __init__(self, step: Step, computed: Computed) -> None:
        self.step, self.run, self.computed = step, step.run, computed
        self.targets = [targets_of(micro.batch, step.run) for micro in step.micro_batches]
        self.real: dict[int, Outputs] = {}
        self.partner: dict[int, Outputs] = {}

    def generate(
        self, index: int, micro: MicroBatch, random: EventDraws, *, training: bool
    ) -> tuple[tf.Tensor, Outputs]:
        """Showers (B, X, Y, Z, 1) from fresh noise, and their targets: of the primaries of the micro-batch, or of drawn
        energies (`train.primaries`).
        """
        model, data = self.run.model, self.run.data
        noise = random.normal((self.step.family.noise_size(model, data),))
        energy, targets = micro.batch["energy_gev"], self.targets[index]
        if self.run.train.primaries == "uniform":
            low, high = data.energy_gev
            energy = low + (high - low) * random.uniform((1,))
            targets = {**targets, **drawn_targets(energy, self.run)}
        inputs = self.step.family.latent(noise, {**micro.batch, "energy_gev": energy}, model, data)
        return self.computed.generator(inputs, training=training), targets

    def update_discriminator(self, section: int, showers: Sequence[tuple[tf.Tensor, Outputs]], *, real: bool) -> Losses:
        """One update of the discriminator; its losses. showers: for each micro-batch (B, X, Y, Z, 1), and targets."""
        train = self.run.train

        def loss_of(index: int, micro: MicroBatch, random: EventDraws) -> tuple[tf.Tensor, Outputs]:
            labels = flipped(tf.fill((micro.size, 1), float(real)), train.label_flip, random)
            cells, targets = showers[index]
            outputs = dict(self.computed.discriminator(judged(cells, micro.batch, self.run.data), training=True))
            if real:
                # The constraints that only the shower itself gives (numbers of cells) are targets too.
                self.real[index] = outputs
                self.targets[index] = {**outputs, **self.targets[index]}
            else:
                self.partner[index] = outputs
            return adversarial_loss(outputs, {**self.targets[index], **targets}, labels, train.loss_weights)

        rate = train.discriminator_learning_rate or train.learning_rate
        number = self.step.context.step * DISCRIMINATOR_UPDATES + (1 if real else 2)
        losses, _ = self.step.update("discriminator", section, loss_of, rate=rate, number=number)
        return losses

    def number_of_generator(self, update: int) -> int | tf.Tensor:
        """The number of an update of the generator in the whole training."""
        return self.step.context.step * self.run.train.generator_updates + update + 1

    def loss_of_generator(
        self, index: int, micro: MicroBatch, random: EventDraws
    ) -> tuple[tf.Tensor, Mapping[str, tf.Tensor]]:
        cells, targets = self.generate(index, micro, random, training=True)
        return generator_loss(
            self.computed.discriminator(judged(cells, micro.batch, self.run.data), training=True),
            targets,
            tf.ones((micro.size, 1)),
            self.run.train.loss_weights,
            real=self.real[index],
            partner=self.partner[index],
            energy_score_weight=self.run.train.energy_score_weight,
        )


def _named(real: Losses, fake: Losses, generated: Losses) -> Losses:
    """The losses that are recorded, by name."""
    return {
        "discriminator_real": real["loss"],
        "discriminator_fake": fake["loss"],
        "discriminator_real_fake": (real["real_fake"] + fake["real_fake"]) / 2,
        "discriminator_energy": real["energy"],
        "generator": generated["loss"],
        **{f"generator_{name}": value for name, value in generated.items() if name != "loss"},
    }
