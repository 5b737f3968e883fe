"""What a bench leaves: JSON with the figures, how they scatter, and the machine that they belong to."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from caloscale.spec.block import Block


class Timing(Block):
    """A time that was measured in several rounds, s."""

    median: float
    """The median of the rounds."""
    low: float
    """Lower quartile."""
    high: float
    """Upper quartile."""
    rounds: int

    def scaled(self, factor: float) -> Timing:
        """The same in another unit."""
        return Timing(median=self.median * factor, low=self.low * factor, high=self.high * factor, rounds=self.rounds)


class BenchMachine(Block):
    """The machine, and how quiet it was."""

    processor: str
    """Model name of the processor."""
    instructions: tuple[str, ...]
    """Vector and matrix instructions that it has (AVX and AMX)."""
    cores: int
    """Logical cores that the bench may use."""
    memory_gib: float
    versions: dict[str, str]
    """Software."""
    date: str
    """Day of the measurement, UTC."""
    load_average: float
    """Processes that wanted a core in the minute before: 0 on a quiet machine."""


class StepReference(Block):
    """The published step, layer by layer in plain Keras."""

    seconds_per_event: float
    """Median time of a step over the showers of its batch, s."""
    spread: Timing
    """The same with quartiles."""
    gflops: float
    """Its arithmetic (published, not folded) over its time, GFLOP/s."""
    peak_memory_mib: float = Field(alias="peakMemoryMiB")
    """Largest resident memory of its process, MiB."""


class StepBench(Block):
    """A training step, ours and the reference in turn."""

    bench: Literal["step"] = "step"
    preset: str
    """The network."""
    precision: str
    """float32 or bfloat16; the reference computes in float32."""
    batch: int
    """Showers of a step."""
    seconds_per_event: float
    """Median time of a step over the showers of its batch, s."""
    spread: Timing
    """The same with quartiles."""
    reference: StepReference
    """The same work, plainly."""
    ratio: float
    """How many times faster than the reference: median over the rounds."""
    ratio_spread: tuple[float, float]
    """Its quartiles."""
    gflops: float
    """The arithmetic that is computed (folded) over its time, GFLOP/s."""
    peak_gflops: float
    """Measured with a large matrix product of the same precision, in the same rounds (the fastest), GFLOP/s."""
    peak_memory_mib: float = Field(alias="peakMemoryMiB")
    """Largest resident memory of its process, MiB."""
    machine: BenchMachine


class RuntimeTime(Block):
    """Generation in a runtime."""

    runtime: str
    """tensorflow, onnx, openvino; reference: plain Keras layers in a tf.function."""
    precision: str
    """float32 or bfloat16."""
    milliseconds_per_shower: float | None
    """Median; null when the runtime is not there."""
    spread: Timing | None
    """The same with quartiles, ms."""
    ratio: float | None
    """How many times faster than the reference: median over the rounds."""
    speedup_over_geant4: float | None
    """Time of a shower of the same energies by Geant4 on the same cores, over this; null without Geant4."""
    peak_memory_mib: float | None = Field(alias="peakMemoryMiB")
    """Largest resident memory of its process, MiB."""
    problem: str | None = None
    """Why it was not measured."""


class Geant4Time(Block):
    """What Geant4 takes on the same cores."""

    showers: int
    """Showers that were simulated."""
    seconds_per_shower: float
    """Wall time of one more shower with all cores at work, s: starting the processes is not in it."""
    energy_gev: tuple[float, float]
    """Energies, GeV."""


class GenerateBench(Block):
    """Generation in the runtimes, the reference and Geant4."""

    bench: Literal["generate"] = "generate"
    preset: str
    """The network, untrained: its weights do not change its speed."""
    batch: int
    """Showers that are generated at once."""
    streams: int
    """Batches that are computed at once."""
    threads: int | None = None
    """Threads of a runtime, all streams together, and of the reference; null: one for each core."""
    runtimes: tuple[RuntimeTime, ...]
    """Reference first."""
    geant4: Geant4Time | None
    """Null where Geant4 is not installed, and with a number of threads: Geant4 has all cores."""
    machine: BenchMachine


class InputBench(Block):
    """The input pipeline beside what the training takes from it."""

    bench: Literal["input"] = "input"
    preset: str
    """The network."""
    batch: int
    """Showers of a step."""
    showers: int
    """Showers in the shards that were read again and again."""
    source: str
    """What they are: parametrised, or the folder that was given."""
    showers_per_second: float
    """Median that the pipeline delivers when nothing else runs: shards, decompression, shuffling, mirroring."""
    spread: Timing
    """Seconds per shower, with quartiles."""
    first_epoch_showers_per_second: float
    """The same while the showers are read from the disk, before they may be cached in memory."""
    consumed_per_second: float
    """Showers per second that the training step takes (its median), with nothing to wait for."""
    ratio: float
    """Delivered over consumed: above 1 the step waits for nothing, as long as the pipeline has cores to run on."""
    machine: BenchMachine


class PassTimes(Block):
    """Milliseconds a shower of the passes of a convolution, in the fastest of the rounds."""

    forward: float
    """The convolution with bias and activation."""
    input_gradient: float
    """The gradient with respect to the input, of the convolution alone."""
    kernel_gradient: float
    """That with respect to the kernel."""

    @property
    def total(self) -> float:
        """All three."""
        return self.forward + self.input_gradient + self.kernel_gradient


class ConvolutionFigures(Block):
    """Convolutions beside the plain ones in the same precision."""

    flop: int
    """Operations of a pass of the plain convolution for one shower; a multiply-add counts 2."""
    reference: PassTimes
    """Upsampling, zeros, and TensorFlow's own operations."""
    ours: PassTimes
    """As the layers of a training compute them."""
    ratio: float
    """How many times faster than the reference, the three passes together."""
    reference_gflops: float
    """The operations of three passes over their time, GFLOP/s."""
    gflops: float
    """The same operations over our time: what a folded convolution or zeros change is not counted."""
    peak_share: float
    """gflops over the rate of a large matrix product; folded, it may be above 1."""


class ConvolutionTime(ConvolutionFigures):
    """A distinct 3D convolution of a network."""

    network: str
    """generator or discriminator."""
    layers: tuple[str, ...]
    """Layers that compute it."""
    kernel: tuple[int, int, int]
    """Its kernel along x, y and z."""
    channels: int
    """Of the input."""
    filters: int
    """Channels of the output."""
    upsampling: tuple[int, int, int]
    """How often a cell is repeated along each axis before it, folded in ours."""


class ConvolutionsBench(Block):
    """The 3D convolutions of both networks, ours and the plain ones, timed alternately in one process."""

    bench: Literal["convolutions"] = "convolutions"
    preset: str
    """The networks."""
    precision: str
    """float32 or bfloat16, of both."""
    batch: int
    """Showers of a call."""
    rounds: int
    """Calls of each pass, spread over the whole measurement."""
    peak_gflops: float
    """Measured with a large matrix product of the same precision, GFLOP/s."""
    layers: tuple[ConvolutionTime, ...]
    """Generator first."""
    total: ConvolutionFigures
    """Of all layers; a training step makes some passes several times and others not at all."""
    machine: BenchMachine
