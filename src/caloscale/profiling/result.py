"""The profile of a training step as frozen blocks. Without TensorFlow: reports read it."""

from typing import Literal

from caloscale.spec.block import Block

PROFILE_FILE = "profile.json"

Limit = Literal["compute", "memory", "input", "communication", "idle"]


class Share(Block):
    """A part of a phase of the step."""

    phase: str
    """A phase of the family, of a GAN fakes, discriminatorReal, discriminatorFake, generator; or rest: learning rates,
    averages, counters."""
    part: str
    """forward, backPropagation, allReduce, optimizer."""
    share: float
    """Part of the step's wall time, 0 to 1."""


class Profile(Block):
    """Where the time of a step goes. ``shares``, inputWait and idle add up to 1."""

    preset: str
    """The network."""
    precision: str
    """float32 or bfloat16."""
    batch: int
    """Showers of a step in this process."""
    steps: int
    """Profiled steps."""
    seconds_per_step: float
    """Wall time of a step while it was profiled, s."""
    input_wait: float
    """Share in which the loop waits for a batch and nothing is computed."""
    idle: float
    """Share in which nothing is computed although a batch is there: the loop itself, and starting operations."""
    peak_gflops: float
    """Measured with a large matrix product of the same precision, GFLOP/s."""
    device: str
    """What TensorFlow computed on: CPU, GPU, TPU."""
    shares: tuple[Share, ...]
    """What was computed."""
    matrix_share: float
    """Part of the computing time in convolutions and matrix products, 0 to 1."""
    gflop_per_step: float
    """Arithmetic of the convolutions and dense layers of a step in this process, as computed (folded), GFLOP."""
    gflops: float
    """Achieved: the arithmetic over the wall time, GFLOP/s."""
    matrix_gflops: float
    """Achieved while convolutions and matrix products run, GFLOP/s."""
    limit: Limit
    """What limits the step."""
    statement: str
    """The same in a sentence."""
