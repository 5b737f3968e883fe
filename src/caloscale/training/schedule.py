"""What depends on how far a training is: what is done after which step, and its finished fraction."""

from dataclasses import dataclass

LOSSES_EVERY = 20
"""Steps between two points of the training curves; between them the losses stay on the device."""
VALIDATIONS = 25
"""Approximate number of comparisons with validation showers in a training."""


@dataclass(frozen=True)
class Calendar:
    """The steps of a training, numbered from 1, and what is done after each."""

    epochs: int
    steps_per_epoch: int

    @property
    def steps(self) -> int:
        """Steps of the whole training."""
        return self.epochs * self.steps_per_epoch

    def reads_losses(self, step: int) -> bool:
        """Whether the losses of this step are read and recorded."""
        return step % LOSSES_EVERY == 0 or step == self.steps

    def validates(self, step: int) -> bool:
        """Whether the generator after this step is compared with validation showers: at the end of some epochs."""
        return step % (self.steps_per_epoch * max(1, self.epochs // VALIDATIONS)) == 0

    def epochs_until(self, step: int) -> float:
        """Epochs that end with this step; a fraction of one counts, as train.maxMinutes may end a training in it."""
        whole, rest = divmod(step, self.steps_per_epoch)
        return step / self.steps_per_epoch if rest else whole

    def progress(self, step: int, seconds: float, max_minutes: float | None) -> float:
        """Finished fraction of the training, at most 1: of its steps, or of its minutes, whichever is further."""
        by_minutes = 0.0 if max_minutes is None else seconds / (60 * max_minutes)
        return min(1.0, max(step / self.steps, by_minutes))
