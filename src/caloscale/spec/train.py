"""How a run trains, saves and selects."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from caloscale.spec.block import Block


class LossWeights(Block):
    """Weights of the terms of the loss (published: 3, 0.1, 25, 0.1, 0.1)."""

    real_fake: float = Field(3.0, ge=0)
    """Binary cross-entropy of real against generated."""
    energy: float = Field(0.1, ge=0)
    """Mean absolute percentage error of the primary energy."""
    angle: float = Field(25.0, ge=0)
    """Mean absolute error of the angle measured from the shower, rad."""
    ecal_sum: float = Field(0.1, ge=0)
    """Mean absolute percentage error of the sum of the cells."""
    bins: float = Field(0.1, ge=0)
    """Mean absolute percentage error of the cell counts per range; counts only with model.binCounts."""
    layers: float = Field(0.0, ge=0)
    """Distance of the energies per layer, percent of the shower's energy (root of the sum of squares).
    This and the next four: of the outputs that only the compact network has, see docs/training.md."""
    transverse: float = Field(0.0, ge=0)
    """Distance of the profiles along x and y, percent of the shower's energy."""
    depth: float = Field(0.0, ge=0)
    """Distance of the cumulative longitudinal profiles, percentage points."""
    counts: float = Field(0.0, ge=0)
    """Mean distance of the numbers of cells above thresholds, percent."""
    hits: float = Field(0.0, ge=0)
    """Mean distance of the square roots of the numbers of hit cells per layer."""


class Train(Block):
    """The training itself."""

    epochs: int = Field(60, ge=1)
    """Passes over the training showers (published: 60 or 120)."""
    max_minutes: float | None = Field(None, gt=0)
    """Stop after this many minutes of training even when epochs are left, and say so; absent: no limit."""
    batch_per_replica: int = Field(64, ge=1)
    """Showers in a batch of one replica (published: 64; 96 on a V100, 128 on a TPU core)."""
    global_batch_size: int | None = Field(None, ge=1)
    """Showers in a batch of all replicas together, instead of batchPerReplica; must be a multiple of the replicas."""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """rmsprop (rho 0.9, published) or adam (beta 0.5, 0.99)."""
    learning_rate: float = Field(0.001, gt=0)
    """Learning rate of the generator (published: 0.001 for both networks)."""
    discriminator_learning_rate: float | None = Field(None, gt=0)
    """Learning rate of the discriminator; absent: as the generator."""
    warmup_epochs: float = Field(0, ge=0)
    """The learning rate grows linearly from zero over this many epochs."""
    decay: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up: constant (published) or falling as a cosine to a hundredth."""
    generator_updates: int = Field(2, ge=1, le=10)
    """Updates of the generator per step (published: 2)."""
    label_flip: float = Field(0.05, ge=0, lt=0.5)
    """Share of the discriminator's labels that are flipped, drawn anew each step (published: 0.05)."""
    average_decay: float = Field(0.0, ge=0, lt=1)
    """Decay of the exponential average of the generator's weights that is released as the model;
    0: the last weights themselves."""
    loss_weights: LossWeights = LossWeights()
    """Weights of the terms of the loss."""
    spread: float = Field(0.0, ge=0, le=1)
    """0: the physics terms of the generator are distances to a real shower of the same energy and angle
    (published), which are least when all showers of a kind are alike. 1: the distance to another generated
    shower of that kind is subtracted, which makes them proper scores (CRPS, energy score): they are least
    when the generated fluctuations are the real ones."""
    seed: int = Field(1, ge=0)
    """Seed of weights, noise, label flips and order of the showers."""
    deterministic: bool = False
    """Bit-for-bit repeatable, slower."""

    def replica_batch(self, replicas: int) -> int:
        """Showers in a batch of one of ``replicas``; raises ValueError when globalBatchSize is no multiple of them."""
        if self.global_batch_size is None:
            return self.batch_per_replica
        if self.global_batch_size % replicas:
            raise ValueError(f"globalBatchSize {self.global_batch_size} is not a multiple of {replicas} replicas")
        return self.global_batch_size // replicas


class Checkpoint(Block):
    """What is saved during training, for resuming."""

    every_seconds: float = Field(60.0, gt=0)
    """Seconds between two checkpoints; the end of the training is saved always."""
    keep: int = Field(3, ge=1)
    """Newest checkpoints that are kept, beside the best."""
