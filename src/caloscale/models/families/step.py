"""What the training steps of all families share: random numbers, micro-batches, gradients, their sum, an update.

Nothing is drawn or decided on the host. The step runs in each replica on its share of the global batch; the gradients
of an update are summed in one all-reduce, after which all replicas make the same update.

By name scopes a profile knows what an operation is for. A family names the phases of its step; within a phase, what is
not the forward pass has a part. TensorFlow names gradients "gradient_tape/" and the scopes of their forward pass.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal, get_args

import tensorflow as tf

from caloscale.models.families.family import Family, Networks
from caloscale.models.layers.dropout import drawing_from
from caloscale.models.layers.normalization import running_statistics
from caloscale.models.optimizers import PackedOptimizer, Schedule, pack, unpack, unwrap
from caloscale.random import EventDraws
from caloscale.spec import Run

Part = Literal["forward", "back_propagation", "all_reduce", "optimizer"]
PARTS: tuple[Part, ...] = get_args(Part)

# A point keeps them apart from the names of networks and layers; TensorFlow numbers a scope that is entered again.
_PHASE = re.compile(r"phase\.([a-z_]+?)(?:_\d+)?(?:/|$)")
_PART = re.compile(rf"part\.({'|'.join(PARTS)})(?:_\d+)?(?:/|$)")
_GRADIENTS = "gradient_tape/"
_COLLECTIVES = ("Collective", "Nccl", "AllReduce", "CrossReplica")


def phase_scope(phase: str) -> AbstractContextManager[str]:
    """A context for the operations of a phase: small letters and underscores."""
    return tf.name_scope(f"phase.{phase}")


def part_scope(part: Part) -> AbstractContextManager[str]:
    """A context for the operations of a part of a phase."""
    return tf.name_scope(f"part.{part}")


def phase_and_part(name: str, kind: str) -> tuple[str | None, Part]:
    """Phase and part of an operation from its name (scopes separated by /) and type; no phase: the rest of a step."""
    phase, scope = _PHASE.search(name), _PART.search(name)
    part = scope[1] if scope else "back_propagation" if _GRADIENTS in name else "forward"
    if any(collective in kind for collective in _COLLECTIVES):
        part = "all_reduce"
    return (phase[1] if phase else None), part  # type: ignore[return-value]


Batch = Mapping[str, tf.Tensor]
Losses = dict[str, tf.Tensor]
Optimizers = dict[str, PackedOptimizer]
"""By role."""


def build_optimizers(run: Run, networks: Networks) -> Optimizers:
    """The optimisers of the run configuration, one for each network."""
    return {
        role: PackedOptimizer(run.train.optimizer, network.trainable_variables) for role, network in networks.items()
    }


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


class MicroBatch:
    """Showers of a replica that go through the networks together: its whole batch, or a slice of it."""

    def __init__(self, batch: Batch, begin: int, end: int) -> None:
        self.batch = {name: value[begin:end] for name, value in batch.items()}
        """The columns of the table of primaries, measured_angle_rad and ecal_sum (B,)."""
        self.begin, self.size = begin, end - begin
        self.cells = self.batch["cells"][..., None]
        """Real showers (B, X, Y, Z, 1) in network units."""


LossOf = Callable[[int, MicroBatch, EventDraws], tuple[tf.Tensor, Mapping[str, tf.Tensor]]]
"""From number, showers and random numbers of a micro-batch to the loss of each shower (B,), which is minimised, and its
terms (B,) by name. Called within a gradient tape."""


class Step:
    """One step of a replica.

    batch: as `training.input.TrainingShowers.batches` gives it.
    """

    def __init__(
        self,
        family: Family,
        run: Run,
        networks: Networks,
        optimizers: Optimizers,
        batch: Batch,
        context: StepContext,
        schedule: Schedule,
    ) -> None:
        self.family, self.run, self.networks, self.optimizers = family, run, networks, optimizers
        self.context, self.schedule = context, schedule
        size = batch["cells"].shape[0]
        length = size // run.train.micro_batches(size)
        self.micro_batches = [MicroBatch(batch, begin, begin + length) for begin in range(0, size, length)]
        self._progress: tf.Tensor | None = None
        self._before: list[tf.Tensor] = []

    def draws(self, section: int, micro: MicroBatch) -> EventDraws:
        """Random numbers of a section of the step (0 to 254) for the showers of a micro-batch, whatever the number of
        replicas and micro-batches."""
        return EventDraws(self.run.train.seed, self.context.step, section, self.context.first + micro.begin, micro.size)

    def latent(self, micro: MicroBatch, random: EventDraws, **primaries: tf.Tensor) -> tf.Tensor:
        """Input of the generator from fresh noise for the primaries of a micro-batch, or for others (B,)."""
        model, data = self.run.model, self.run.data
        noise = random.normal((self.family.noise_size(model, data),))
        return self.family.latent(noise, {**micro.batch, **primaries}, model, data)

    def update(
        self,
        role: str,
        section: int,
        loss_of: LossOf,
        *,
        rate: float | None = None,
        number: int | tf.Tensor | None = None,
        further: Callable[[Losses], list[tf.Tensor]] = lambda _: [],
    ) -> tuple[Losses, list[tf.Tensor]]:
        """One update of a network by the gradient of the mean loss. Returned are the losses of this replica (`loss` and
        the terms, parts of the mean over the global batch) and the sums of `further` over the replicas.

        section: of the random numbers, another one for each update of a step. rate: learning rate before schedule and
        scaling; absent: train.learningRate. number: of this update of the network in the whole training, from 1;
        absent: there is one a step. further: from the losses to values that are summed in the same all-reduce.
        """
        variables = [unwrap(variable) for variable in self.networks[role].trainable_variables]  # Keras' have no zeros

        def one(index: int) -> tuple[tf.Tensor, Losses]:
            micro = self.micro_batches[index]
            random = self.draws(section, micro)
            with tf.GradientTape() as tape, drawing_from(random):
                per_shower, terms = loss_of(index, micro, random)
                loss = tf.reduce_sum(per_shower) / self.context.global_batch
            means = {name: tf.reduce_sum(term) / self.context.global_batch for name, term in terms.items()}
            with part_scope("back_propagation"):
                gradient = tape.gradient(loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO)
                return pack(gradient), {"loss": loss, **means}

        gradient, losses = self._accumulated(one)
        values = further(losses)
        measured = [self.context.progress] if self._progress is None else []
        reduced, summed = self._all_reduced(gradient, [*measured, *values])
        if self._progress is None:
            # A training ends at exactly 1. Shares of 1/n, or a division that a compiler makes a multiplication by 1/n,
            # round to less for many n.
            total, replicas = summed.pop(0), self.context.replicas
            self._progress = tf.where(total >= replicas, 1.0, total / replicas)
        with part_scope("optimizer"):
            rate = self.run.train.learning_rate if rate is None else rate
            scaled = rate * self.run.train.rate_factor(self.context.global_batch)
            scheduled = scaled * self.schedule.factor(self.context.step, self._progress)
            self.optimizers[role].apply(reduced, scheduled, self.context.step + 1 if number is None else number)
        return losses, summed

    def finish(
        self,
        role: str,
        section: int,
        loss_of: LossOf,
        *,
        named: Callable[[Losses], Losses],
        rate: float | None = None,
        number: int | tf.Tensor | None = None,
    ) -> Losses:
        """The last update of a step, as `update`. Its all-reduce also carries the losses and the running statistics.

        named: from the losses of this update to all losses of the step by the names that are recorded. Returned are
        their means over the global batch, and ``progress``, on which all replicas agree.
        """
        running: list[tf.Variable] = []
        if self.context.replicas > 1:
            running = [weight for network in self.networks.values() for weight in running_statistics(network)]
        names: list[str] = []

        def further(of_update: Losses) -> list[tf.Tensor]:
            losses = named(of_update)
            names.extend(losses)
            return [*losses.values(), *(unwrap(variable) / self.context.replicas for variable in running)]

        _, summed = self.update(role, section, loss_of, rate=rate, number=number, further=further)
        for variable, value in zip(running, summed[len(names) :]):
            unwrap(variable).assign(value)
        return {**dict(zip(names, summed)), "progress": self._progress}

    def _accumulated(self, one: Callable[[int], tuple[tf.Tensor, Losses]]) -> tuple[tf.Tensor, Losses]:
        """Sum of gradients and losses over the micro-batches, one after the other and after the update before.

        Without the dependencies what does not need the result of another would be computed at once with it, and the
        memory of both would be needed (`Family.updates_overlap`).
        """
        with tf.control_dependencies(self._before):
            gradient, losses = one(0)
        for index in range(1, len(self.micro_batches)):
            with tf.control_dependencies([gradient]):
                further, terms = one(index)
            gradient = gradient + further
            losses = {name: value + terms[name] for name, value in losses.items()}
        self._before = [] if self.family.updates_overlap else [gradient]
        return gradient, losses

    def _all_reduced(self, gradient: tf.Tensor, further: Sequence[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Sums over all replicas of a packed gradient and of further values, by one all-reduce."""
        if self.context.replicas == 1:
            return gradient, list(further)
        values = [gradient, *further]
        with part_scope("all_reduce"):
            packed = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, pack(values))
            summed, *rest = unpack(packed, values)
        return summed, rest
