"""The same step within Keras' own loop: a model whose ``train_step`` it is, compiled and fitted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import tensorflow as tf

from caloscale.models.families.step import Batch, Losses
from caloscale.models.optimizers import Schedule
from caloscale.training.state import TrainingState, replica_step


def fit(
    state: TrainingState,
    schedule: Schedule,
    batches: Iterable[Batch],
    steps: int,
    *,
    before: Callable[[], float],
    after: Callable[[Losses], bool],
) -> None:
    """Make ``steps`` steps by Keras' fit, or fewer.

    batches: as `DistributionContext.distribute` gives them. before: called before each step, returns the progress of
    the training (0 to 1).
    after: called with the losses of each step; False ends the training.
    """
    if steps <= 0:
        return
    with state.distribution.strategy.scope():
        model = _Model(replica_step(state, schedule))
        model.compile(jit_compile=False)

    def end(_: int, losses: Mapping[str, tf.Tensor]) -> None:
        if not after(dict(losses)):
            model.stop_training = True

    hooks = tf.keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda *_: state.progress.assign(before()), on_train_batch_end=end
    )
    model.fit(batches, epochs=1, steps_per_epoch=steps, verbose=0, callbacks=[hooks])


class _Model(tf.keras.Model):  # type: ignore[misc]
    """Has no weights of its own; `train_step` updates the networks."""

    def __init__(self, step: Callable[[Batch], Losses]) -> None:
        super().__init__(name="step")
        self._step = step
        self.built = True
        # All replicas return the same losses.
        self.distribute_reduction_method = "first"

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return inputs  # Keras asks for it; not used

    def train_step(self, data: Batch) -> Losses:
        return self._step(data)
