"""One step of the training: four gradient tapes, compiled as one graph.

Showers are generated; tape 1: the discriminator is trained on real showers, tape 2: on the generated ones; tapes 3 and
4: the generator is trained twice, from fresh noise at the same energies and angles. Nothing is drawn or decided on the
host. The step runs in each replica on its share of the global batch; the gradients of a tape are summed in one
all-reduce, after which all replicas make the same update.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

from caloscale.models import Networks, for_training, judged, latent, noise_size
from caloscale.models.dropout import drawing_from
from caloscale.models.losses import adversarial_loss
from caloscale.models.normalization import running_statistics
from caloscale.models.scores import generator_loss
from caloscale.profiling.scopes import part_scope, phase_scope
from caloscale.random import EventDraws
from caloscale.spec import Run
from caloscale.training.optimizers import PackedOptimizer, pack, unpack, unwrap
from caloscale.training.schedule import Schedule

Batch = Mapping[str, tf.Tensor]
Losses = dict[str, tf.Tensor]

DISCRIMINATOR_UPDATES = 2


@dataclass(frozen=True)
class Optimizers:
    """An optimiser for each network."""

    generator: PackedOptimizer
    discriminator: PackedOptimizer


def build_optimizers(run: Run, networks: Networks) -> Optimizers:
    """The optimisers of the run configuration, one for each network."""
    kind = run.train.optimizer
    return Optimizers(
        PackedOptimizer(kind, networks.generator.trainable_variables),
        PackedOptimizer(kind, networks.discriminator.trainable_variables),
    )


@dataclass(frozen=True)
class StepContext:
    """Number of a step, progress of the training, and position of the replica's showers in the global batch.

    step: steps before this one. progress: finished fraction of the training, as measured by this replica; the mean of
    all replicas counts. first: position of this replica's first shower in the global batch. global_batch: showers of
    all replicas. replicas: their number. Numbers or scalar tensors.
    """

    step: int | tf.Tensor
    progress: float | tf.Tensor
    first: int | tf.Tensor
    global_batch: int
    replicas: int = 1


def targets_of(batch: Batch, run: Run) -> dict[str, tf.Tensor]:
    """Targets of the discriminator's heads for showers of these energies and angles, each (B, 1)."""
    return {
        "energy": batch["energy_gev"][:, None] / run.data.preprocessing.energy_scale_gev,
        "angle": batch["measured_angle_rad"][:, None],
        "ecal_sum": batch["ecal_sum"][:, None],
    }


def drawn_targets(energy_gev: tf.Tensor, run: Run) -> dict[str, tf.Tensor]:
    """Targets of generated showers of drawn energies (B, 1) GeV: the energy, and the sum by `train.ecalSumFit`."""
    preprocessing = run.data.preprocessing
    energy = energy_gev / preprocessing.energy_scale_gev
    ratio = tf.zeros_like(energy)
    for coefficient in run.train.ecal_sum_fit or ():
        ratio = ratio * energy + coefficient
    return {"energy": energy, "ecal_sum": ratio * energy * preprocessing.units_per_gev}


def flipped(labels: tf.Tensor, share: float, random: EventDraws) -> tf.Tensor:
    """Labels (B, 1), of which a share is flipped: y becomes 1 - y. Drawn anew in every step."""
    flip = tf.cast(random.uniform((1,)) < share, labels.dtype)
    return labels * (1 - flip) + (1 - labels) * flip


def train_step(
    run: Run, networks: Networks, optimizers: Optimizers, batch: Batch, context: StepContext, schedule: Schedule
) -> Losses:
    """One step on a replica's batch; updates weights and optimisers; losses, means over the global batch.

    batch: as `TrainingShowers.batches` gives it. Among the losses is ``progress``, on which all replicas agree.
    """
    step = _Step(run, networks, optimizers, batch, context, schedule)
    with phase_scope("fakes"):
        fakes = [step.generate(micro, step.draws(0, micro), training=False) for micro in step.micro_batches]
    with phase_scope("discriminator_real"):
        of_real = step.update_discriminator(
            1, [(step.computed.showers(micro.cells), micro.targets) for micro in step.micro_batches], real=True
        )
    with phase_scope("discriminator_fake"):
        of_fake = step.update_discriminator(2, fakes, real=False)
    with phase_scope("generator"):
        for update in range(run.train.generator_updates - 1):
            step.update_generator(update)
        return step.finish(of_real, of_fake)


class MicroBatch:
    """Showers of a replica that go through the networks together: its whole batch, or a slice of it."""

    def __init__(self, run: Run, batch: Batch, begin: int, end: int) -> None:
        self.batch = {name: value[begin:end] for name, value in batch.items()}
        self.begin, self.size = begin, end - begin
        self.cells = self.batch["cells"][..., None]
        self.targets = targets_of(self.batch, run)
        self.real: Mapping[str, tf.Tensor] = {}
        self.partner: Mapping[str, tf.Tensor] = {}


class _Step:
    """The four tapes of a step."""

    def __init__(
        self,
        run: Run,
        networks: Networks,
        optimizers: Optimizers,
        batch: Batch,
        context: StepContext,
        schedule: Schedule,
    ) -> None:
        self.run, self.networks, self.optimizers = run, networks, optimizers
        self.computed = for_training(networks, run.model)
        self.context, self.schedule = context, schedule
        size = batch["cells"].shape[0]
        length = size // run.train.micro_batches(size)
        self.micro_batches = [MicroBatch(run, batch, begin, begin + length) for begin in range(0, size, length)]
        self.progress: tf.Tensor | None = None
        self._before: list[tf.Tensor] = []

    def draws(self, section: int, micro: MicroBatch) -> EventDraws:
        """Random numbers of a section of the step for the showers of a micro-batch."""
        return EventDraws(self.run.train.seed, self.context.step, section, self.context.first + micro.begin, micro.size)

    def generate(
        self, micro: MicroBatch, random: EventDraws, *, training: bool
    ) -> tuple[tf.Tensor, dict[str, tf.Tensor]]:
        """Showers (B, X, Y, Z, 1) from fresh noise, and their targets: of the primaries of the micro-batch, or of drawn
        energies (`train.primaries`).
        """
        noise = random.normal((noise_size(self.run.model, self.run.data),))
        energy, targets = micro.batch["energy_gev"], micro.targets
        if self.run.train.primaries == "uniform":
            low, high = self.run.data.energy_gev
            energy = low + (high - low) * random.uniform((1,))
            targets = {**targets, **drawn_targets(energy, self.run)}
        inputs = latent(noise, {**micro.batch, "energy_gev": energy}, self.run.model, self.run.data)
        return self.computed.generator(inputs, training=training), targets

    def update_discriminator(
        self, section: int, showers: Sequence[tuple[tf.Tensor, dict[str, tf.Tensor]]], *, real: bool
    ) -> Losses:
        """One update of the discriminator; its losses. showers: for each micro-batch (B, X, Y, Z, 1), and targets."""
        train = self.run.train

        def one(index: int) -> tuple[tf.Tensor, Losses]:
            micro = self.micro_batches[index]
            random = self.draws(section, micro)
            labels = flipped(tf.fill((micro.size, 1), float(real)), train.label_flip, random)
            cells, targets = showers[index]
            with tf.GradientTape() as tape, drawing_from(random):
                outputs = dict(self.computed.discriminator(judged(cells, micro.batch, self.run.data), training=True))
                if real:
                    # The constraints that only the shower itself gives (numbers of cells) are targets too.
                    micro.real = outputs
                    micro.targets = {**outputs, **micro.targets}
                targets = {**micro.targets, **targets}
                per_shower, terms = adversarial_loss(outputs, targets, labels, train.loss_weights)
                loss = tf.reduce_sum(per_shower) / self.context.global_batch
            if not real:
                micro.partner = outputs
            return self._gradient(tape, loss, self.networks.discriminator), self._means(loss, terms)

        gradient, losses = self._accumulated(one)
        reduced, progress = self._all_reduced(gradient, [] if self.progress is not None else [self.context.progress])
        if progress:
            self.progress = self._mean_progress(progress[0])
        number = self.context.step * DISCRIMINATOR_UPDATES + (1 if real else 2)
        rate = train.discriminator_learning_rate or train.learning_rate
        with part_scope("optimizer"):
            self.optimizers.discriminator.apply(reduced, self._rate(rate), number)
        return losses

    def update_generator(
        self, update: int, extra_values: Callable[[Losses], list[tf.Tensor]] = lambda _: []
    ) -> list[tf.Tensor]:
        """One update of the generator, from fresh noise.

        extra_values: from the losses of the update to values that are reduced together with the gradient. Returned are
        their sums over the replicas.
        """
        generator, train = self.networks.generator, self.run.train

        def one(index: int) -> tuple[tf.Tensor, Losses]:
            micro = self.micro_batches[index]
            random = self.draws(3 + update, micro)
            with tf.GradientTape() as tape, drawing_from(random):
                cells, targets = self.generate(micro, random, training=True)
                outputs = self.computed.discriminator(judged(cells, micro.batch, self.run.data), training=True)
                per_shower, terms = generator_loss(
                    outputs,
                    targets,
                    tf.ones((micro.size, 1)),
                    train.loss_weights,
                    real=micro.real,
                    partner=micro.partner,
                    energy_score_weight=train.energy_score_weight,
                )
                loss = tf.reduce_sum(per_shower) / self.context.global_batch
            return self._gradient(tape, loss, generator), self._means(loss, terms)

        gradient, losses = self._accumulated(one)
        reduced, summed = self._all_reduced(gradient, extra_values(losses))
        number = self.context.step * train.generator_updates + update + 1
        with part_scope("optimizer"):
            self.optimizers.generator.apply(reduced, self._rate(train.learning_rate), number)
        return summed

    def finish(self, of_real: Losses, of_fake: Losses) -> Losses:
        """The last update. Its all-reduce also carries the losses and the running statistics."""
        running = [] if self.context.replicas == 1 else [w for net in self.networks for w in running_statistics(net)]
        names: list[str] = []

        def extra_values(of_generated: Losses) -> list[tf.Tensor]:
            losses = _named(of_real, of_fake, of_generated)
            names.extend(losses)
            return [*losses.values(), *(unwrap(variable) / self.context.replicas for variable in running)]

        summed = self.update_generator(self.run.train.generator_updates - 1, extra_values)
        for variable, value in zip(running, summed[len(names) :]):
            unwrap(variable).assign(value)
        return {**dict(zip(names, summed)), "progress": self.progress}

    def _accumulated(self, one: Callable[[int], tuple[tf.Tensor, Losses]]) -> tuple[tf.Tensor, Losses]:
        """Sum of gradients and losses over the micro-batches, one after the other and after the update before.

        Without the dependencies what does not need the result of another would be computed at once with it, and the
        memory of both would be needed. A step of the compact networks needs as little then, and is 3% faster.
        """
        with tf.control_dependencies(self._before):
            gradient, losses = one(0)
        for index in range(1, len(self.micro_batches)):
            with tf.control_dependencies([gradient]):
                further, terms = one(index)
            gradient = gradient + further
            losses = {name: value + terms[name] for name, value in losses.items()}
        self._before = [] if self.run.model.is_compact else [gradient]
        return gradient, losses

    def _all_reduced(self, gradient: tf.Tensor, extra_values: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Sums over all replicas of a packed gradient and of further values, by one all-reduce."""
        if self.context.replicas == 1:
            return gradient, list(extra_values)
        values = [gradient, *extra_values]
        with part_scope("all_reduce"):
            packed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, pack(values))
            summed, *rest = unpack(packed, values)
        return summed, rest

    def _mean_progress(self, summed: tf.Tensor) -> tf.Tensor:
        """The mean over the replicas; exactly 1 when all are at the end, as the training ends at 1.

        Shares of 1/n, or a division that a compiler makes a multiplication by 1/n, round to less for many n.
        """
        replicas = self.context.replicas
        return tf.where(summed >= replicas, 1.0, summed / replicas)

    def _rate(self, rate: float) -> tf.Tensor:
        scaled = rate * self.run.train.rate_factor(self.context.global_batch)
        return scaled * self.schedule.factor(self.context.step, self.progress)

    def _gradient(self, tape: tf.GradientTape, loss: tf.Tensor, network: tf.keras.Model) -> tf.Tensor:
        zero = tf.UnconnectedGradients.ZERO
        with part_scope("back_propagation"):
            return pack(tape.gradient(loss, network.trainable_variables, unconnected_gradients=zero))

    def _means(self, loss: tf.Tensor, terms: Mapping[str, tf.Tensor]) -> Losses:
        return {"loss": loss, **{name: tf.reduce_sum(term) / self.context.global_batch for name, term in terms.items()}}


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
