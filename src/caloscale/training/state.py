"""Everything that a training changes, in one object that can be saved and restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from caloscale.models import Networks, build
from caloscale.spec import Run
from caloscale.training.custom_loop import Batch, Optimizers, build_optimizers, train_step
from caloscale.training.schedule import Schedule

NOWHERE = -1
"""Step of the first loss that is not finite, while there is none."""


class TrainingState:
    """Networks, optimisers, average, random generator and counters."""

    def __init__(self, run: Run) -> None:
        tf.keras.utils.set_random_seed(run.train.seed)
        self.run = run
        self.networks: Networks = build(run.model, run.data)
        self.average: Any = None
        if run.train.average_decay > 0:
            self.average = tf.keras.models.clone_model(self.networks.generator)
            self.average.set_weights(self.networks.generator.get_weights())
        self.optimizers: Optimizers = build_optimizers(run, self.networks)
        self.random = tf.random.Generator.from_seed(run.train.seed)
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False, name="step")
        self.first_bad_step = tf.Variable(NOWHERE, dtype=tf.int64, trainable=False, name="first_bad_step")

    @property
    def released(self) -> Any:
        """The generator that is given away: the average where there is one."""
        return self.networks.generator if self.average is None else self.average

    def trackable(self) -> tf.train.Checkpoint:
        """All of it, for saving and restoring."""
        parts = {
            "generator": self.networks.generator,
            "discriminator": self.networks.discriminator,
            "generator_optimizer": self.optimizers.generator,
            "discriminator_optimizer": self.optimizers.discriminator,
            "random": self.random,
            "step": self.step,
        }
        if self.average is not None:
            parts["average"] = self.average
        dropout = [variable for network in self.networks for variable in _random_states(network)]
        return tf.train.Checkpoint(**parts, dropout=dropout)


def _random_states(network: Any) -> list[Any]:
    """States of the random generators within a network (dropout), which Keras does not count as weights."""
    weights = {id(weight) for weight in network.weights}
    return [variable for variable in network.variables if id(variable) not in weights]


def compile_step(state: TrainingState, schedule: Schedule) -> Callable[[Batch, Any], dict[str, Any]]:
    """The step as one graph: learning rates, the four tapes, the average, the counters.

    The function takes a batch and the progress of the training (a float32 scalar tensor) and returns the
    losses as tensors, which need not be read.
    """
    run, optimizers = state.run, state.optimizers
    rates = (
        (optimizers.generator, run.train.learning_rate),
        (optimizers.discriminator, run.train.discriminator_learning_rate or run.train.learning_rate),
    )

    @tf.function(jit_compile=False, autograph=False)
    def step(batch: Batch, progress: Any) -> dict[str, Any]:
        factor = schedule.factor(state.step, progress)
        for optimizer, rate in rates:
            optimizer.learning_rate.assign(rate * factor)
        losses = train_step(run, state.networks, optimizers, batch, state.random)
        if state.average is not None:
            _follow(state, run.train.average_decay)
        state.step.assign_add(1)
        finite = tf.reduce_all(tf.math.is_finite(tf.stack(list(losses.values()))))
        first = tf.logical_and(tf.logical_not(finite), tf.equal(state.first_bad_step, NOWHERE))
        state.first_bad_step.assign(tf.where(first, state.step, state.first_bad_step))
        return losses

    return step


def _follow(state: TrainingState, decay: float) -> None:
    """Move the average towards the weights; in the first steps faster, so that it forgets the beginning."""
    step = tf.cast(state.step, tf.float32)
    keep = tf.minimum(decay, (1 + step) / (10 + step))
    trained = {id(variable) for variable in state.average.trainable_variables}
    for average, current in zip(state.average.variables, state.networks.generator.variables):
        if id(average) in trained:
            average.assign(keep * average + (1 - keep) * current)
        else:
            average.assign(current)
