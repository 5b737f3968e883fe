"""The state of a training: all variables that it changes."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext

import tensorflow as tf

from caloscale.errors import InputError
from caloscale.models import Family, Networks, build, family_of
from caloscale.models.families.family import GENERATOR
from caloscale.models.families.step import Batch, Losses, Optimizers, Step, StepContext, build_optimizers
from caloscale.models.layers.convolution import check_precision, computed_by_keras
from caloscale.models.layers.normalization import running_statistics
from caloscale.models.optimizers import Schedule, unwrap
from caloscale.profiling.peak import with_measured_precision
from caloscale.spec import Run
from caloscale.training.strategy import DistributionContext, one_replica

NOWHERE = -1
"""Step of the first loss that is not finite, while there is none."""


class TrainingState:
    """Networks, optimisers, average and counters, on the devices of a distribution context.

    build: makes the networks, as `models.build`. Raises InputError for bfloat16 where it is wrong, and as `_precision`.
    """

    def __init__(
        self, run: Run, distribution: DistributionContext | None = None, build: Callable[..., Networks] = build
    ) -> None:
        self.family = family_of(run.model)
        self.distribution = distribution or one_replica()
        placement = self.distribution.placement
        self.run = run = with_measured_precision(run, placement.workers)
        if placement.device == "CPU":
            check_precision(run.train.precision, "train.precision")
        tf.keras.utils.set_random_seed(run.train.seed)
        synchronized = run.train.synchronizes(placement.replicas)
        ways = computed_by_keras() if run.train.convolutions == "keras" else nullcontext()
        with self.distribution.strategy.scope(), _precision(run.train.precision), ways:
            self.networks: Networks = build(run.model, run.data, synchronized=synchronized)
            self.average: tf.keras.Model | None = None
            if run.train.average_decay > 0:
                self.average = build(run.model, run.data, synchronized=synchronized)[GENERATOR]
                self.average.set_weights(self.networks[GENERATOR].get_weights())
            self.optimizers: Optimizers = build_optimizers(run, self.networks)
            self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
            self.first_bad_step = tf.Variable(NOWHERE, dtype=tf.int64, trainable=False, name="first_bad_step")
            self.progress = tf.Variable(0.0, dtype=tf.float32, trainable=False, name="progress")

    @property
    def released(self) -> tf.keras.Model:
        """The generator that is published: the average where there is one."""
        return self.networks[GENERATOR] if self.average is None else self.average

    @property
    def steps_made(self) -> int:
        """Steps so far."""
        return int(self.step.numpy())

    def variables(self) -> dict[str, tf.Variable]:
        """The variables of a checkpoint, equal in all replicas at the end of a step.

        Names state the role of the network or optimiser and the index of the variable in it, whatever the strategy.
        """
        groups = {name: network_variables(network, self.family) for name, network in self.networks.items()}
        if self.average is not None:
            groups["average"] = network_variables(self.average, self.family)
        groups |= {f"{role}_optimizer": optimizer.slots() for role, optimizer in self.optimizers.items()}
        named = {f"{group}/{name}": variable for group, members in groups.items() for name, variable in members.items()}
        return {**named, "step": self.step}

    def adapted_variables(self) -> dict[str, tf.Variable]:
        """The variables that `Family.adapt` sets, without the average, by role and position."""
        return {
            f"{role}/{position}": unwrap(weight)
            for role, network in self.networks.items()
            for position, weight in enumerate(self.family.adapted_weights(network))
        }


def network_variables(network: tf.keras.Model, family: Family) -> dict[str, tf.Variable]:
    """Trained and adapted weights and running statistics of a network, by their index among all its weights. Constants
    are not part of it: a new network has the same.
    """
    kept = (*network.trainable_weights, *running_statistics(network), *family.adapted_weights(network))
    changing = {id(weight) for weight in kept}
    return {f"{index:03d}": unwrap(weight) for index, weight in enumerate(network.weights) if id(weight) in changing}


@contextmanager
def _precision(precision: str) -> Iterator[None]:
    """The policy of the layers that are built within: bfloat16 arithmetic with weights in float32.

    Raises InputError where the process has set another one than float32, which the released networks would have.
    """
    before = tf.keras.mixed_precision.global_policy()
    if before.name != "float32":
        problem = "is set for Keras in this process, and the released networks would compute in it"
        remedy = "call keras.config.set_dtype_policy('float32') before"
        raise InputError(problem, field="keras.config.dtype_policy", value=before.name, remedy=remedy)
    tf.keras.mixed_precision.set_global_policy("mixed_bfloat16" if precision == "bfloat16" else "float32")
    try:
        yield
    finally:
        tf.keras.mixed_precision.set_global_policy(before)


def replica_step(state: TrainingState, schedule: Schedule) -> Callable[[Batch], Losses]:
    """The step of one replica on its batch: the family's step, then average and counters. The same for both loops."""
    run, placement = state.run, state.distribution.placement

    def step(batch: Batch) -> Losses:
        size = batch["cells"].shape[0]
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        context = StepContext(
            step=tf.identity(state.step),
            progress=tf.identity(state.progress),
            first=tf.cast(replica, tf.int64) * size,
            global_batch=size * placement.replicas,
            replicas=placement.replicas,
        )
        family, networks, optimizers = state.family, state.networks, state.optimizers
        losses = family.train_step(Step(family, run, networks, optimizers, batch, context, schedule))
        count_step(state)
        finite = tf.reduce_all(tf.math.is_finite(tf.stack(list(losses.values()))))
        first = tf.logical_and(tf.logical_not(finite), tf.equal(state.first_bad_step, NOWHERE))
        state.first_bad_step.assign(tf.where(first, state.step, state.first_bad_step))
        return losses

    return step


def count_step(state: TrainingState) -> None:
    """What follows the last update of a step: the average moves towards the weights, in the first steps faster, so that
    the first weights have no influence; and the step counts."""
    if state.average is not None:
        average, generator, step = state.average, state.networks[GENERATOR], tf.cast(state.step, tf.float32)
        keep = tf.minimum(state.run.train.average_decay, (1 + step) / (10 + step))
        for mean, current in zip(average.trainable_weights, generator.trainable_weights):
            unwrap(mean).assign(keep * unwrap(mean) + (1 - keep) * unwrap(current))
        for copy, current in zip(running_statistics(average), running_statistics(generator)):
            unwrap(copy).assign(unwrap(current))
    state.step.assign_add(1)


def compile_step(state: TrainingState, schedule: Schedule) -> Callable[[Batch, float], Losses]:
    """The step of all replicas of this process as a function of a batch, as `DistributionContext.distribute` gives it,
    and the progress of the training (0 to 1). It returns the losses as tensors, which need not be read.
    """
    strategy, one = state.distribution.strategy, replica_step(state, schedule)

    @tf.function(jit_compile=False, autograph=False)
    def graph(batch: Batch) -> Losses:
        losses = strategy.run(one, args=(batch,))
        # All replicas return the same.
        return {name: strategy.experimental_local_results(value)[0] for name, value in losses.items()}

    def step(batch: Batch, progress: float) -> Losses:
        state.progress.assign(progress)
        return graph(batch)

    return step


def make_steps(
    state: TrainingState,
    schedule: Schedule,
    batches: Iterable[Batch],
    steps: int,
    *,
    before: Callable[[], float],
    after: Callable[[Losses], bool],
) -> None:
    """Make ``steps`` steps by our own loop, or fewer; arguments as for `loop.fit`."""
    step, iterator = compile_step(state, schedule), iter(batches)
    for _ in range(steps):
        # The progress is read last: waiting for showers counts too.
        batch = next(iterator)
        if not after(step(batch, before())):
            return
