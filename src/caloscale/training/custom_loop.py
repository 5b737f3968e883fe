"""One step of the training: four gradient tapes, compiled as one graph.

Showers are generated; tape 1: the discriminator learns from real showers, tape 2: from the generated ones; tapes 3
and 4: the generator learns twice, from fresh noise at the same energies and angles. Nothing is drawn or decided on
the host. The step runs in each replica on its share of the global batch; the gradients of a tape meet in one
all-reduce, after which all replicas make the same update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from caloscale.models import Networks, latent, noise_size
from caloscale.models.dropout import drawing_from
from caloscale.models.losses import adversarial_loss
from caloscale.models.normalization import running_statistics
from caloscale.models.scores import generator_loss
from caloscale.profiling.scopes import part_scope, phase_scope
from caloscale.spec import Run
from caloscale.training.draws import EventDraws
from caloscale.training.optimizers import PackedOptimizer, pack, plain, unpack
from caloscale.training.schedule import Schedule

Batch = Mapping[str, Any]
Losses = dict[str, Any]

DISCRIMINATOR_UPDATES = 2


@dataclass(frozen=True)
class Optimizers:
    """An optimiser for each network."""

    generator: PackedOptimizer
    discriminator: PackedOptimizer


def build_optimizers(run: Run, networks: Networks) -> Optimizers:
    """The optimisers of the document, one for each network."""
    kind = run.train.optimizer
    return Optimizers(
        PackedOptimizer(kind, networks.generator.trainable_variables),
        PackedOptimizer(kind, networks.discriminator.trainable_variables),
    )


@dataclass(frozen=True)
class Moment:
    """Where in the training a step is, and where in the global batch its showers are.

    step: steps before this one. progress: part of the training that is over, as this replica sees it; the replicas
    take the mean. first: place of this replica's first shower in the global batch. global_batch: showers of all
    replicas. replicas: how many there are. Numbers or scalar tensors.
    """

    step: Any
    progress: Any
    first: Any
    global_batch: int
    replicas: int = 1


def targets_of(batch: Batch, run: Run) -> dict[str, Any]:
    """What the discriminator's heads should say of showers of these energies and angles, each (B, 1)."""
    return {
        "energy": batch["energy_gev"][:, None] / run.data.preprocessing.energy_scale_gev,
        "angle": batch["measured_angle_rad"][:, None],
        "ecal_sum": batch["ecal_sum"][:, None],
    }


def flipped(labels: Any, share: float, random: Any) -> Any:
    """Labels (B, 1) of which a share is turned over, drawn anew in every step."""
    flip = tf.cast(random.uniform((1,)) < share, labels.dtype)
    return labels * (1 - flip) + (1 - labels) * flip


def train_step(
    run: Run, networks: Networks, optimizers: Optimizers, batch: Batch, moment: Moment, schedule: Schedule
) -> Losses:
    """One step on a replica's batch; updates weights and optimisers; losses, means over the global batch.

    batch: as `TrainingShowers.batches` gives it. Among the losses is ``progress``, on which all replicas agree.
    """
    step = _Step(run, networks, optimizers, batch, moment, schedule)
    with phase_scope("fakes"):
        fakes = [step.generate(part, step.draws(0, part), training=False) for part in step.parts]
    with phase_scope("discriminator_real"):
        of_real = step.teach_discriminator(1, [part.cells for part in step.parts], real=True)
    with phase_scope("discriminator_fake"):
        of_fake = step.teach_discriminator(2, fakes, real=False)
    with phase_scope("generator"):
        for update in range(run.train.generator_updates - 1):
            step.teach_generator(update)
        return step.finish(of_real, of_fake)


class _Part:
    """Showers of a replica that go through the networks together: all, or a micro-batch."""

    def __init__(self, run: Run, batch: Batch, begin: int, end: int) -> None:
        self.batch = {name: value[begin:end] for name, value in batch.items()}
        self.begin, self.size = begin, end - begin
        self.cells = self.batch["cells"][..., None]
        self.targets = targets_of(self.batch, run)
        self.partner: Mapping[str, Any] = {}


class _Step:
    """What the four tapes of a step share."""

    def __init__(
        self, run: Run, networks: Networks, optimizers: Optimizers, batch: Batch, moment: Moment, schedule: Schedule
    ) -> None:
        self.run, self.networks, self.optimizers = run, networks, optimizers
        self.moment, self.schedule = moment, schedule
        size = batch["cells"].shape[0]
        length = size // run.train.micro_batches(size)
        self.parts = [_Part(run, batch, begin, begin + length) for begin in range(0, size, length)]
        self.progress: Any = None

    def draws(self, section: int, part: _Part) -> EventDraws:
        """Random numbers of a section of the step for a part's showers."""
        return EventDraws(self.run.train.seed, self.moment.step, section, self.moment.first + part.begin, part.size)

    def generate(self, part: _Part, random: EventDraws, *, training: bool) -> Any:
        """Showers of the part's energies and angles, from fresh noise."""
        noise = random.normal((noise_size(self.run.model),))
        fed = latent(noise, part.batch["energy_gev"], part.batch["angle_rad"], self.run.model, self.run.data)
        return self.networks.generator(fed, training=training)

    def teach_discriminator(self, section: int, cells: Sequence[Any], *, real: bool) -> Losses:
        """One update of the discriminator; its losses for these showers, of which each part has some."""
        discriminator, train = self.networks.discriminator, self.run.train

        def one(index: int) -> tuple[Any, Losses]:
            part = self.parts[index]
            random = self.draws(section, part)
            labels = flipped(tf.fill((part.size, 1), float(real)), train.label_flip, random)
            with tf.GradientTape() as tape, drawing_from(random):
                outputs = dict(discriminator(cells[index], training=True))
                # What else the real showers say of themselves (counts, profiles) is the target for generated ones.
                for name in outputs.keys() - part.targets.keys() - {"real_fake"}:
                    part.targets[name] = outputs[name]
                per_shower, terms = adversarial_loss(outputs, part.targets, labels, train.loss_weights)
                loss = tf.reduce_sum(per_shower) / self.moment.global_batch
            part.partner = outputs
            return self._gradient(tape, loss, discriminator), self._means(loss, terms)

        gradient, losses = self._over_parts(one)
        agreed, progress = self._agreed(gradient, [] if self.progress is not None else [self.moment.progress])
        if progress:
            self.progress = self._mean_progress(progress[0])
        number = self.moment.step * DISCRIMINATOR_UPDATES + (1 if real else 2)
        rate = train.discriminator_learning_rate or train.learning_rate
        with part_scope("optimizer"):
            self.optimizers.discriminator.apply(agreed, self._rate(rate), number)
        return losses

    def teach_generator(self, update: int, others: Callable[[Losses], list[Any]] = lambda _: []) -> list[Any]:
        """One update of the generator, from fresh noise.

        others: from the losses of the update to values that are added up over the replicas along with the gradient;
        their sums are returned.
        """
        generator, train = self.networks.generator, self.run.train

        def one(index: int) -> tuple[Any, Losses]:
            part = self.parts[index]
            random = self.draws(3 + update, part)
            with tf.GradientTape() as tape, drawing_from(random):
                outputs = self.networks.discriminator(self.generate(part, random, training=True), training=True)
                per_shower, terms = generator_loss(
                    outputs,
                    part.targets,
                    tf.ones((part.size, 1)),
                    train.loss_weights,
                    partner=part.partner,
                    energy_score_weight=train.energy_score_weight,
                )
                loss = tf.reduce_sum(per_shower) / self.moment.global_batch
            return self._gradient(tape, loss, generator), self._means(loss, terms)

        gradient, losses = self._over_parts(one)
        agreed, summed = self._agreed(gradient, others(losses))
        number = self.moment.step * train.generator_updates + update + 1
        with part_scope("optimizer"):
            self.optimizers.generator.apply(agreed, self._rate(train.learning_rate), number)
        return summed

    def finish(self, of_real: Losses, of_fake: Losses) -> Losses:
        """The last update; with it the replicas agree on the losses and on the running statistics."""
        running = [] if self.moment.replicas == 1 else [w for net in self.networks for w in running_statistics(net)]
        names: list[str] = []

        def others(of_generated: Losses) -> list[Any]:
            losses = _named(of_real, of_fake, of_generated)
            names.extend(losses)
            return [*losses.values(), *(plain(variable) / self.moment.replicas for variable in running)]

        summed = self.teach_generator(self.run.train.generator_updates - 1, others)
        for variable, value in zip(running, summed[len(names) :]):
            plain(variable).assign(value)
        return {**dict(zip(names, summed)), "progress": self.progress}

    def _over_parts(self, one: Callable[[int], tuple[Any, Losses]]) -> tuple[Any, Losses]:
        """Sum of gradients and losses over the micro-batches, one after the other."""
        gradient, losses = one(0)
        for index in range(1, len(self.parts)):
            # Without this they would all be computed at once, and need the memory of the whole batch.
            with tf.control_dependencies([gradient]):
                further, terms = one(index)
            gradient = gradient + further
            losses = {name: value + terms[name] for name, value in losses.items()}
        return gradient, losses

    def _agreed(self, gradient: Any, others: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Sums over all replicas of a packed gradient and of other values: one all-reduce."""
        if self.moment.replicas == 1:
            return gradient, list(others)
        values = [gradient, *others]
        with part_scope("all_reduce"):
            packed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, pack(values))
            summed, *rest = unpack(packed, values)
        return summed, rest

    def _mean_progress(self, summed: Any) -> Any:
        """The mean over the replicas; exactly 1 when all are at the end, as the training ends at 1.

        Shares of 1/n, or a division that a compiler makes a multiplication by 1/n, round to less for many n.
        """
        replicas = self.moment.replicas
        return tf.where(summed >= replicas, 1.0, summed / replicas)

    def _rate(self, rate: float) -> Any:
        scaled = rate * self.run.train.rate_factor(self.moment.global_batch)
        return scaled * self.schedule.factor(self.moment.step, self.progress)

    def _gradient(self, tape: Any, loss: Any, network: Any) -> Any:
        zero = tf.UnconnectedGradients.ZERO
        with part_scope("back_propagation"):
            return pack(tape.gradient(loss, network.trainable_variables, unconnected_gradients=zero))

    def _means(self, loss: Any, terms: Mapping[str, Any]) -> Losses:
        return {"loss": loss, **{name: tf.reduce_sum(term) / self.moment.global_batch for name, term in terms.items()}}


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
