"""How a run trains, saves and selects."""

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from caloscale.errors import InvalidValueError
from caloscale.spec.block import Block
from caloscale.spec.values import Place, Seed32

Precision = Literal["float32", "bfloat16"]
TrainingPrecision = Literal["float32", "bfloat16", "auto"]
_LARGEST_BATCH = 10**9


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
    """Distance of the energies per layer: Euclidean, of the roots of their shares of the shower's energy, percent.
    This and the next four: of the outputs that only the compact network has, see docs/compact.md."""
    transverse: float = Field(0.0, ge=0)
    """The same of the profiles along x and y."""
    depth: float = Field(0.0, ge=0)
    """Distance of the cumulative longitudinal profiles, percentage points."""
    counts: float = Field(0.0, ge=0)
    """Mean distance of the numbers of cells above thresholds, percent."""
    hits: float = Field(0.0, ge=0)
    """Mean distance of the square roots of the numbers of hit cells per layer."""


class Threads(Block):
    """Threads of TensorFlow in a worker."""

    inter: int | None = Field(None, ge=1, le=1024)
    """Operations that are computed at the same time; absent: as many as cores."""
    intra: int | None = Field(None, ge=1, le=1024)
    """Threads of one operation; absent: as many as cores, but one on two cores for the families compact and flow."""


class Train(Block):
    """The training itself."""

    epochs: int = Field(60, ge=1)
    """Passes over the training showers (published: 60 or 120)."""
    max_minutes: float | None = Field(None, gt=0)
    """Stop after this many minutes of training even before the last epoch, and report it; absent: no limit."""
    strategy: Literal["auto", "one-device", "mirrored", "multi-worker", "tpu"] = "auto"
    """How the devices train together. auto: by TF_CONFIG (several workers), a TPU, the GPUs that are visible."""
    loop: Literal["custom", "builtin"] = "custom"
    """custom: our own loop over compiled steps. builtin: the same step within Keras' compile and fit."""
    batch_per_replica: int = Field(64, ge=1, le=_LARGEST_BATCH)
    """Showers in a batch of one replica (published: 64; 96 on a V100, 128 on a TPU core)."""
    global_batch_size: int | None = Field(None, ge=1, le=_LARGEST_BATCH)
    """Showers in a batch of all replicas together, instead of batchPerReplica; must be a multiple of the replicas."""
    accumulate: int = Field(1, ge=1)
    """Micro-batches of a replica's batch whose gradients are added up before an update: less memory, same update (but
    for batch normalisation, which sees a micro-batch). Must divide the replica's batch."""
    max_batch_per_replica: int | None = Field(None, ge=1)
    """Most showers that go through the networks of a replica at once, as its memory allows; larger shares of
    globalBatchSize are trained in micro-batches. Absent: no limit."""
    precision: TrainingPrecision = "float32"
    """Arithmetic of the layers. bfloat16: weights, sums over cells, losses and updates stay in float32. auto: bfloat16
    where a measured matrix product is at least 1.5 times faster in it; float32 with hardware, with several workers and
    where the training is deterministic. Processors without AVX512-BF16 or AMX compute wrongly in bfloat16, by several
    per cent: there auto is float32, and bfloat16 is refused."""
    synchronized_batch_norm: bool | None = None
    """Batch normalisation with the statistics of all replicas' showers; absent: where there are several replicas.
    Costs an all-reduce for each use; without it the running statistics are averaged once a step."""
    optimizer: Literal["rmsprop", "adam"] = "rmsprop"
    """rmsprop (rho 0.9, published) or adam (beta 0.5, 0.99)."""
    learning_rate: float = Field(0.001, gt=0)
    """Learning rate of the generator (published: 0.001 for both networks)."""
    discriminator_learning_rate: float | None = Field(None, gt=0)
    """Learning rate of the discriminator; absent: as the generator."""
    learning_rate_scaling: Literal["none", "linear"] = "none"
    """linear: both learning rates are multiplied by the global batch over learningRateBatch (Goyal et al. 2017,
    arXiv:1706.02677), to be used with warmupEpochs: at 128 replicas the published rate lost quality."""
    learning_rate_batch: int = Field(64, ge=1)
    """Global batch that the learning rates are meant for (published: 64)."""
    warmup_epochs: float = Field(0, ge=0)
    """The learning rate grows linearly from zero over this many epochs."""
    decay: Literal["constant", "cosine"] = "constant"
    """Learning rate after the warm-up: constant (published) or falling as a cosine to a hundredth."""
    generator_updates: int = Field(2, ge=1, le=10)
    """Updates of the generator per step (published: 2)."""
    primaries: Literal["batch", "uniform"] = "batch"
    """Primaries of the generated showers of a step. batch: those of its real showers (variable angle, published).
    uniform: energies drawn from data.energyGev for each pass of the generator (fixed angle, published); the angle
    stays that of the real shower. It needs ecalSumFit, and energyScoreWeight 0: there is no real shower to compare
    with."""
    ecal_sum_fit: tuple[float, ...] | None = Field(None, min_length=1)
    """Coefficients, highest power first, of a polynomial in e = E / energyScaleGev. The polynomial times e is the
    target for the sum of the cells, GeV, of a shower with a drawn energy (fixed angle, published). Absent: the
    target is the sum of the real shower."""
    label_flip: float = Field(0.05, ge=0, lt=0.5)
    """Share of the discriminator's labels that are flipped, drawn in each step (published: 0.05)."""
    average_decay: float = Field(0.0, ge=0, lt=1)
    """Decay of the exponential average of the generator's weights that is released as the model;
    0: the last weights themselves."""
    loss_weights: LossWeights = LossWeights()
    """Weights of the terms of the loss."""
    energy_score_weight: float = Field(0.0, ge=0, le=1)
    """Weight of the second term of the energy score (CRPS for a number) in the physics terms of the generator.
    0: the terms are distances to one real shower of the same energy and angle (published), which favour showers without
    fluctuations. 1: the distance to another generated shower of the same energy and angle is subtracted, which makes
    the terms proper scores."""
    start_from: Place | None = None
    """Folder of a trained model of the same preset, here or gs://bucket/prefix: weights of the same shape begin with
    its values, all others with random ones. Its detector, energies and preprocessing may differ. Absent: all random."""
    seed: Seed32 = 1
    """Seed of weights, noise, label flips and order of the showers."""
    threads: Threads = Threads()
    """Threads of a worker on processors."""
    workers_per_node: int = Field(1, ge=1, le=64)
    """Processes that train together on this machine, each with a separate batch, by MultiWorkerMirroredStrategy
    (published for processors: 4 on a node of 48 cores). Not with hardware, where a worker is a node."""
    gpus: int | None = Field(None, ge=1, le=16)
    """GPUs that a training on this machine needs: without them it ends with exit code 140. As a step of Kubeflow
    Pipelines its pod asks for them. Absent: those that are there. Not with hardware, which names its accelerators."""
    pin: bool = False
    """Whether each of several processes of this machine has an equal share of its cores for itself, within a NUMA node
    where that is possible."""
    one_dnn: bool | None = None
    """Whether TensorFlow uses oneDNN's operations on processors; absent: as TensorFlow chooses (where they are faster).
    """
    convolutions: Literal["auto", "keras"] = "auto"
    """How 3D convolutions and the batch normalisation of their volumes are computed, with equal results but for
    rounding. auto: in the form that was measured as fastest on processors like this one, convolutions on NVIDIA GPUs
    since Ampere in the form that JAX was fastest with on an H100 (docs/computing-training.md), elsewhere by Keras' own
    layers; keras: by Keras' own layers."""
    deterministic: bool = False
    """Bit-for-bit repeatable, slower. With maxMinutes the time steers a learning rate that falls as a cosine, from the
    first step on, and may end the training: the same numbers need maxMinutes null."""

    @model_validator(mode="after")
    def _drawn_energies_have_a_target(self) -> Self:
        drawn = self.primaries == "uniform"
        if drawn != (self.ecal_sum_fit is not None):
            remedy = "give the coefficients of the sum's fit in train.ecalSumFit, or set train.primaries to batch"
            raise InvalidValueError("train.primaries uniform and train.ecalSumFit belong together", remedy=remedy)
        if drawn and self.energy_score_weight:
            problem = "train.energyScoreWeight compares with real showers of the same energy, which train.primaries "
            problem += "uniform does not have"
            remedy = "set train.energyScoreWeight to 0, or train.primaries to batch"
            raise InvalidValueError(problem, remedy=remedy)
        return self

    def replica_batch(self, replicas: int) -> int:
        """Showers in a batch of one of ``replicas``; raises ValueError when globalBatchSize is no multiple of them."""
        if self.global_batch_size is None:
            return self.batch_per_replica
        if self.global_batch_size % replicas:
            problem = f"globalBatchSize {self.global_batch_size} is not a multiple of {replicas} replicas"
            remedy = f"train with {_listed(divisors(self.global_batch_size))} replicas, or change globalBatchSize"
            raise InvalidValueError(problem, remedy=remedy)
        return self.global_batch_size // replicas

    def micro_batches(self, share: int) -> int:
        """Number of micro-batches of a replica's ``share`` of the global batch; ValueError when that is impossible."""
        if share % self.accumulate:
            problem = f"accumulate {self.accumulate} does not divide the {share} showers of a replica"
            raise InvalidValueError(problem, remedy=f"use one of {_listed(divisors(share))}")
        most = self.max_batch_per_replica or share
        return next(n for n in divisors(share) if (n % self.accumulate == 0 and share // n <= most) or n == share)

    def rate_factor(self, global_batch: int) -> float:
        """What the learning rates are multiplied by at a global batch."""
        return global_batch / self.learning_rate_batch if self.learning_rate_scaling == "linear" else 1.0

    def synchronizes(self, replicas: int) -> bool:
        """Whether batch normalisation uses the showers of all of ``replicas``."""
        return replicas > 1 if self.synchronized_batch_norm is None else self.synchronized_batch_norm


def divisors(number: int) -> list[int]:
    """All divisors, the smallest first."""
    small = [n for n in range(1, math.isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:-1])) + (" or " if len(numbers) > 1 else "") + str(numbers[-1])
