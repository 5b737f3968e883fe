"""One network of dense layers on several workers: its images shared among them, or its layers.

Data-parallel: each worker has all weights and a share of the images; the gradients are averaged. Model-parallel: each
worker has a share of the outputs of every layer and all images; outputs are gathered, and the gradients with respect
to a layer's inputs are summed. The network is the dense part of AlexNet (58.6 of its 61 million parameters), for which
Krizhevsky proposed model parallelism (arXiv:1404.5997).
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from caloscale.errors import InvalidValueError
from caloscale.spec.block import Block
from caloscale.studies.points import validated
from caloscale.studies.ranks import run_ranks, slowest_step

Array = NDArray[np.float32]
RATE = 0.01
"""Learning rate."""


class ParallelismInputs(Block):
    """Training steps of dense layers on several workers."""

    method: Literal["data", "model"] = "data"
    """What is divided among the workers."""
    workers: int = Field(1, ge=1, le=64)
    threads: int = Field(1, ge=1)
    """Of a worker."""
    batch: int = Field(32, ge=1)
    """Images of a step of all workers."""
    widths: tuple[int, ...] = Field((9216, 4096, 4096, 1000), min_length=2)
    """Inputs of the first layer, and outputs of each."""
    steps: int = Field(3, ge=1)
    """Steps that are timed, after one that is not."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        field, numbers = ("batch", (self.batch,)) if self.method == "data" else ("widths", self.widths[1:])
        if any(number % self.workers for number in numbers):
            problem = f"{field}: {numbers} cannot be divided by {self.workers} workers"
            raise InvalidValueError(problem, remedy="use multiples")
        return self


def time_parallelism(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Steps of stochastic gradient descent on synthetic images.

    Result: `slowest_step`; ``exchangedMib``, what a worker gives into exchanges in a step; ``imagesPerSecond``;
    ``loss`` of the last step, the same for both methods and any number of workers but for rounding.
    Raises ConfigurationError, TrainingError.
    """
    asked = validated(ParallelismInputs, inputs)
    found = run_ranks("parallelism", asked.workers, asked.as_values(), asked.threads)
    return {**found, "imagesPerSecond": asked.batch / found["stepSeconds"]}


class Exchange:
    """Collective operations, with their time and volume."""

    def __init__(self) -> None:
        from mpi4py import MPI  # it joins the job, which only the processes of mpiexec may

        self.world, self.in_place = MPI.COMM_WORLD, MPI.IN_PLACE
        self.seconds, self.bytes = 0.0, 0

    @contextmanager
    def _counted(self, given: Array) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds += time.perf_counter() - start
        self.bytes += given.nbytes

    def add(self, mine: Array) -> Array:
        """The sum over all workers."""
        with self._counted(mine):
            self.world.Allreduce(self.in_place, mine)
        return mine

    def gather(self, mine: Array) -> Array:
        """The columns of all workers, (B, n) -> (B, n x workers)."""
        with self._counted(mine):
            every = np.empty((self.world.size, *mine.shape), np.float32)
            self.world.Allgather(np.ascontiguousarray(mine), every)
            return np.concatenate(list(every), axis=1)


def train_step(
    weights: list[Array], images: Array, labels: NDArray[np.int64], asked: ParallelismInputs, exchange: Exchange
) -> float:
    """One step in place; returns the sum of the cross-entropies of these images before it.

    weights: (inputs, outputs) of each layer or, model-parallel, the columns of this worker. images: (B, inputs).
    """
    splits_layers = asked.method == "model"
    inputs, active = [images], []
    for number, weight in enumerate(weights):
        outputs = inputs[-1] @ weight
        outputs = exchange.gather(outputs) if splits_layers else outputs
        if number < len(weights) - 1:
            active.append(outputs > 0)
            inputs.append(outputs * active[-1])
    exponentials = np.exp(outputs - outputs.max(1, keepdims=True))
    probabilities = exponentials / exponentials.sum(1, keepdims=True)
    images_and_labels = np.arange(len(labels)), labels
    loss = float(-np.log(probabilities[images_and_labels]).sum())
    probabilities[images_and_labels] -= 1
    above = probabilities / np.float32(asked.batch)  # the gradient with respect to a layer's outputs
    gradients: list[Array] = []
    for number in reversed(range(len(weights))):
        columns = weights[number].shape[1]
        mine = above[:, exchange.world.rank * columns :][:, :columns] if splits_layers else above
        gradients.append(inputs[number].T @ mine)
        if number:
            below = mine @ weights[number].T
            above = (exchange.add(below) if splits_layers else below) * active[number - 1]
    for weight, gradient in zip(reversed(weights), gradients):
        weight -= RATE * (gradient if splits_layers else exchange.add(gradient))
    return loss


def work(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """Time the steps of a worker; rank 0 has the result but the rate."""
    asked = validated(ParallelismInputs, settings)
    exchange = Exchange()
    rank, workers = exchange.world.rank, exchange.world.size
    rng = np.random.default_rng(1)
    images = rng.standard_normal((asked.batch, asked.widths[0]), np.float32)
    labels = rng.integers(0, asked.widths[-1], asked.batch)
    weights = []
    for inputs, outputs in zip(asked.widths, asked.widths[1:]):
        whole = rng.standard_normal((inputs, outputs), np.float32) * np.float32(np.sqrt(2 / inputs))
        share = outputs // workers
        weights.append(whole[:, rank * share : (rank + 1) * share].copy() if asked.method == "model" else whole)
    if asked.method == "data":
        share = asked.batch // workers
        images, labels = images[rank * share : (rank + 1) * share], labels[rank * share : (rank + 1) * share]
    losses: list[float] = []

    def step() -> float:
        exchange.seconds, exchange.bytes = 0.0, 0
        losses.append(train_step(weights, images, labels, asked, exchange))
        return exchange.seconds

    times = slowest_step(exchange.world, asked.steps, step)
    every = exchange.world.gather(losses[-1])
    if every is None:
        return None
    loss = sum(every) if asked.method == "data" else every[0]
    return {**times, "exchangedMib": exchange.bytes / 2**20, "loss": loss / asked.batch}
