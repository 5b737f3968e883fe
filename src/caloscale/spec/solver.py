"""The inverse-problem workload: which problem is solved, by which optimiser, on how many ranks."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from caloscale.errors import InvalidValueError
from caloscale.spec.block import Block
from caloscale.spec.budget import Budget
from caloscale.spec.cluster import Cluster, Recovery
from caloscale.spec.hardware import Hardware
from caloscale.spec.train import Precision
from caloscale.spec.values import Seed

SolverPreset = Literal["proxy", "proxy-paper"]
Exchange = Literal[
    "none", "all-reduce", "ring", "grouped-ring", "grouped-rma", "central", "chunked-ring", "hierarchical"
]
GROUPED: frozenset[Exchange] = frozenset({"grouped-ring", "grouped-rma", "hierarchical"})
"""Exchanges that use groups of ranks."""
SYNCHRONOUS: frozenset[Exchange] = frozenset({"all-reduce", "central", "chunked-ring", "hierarchical"})
"""Exchanges that average all gradients in every epoch: the generators of all ranks are the same."""
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def _class_or(*known: str) -> AfterValidator:
    """Takes a name from ``known`` or an importable class, such as ``mypackage.detector.Smeared``."""

    def check(name: str) -> str:
        if name not in known and not _CLASS.fullmatch(name):
            builtin = f"one of {', '.join(known)}, or " if known else ""
            remedy = f"write {builtin}a class with its module: package.module.Class"
            raise InvalidValueError("is not the name of an importable class", remedy=remedy)
        return name

    return AfterValidator(check)


class DataSet(Block):
    """Measured events of one experiment, and the pipeline that imitates it. All data sets share the parameters."""

    name: str = Field("proxy", pattern=r"^[A-Za-z0-9_-]{1,40}$")
    """Name in figures and files."""
    environment: Annotated[str, _class_or()] = "caloscale.sagips.proxy.Proxy"
    """Importable class of the pipeline that makes events from parameters: an `Environment` of
    `caloscale.sagips.environment`."""
    options: dict[str, Any] = {}
    """Arguments of the class."""
    source: str = "truth"
    """The measured events. truth: events that the pipeline makes from its true parameters. Otherwise the path of an
    HDF5 file."""
    dataset: str = "events"
    """Name of the array in the HDF5 file: (events, observables)."""
    events: int | None = Field(None, gt=0, le=10**9)
    """Measured events. source truth: so many are made (absent: 1,000,000); a file: at most so many are used,
    drawn from all of it."""


class GeneratorNetwork(Block):
    """The network that proposes parameters: noise in, normalised parameters out."""

    noise: int = Field(6, ge=1, le=4096)
    """Size of the noise vector (published: 6)."""
    width: int = Field(128, ge=1, le=65_536)
    """Nodes of a hidden layer (published: 128)."""
    layers: int = Field(4, ge=1, le=64)
    """Hidden layers (published: 4)."""
    learning_rate: float = Field(1e-5, gt=0)
    """Learning rate of Adam (published: 1e-5)."""


class DiscriminatorNetwork(Block):
    """The network that separates measured from generated events."""

    width: int = Field(128, ge=1, le=65_536)
    """Nodes of a hidden layer (published: 128)."""
    layers: int = Field(4, ge=1, le=64)
    """Hidden layers (published: 4)."""
    learning_rate: float = Field(1e-4, gt=0)
    """Learning rate of Adam (published: 1e-4)."""
    chunk: int = Field(512, ge=1)
    """Events that go through the discriminator at once; larger batches are computed in so many parts, as activations of
    this size stay in the cache. The sums are the same."""


class Solver(Block):
    """How parameters are found whose events look like the measured ones."""

    preset: SolverPreset = "proxy"
    """proxy: the one-dimensional proxy application in minutes on two cores. proxy-paper: at the
    size of the paper, for a cluster; what the paper does not give is chosen (dataFraction, normTerms, outerEvery)."""
    data_sets: tuple[DataSet, ...] = Field((DataSet(),), min_length=1)
    """Measured events and their pipelines; the objectives of all are added."""
    objective: Annotated[str, _class_or("discriminator", "likelihood", "energy-distance")] = "discriminator"
    """How generated events are compared with measured ones: discriminator (a network, trained with the generator),
    likelihood (binned, per observable), energy-distance, or an importable class
    (`caloscale.sagips.objectives.Objective`)."""
    optimizer: Annotated[str, _class_or("generator", "bayesian")] = "generator"
    """What proposes parameters. generator: a network, trained with gradients of the objective (with the discriminator a
    GAN). bayesian: a Gaussian process over the objective's values. Or an importable class
    (`caloscale.sagips.optimizers.Optimizer`)."""
    norm_terms: bool = True
    """Add the mean squared difference of the pipeline's norms to the generator's loss. They alone fix the common scale
    of p0 and p3 of the proxy application; the paper does not mention them, its public code has them."""
    norm_weight: float = Field(1.0, gt=0)
    """Weight of the norm terms (public code: 1)."""
    epochs: int = Field(100_000, ge=1)
    """Updates of the generator (published: 100,000)."""
    max_minutes: float | None = Field(None, gt=0)
    """Stop at the next save after this many minutes, even before the last epoch; absent: no limit."""
    parameter_samples: int = Field(1024, ge=1)
    """Parameter vectors that a rank proposes in an epoch (published: 1024)."""
    events_per_sample: int = Field(100, ge=1)
    """Events made from each parameter vector (published: 100). Their product is the batch of a rank."""
    scale_samples: bool = False
    """Divide the parameter samples by the number of ranks (equation 10 of the paper): strong scaling. They must be a
    multiple of it, so that all ranks together have as many."""
    learning_rate_scaling: Literal["none", "linear"] = "none"
    """linear: the generator's learning rate is multiplied by the number of ranks, as the public code does with
    synchronous all-reduce."""
    learning_rate_decay: Literal["constant", "cosine"] = "constant"
    """Learning rates over the epochs: constant (published), or falling as a cosine to a hundredth."""
    generator: GeneratorNetwork = GeneratorNetwork()
    """The network that proposes parameters."""
    discriminator: DiscriminatorNetwork = DiscriminatorNetwork()
    """The network that compares events."""
    precision: Precision = "float32"
    """Arithmetic of the discriminator's layers; weights, sums and updates are float32."""
    ranks: int = Field(1, ge=1, le=100_000)
    """Processes that solve together, each with its own discriminator."""
    exchange: Exchange = "grouped-rma"
    """How ranks average the generator's gradients. none: not at all, an ensemble. all-reduce: synchronous, from the
    first epoch and with biases, so that all ranks have the same generator. ring: asynchronous over all ranks.
    grouped-ring: a ring in each group, and every outerEvery epochs one over the group leaders. grouped-rma: the same,
    with remote memory access within the groups. The others are synchronous, for comparison."""
    groups: int | None = Field(None, ge=1)
    """Groups of consecutive ranks, as equal as possible; absent: a group is the ranks of a node."""
    outer_every: int = Field(5, ge=1)
    """Epochs between two exchanges of the group leaders. The paper's value is not known; the authors' later code has
    5."""
    leader: Literal["first", "random"] = "first"
    """Which rank of a group takes part in the outer ring: the first, or another one each time."""
    delay: Literal[0, 1] = 0
    """1: the exchange overlaps with the next epoch, and gradients are applied an epoch late."""
    exchange_biases: bool = False
    """Average the gradients of the biases as well (published: of the weights only). Synchronous exchanges always do."""
    data: Literal["broadcast", "sharded"] = "broadcast"
    """broadcast: each rank has all measured events. sharded: each reads, or makes, its share alone."""
    data_fraction: float = Field(1.0, gt=0, le=1)
    """Fraction of its measured events that a rank draws once; each batch is a bootstrap sample of them. The paper's
    value is not known."""
    seed: Seed = 1
    """Seed of measured events, weights and batches."""
    checkpoints: int = Field(21, ge=2, le=10_000)
    """Copies of the generator, with time stamps, from the first epoch to the last (published: 21)."""
    save_every: int | None = Field(None, ge=1)
    """Epochs between two saves for resuming; absent: a hundredth of the epochs."""
    analysis_samples: int = Field(1024, ge=2)
    """Noise vectors over which residuals are averaged."""
    threads: int | None = Field(None, ge=1, le=1024)
    """Threads of a rank's computations; absent: the machine's cores divided by its ranks, at least one."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.groups is not None and self.groups > self.ranks:
            remedy = "a group needs a rank at least"
            raise InvalidValueError(f"groups {self.groups} is more than ranks {self.ranks}", remedy=remedy)
        if self.optimizer == "bayesian" and self.objective == "discriminator":
            problem = "optimizer bayesian compares values of the objective, and a discriminator changes while it is "
            problem += "trained"
            remedy = "write objective: energy-distance or objective: likelihood"
            raise InvalidValueError(problem, remedy=remedy)
        if self.optimizer == "bayesian" and self.ranks > 1 and self.exchange != "none":
            remedy = "write exchange: none, or ranks: 1"
            raise InvalidValueError("optimizer bayesian has no gradients to exchange", remedy=remedy)
        if self.learning_rate_scaling == "linear" and self.ranks > 1 and self.exchange == "none":
            problem = "learningRateScaling linear is for ranks that average their gradients; exchange none averages "
            problem += "nothing"
            remedy = "write learningRateScaling: none, or another exchange"
            raise InvalidValueError(problem, remedy=remedy)
        if self.scale_samples and self.parameter_samples % self.ranks:
            problem = (
                f"scaleSamples divides parameterSamples {self.parameter_samples} by ranks {self.ranks}, with a rest"
            )
            nearest = self.ranks * max(1, round(self.parameter_samples / self.ranks))
            raise InvalidValueError(problem, remedy=f"write parameterSamples: {nearest}, or other ranks")
        if self.objective == "energy-distance" and self.events_per_rank < 2:
            problem = "objective energy-distance compares the events of an epoch with each other, and there is one"
            raise InvalidValueError(problem, remedy="write more parameterSamples or eventsPerSample")
        names = [data.name for data in self.data_sets]
        if len(set(names)) < len(names):
            raise InvalidValueError("dataSets have the same name twice", remedy="give each data set a name of its own")
        return self

    @property
    def averages_biases(self) -> bool:
        """Whether the gradients of the biases are exchanged."""
        return self.exchange_biases or self.exchange in SYNCHRONOUS

    @property
    def generators(self) -> int:
        """Different generators of the ranks: one where every epoch averages all gradients."""
        return 1 if self.exchange in SYNCHRONOUS else self.ranks

    @property
    def samples_per_rank(self) -> int:
        """Parameter vectors that a rank proposes in an epoch."""
        return self.parameter_samples // self.ranks if self.scale_samples else self.parameter_samples

    @property
    def events_per_rank(self) -> int:
        """Batch of a rank and a data set: generated events of an epoch."""
        return self.samples_per_rank * self.events_per_sample

    @property
    def save_epochs(self) -> int:
        """Epochs between two saves."""
        return self.save_every or max(1, self.epochs // 100)

    @property
    def checkpoint_epochs(self) -> tuple[int, ...]:
        """Epochs, counted from 0, after which the generator is copied; fewer than `checkpoints` in a short run."""
        last = self.checkpoints - 1
        return tuple(dict.fromkeys(round(k * self.epochs / last) for k in range(self.checkpoints)))


class SolverRun(Block):
    """Everything that the solution of an inverse problem depends on."""

    solver: Solver = Solver()
    """The problem and the solver."""
    budget: Budget = Budget()
    """Money."""
    hardware: Hardware | None = None
    """The machines on a cluster: a rank for each accelerator of whole nodes, or count nodes without accelerators among
    which the ranks are divided; absent: this machine."""
    recovery: Recovery = Recovery()
    """What happens when machines are preempted or lost. The number of ranks stays, so elastic has no effect."""
    cluster: Cluster = Cluster()
    """The cluster."""

    @model_validator(mode="after")
    def _has_ranks_that_fit_its_nodes(self) -> Self:
        hardware, ranks = self.hardware or Hardware(), self.solver.ranks
        if hardware.topology is not None or hardware.placement == "Free":
            remedy = "leave out hardware.topology and hardware.placement"
            raise InvalidValueError("the ranks of a solver have whole nodes with GPUs or processors", remedy=remedy)
        if hardware.accelerator in (None, "cpu"):
            if hardware.count is not None and hardware.count > ranks:
                problem = f"hardware.count {hardware.count} is more nodes than solver.ranks {ranks}"
                raise InvalidValueError(problem, remedy=f"write hardware.count: {ranks} or fewer, or more ranks")
        elif hardware.count not in (None, ranks):
            problem = f"hardware.count {hardware.count} is not solver.ranks {ranks}: each accelerator has a rank"
            raise InvalidValueError(problem, remedy="leave hardware.count out")
        elif hardware.per_node is not None and ranks % hardware.per_node:
            problem = f"solver.ranks {ranks} is not a multiple of hardware.perNode {hardware.per_node}"
            raise InvalidValueError(problem, remedy="change one of the two")
        return self

    @model_validator(mode="after")
    def _is_an_mpi_job(self) -> Self:
        if self.cluster.backend not in ("auto", "MPIJob"):
            problem = f"cluster.backend {self.cluster.backend} cannot hold the ranks of a solver"
            raise InvalidValueError(problem, remedy="leave cluster.backend out")
        return self
