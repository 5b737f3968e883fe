"""A small classifier of real images for the studies of exchanges and learning rates: the digits of scikit-learn.

1,797 grey images of 8 x 8 pixels (Alpaydin and Kaynak, 1998), a network of one hidden layer, stochastic gradient
descent with momentum, all in NumPy: a step takes less than a millisecond, so that whole trainings compare
methods of exchange.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from threadpoolctl import threadpool_limits

from caloscale.errors import InvalidValueError, TrainingError
from caloscale.installation import install_command
from caloscale.spec.block import Block
from caloscale.studies.inputs import validated
from caloscale.studies.ranks import run_ranks

PIXELS, CLASSES = 64, 10
TEST_SHARE = 0.25
DIGITS_FILE, RESULT_FILE = "digits.npz", "result.json"
Floats = NDArray[np.float64]


class DigitsInputs(Block):
    """A training of the classifier of digits."""

    method: Literal["ring", "hierarchical", "synchronous", "asynchronous", "bounded", "lazy"] = "ring"
    """Exchange of gradients. ring; hierarchical: a sum in each group, a sum over groups; the others by a parameter
    server: synchronous, asynchronous, asynchronous with bounded staleness, or pushes every few steps."""
    workers: int = Field(1, ge=1, le=64)
    """Workers, each a process; the parameter server is a further one."""
    per_group: int = Field(2, ge=1)
    """Workers of a group of the hierarchical exchange."""
    bound: int = Field(2, ge=0)
    """Most steps that a worker may be ahead of the slowest (bounded)."""
    push_every: int = Field(4, ge=1)
    """Steps between two pushes of the summed gradients (lazy)."""
    slow_milliseconds: float = Field(0.0, ge=0)
    """Time that the last worker sleeps in each step, a slow machine."""
    slow_image_milliseconds: float = Field(0.0, ge=0)
    """Time that the last worker sleeps for each of its images, a machine that computes slowly."""
    rebalance_every: int = Field(0, ge=0)
    """Steps after which the images of a step are shared anew, in proportion to what each worker computed in a second;
    0: shares stay equal. The images of all workers together, and so the training, stay the same. ring, hierarchical."""
    hidden: int = Field(64, ge=1)
    """Units of the hidden layer."""
    epochs: int = Field(20, ge=1)
    """Passes over the training images."""
    batch: int = Field(16, ge=1)
    """Images of a step of each worker."""
    learning_rate: float = Field(0.1, gt=0)
    """Learning rate of the mean gradient of all workers."""
    scaling: Literal["none", "linear"] = "none"
    """linear: the rate is multiplied by the global batch over 16 (Goyal et al. 2017, arXiv:1706.02677)."""
    warmup_epochs: float = Field(0.0, ge=0)
    """The rate grows linearly over this many epochs, from its 1/steps."""
    momentum: float = Field(0.0, ge=0, lt=1)
    """Momentum of the updates."""
    seed: int = Field(1, ge=0)
    """Seed of weights and order; members have this and the following ones."""
    members: int = Field(1, ge=1, le=16)
    """Networks that are trained alike with different seeds; with one worker."""

    @model_validator(mode="after")
    def _fits(self) -> DigitsInputs:
        if self.members > 1 and self.workers > 1:
            raise InvalidValueError("members are trained with one worker", remedy="write workers: 1, or members: 1")
        if self.rebalance_every and self.method not in ("ring", "hierarchical"):
            raise InvalidValueError(
                f"rebalanceEvery: {self.rebalance_every} needs an exchange without a server",
                remedy="write method: ring or hierarchical, or rebalanceEvery: 0",
            )
        if self.workers * self.batch > self.train_images:
            raise InvalidValueError(
                f"{self.workers} workers x {self.batch} images are more than the {self.train_images} for training",
                remedy="use fewer workers or a smaller batch",
            )
        return self

    @property
    def train_images(self) -> int:
        """Images for training."""
        return 1797 - round(1797 * TEST_SHARE)

    @property
    def steps_per_epoch(self) -> int:
        """Steps of each worker in an epoch; what does not fill a step is left out."""
        return self.train_images // (self.workers * self.batch)

    @property
    def steps(self) -> int:
        """Steps of each worker."""
        return self.epochs * self.steps_per_epoch

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 0."""
        scale = self.workers * self.batch / 16 if self.scaling == "linear" else 1.0
        warmup = round(self.warmup_epochs * self.steps_per_epoch)
        return self.learning_rate * scale * min(1.0, (step + 1) / max(warmup, 1))


class Network:
    """64 pixels -> hidden units (ReLU) -> 10 classes (softmax); its weights are one vector."""

    def __init__(self, hidden: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.shapes = ((PIXELS, hidden), (hidden,), (hidden, CLASSES), (CLASSES,))
        parts = [
            rng.standard_normal(shape) * np.sqrt(2 / shape[0]) if len(shape) == 2 else np.zeros(shape)
            for shape in self.shapes
        ]
        self.weights: Floats = np.concatenate([part.ravel() for part in parts])

    def _parts(self, weights: Floats) -> list[Floats]:
        ends = np.cumsum([np.prod(shape) for shape in self.shapes])[:-1]
        return [part.reshape(shape) for part, shape in zip(np.split(weights, ends), self.shapes)]

    def probabilities(self, images: Floats) -> Floats:
        """(N, 64) -> (N, 10)."""
        return self._forward(images)[1]

    def _forward(self, images: Floats) -> tuple[Floats, Floats]:
        first, bias, second, offset = self._parts(self.weights)
        hidden = np.maximum(images @ first + bias, 0)
        logits = hidden @ second + offset
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return hidden, powers / powers.sum(axis=1, keepdims=True)

    def loss(self, images: Floats, labels: NDArray[np.int64]) -> float:
        """Mean cross-entropy."""
        return float(-np.log(self.probabilities(images)[np.arange(len(labels)), labels] + 1e-300).mean())

    def gradient(self, images: Floats, labels: NDArray[np.int64]) -> Floats:
        """Gradient of the mean cross-entropy, a vector as the weights."""
        hidden, outputs = self._forward(images)
        error = outputs.copy()
        error[np.arange(len(labels)), labels] -= 1
        error /= len(labels)
        back = (error @ self._parts(self.weights)[2].T) * (hidden > 0)
        return np.concatenate([(images.T @ back).ravel(), back.sum(0), (hidden.T @ error).ravel(), error.sum(0)])


class Descent:
    """Updates of a weight vector: w -= rate v, v = momentum v + gradient."""

    def __init__(self, momentum: float, velocity: Floats | None = None) -> None:
        self.momentum = momentum
        self.velocity = velocity

    def update(self, weights: Floats, gradient: Floats, rate: float) -> None:
        """In place."""
        velocity = gradient if self.velocity is None else self.momentum * self.velocity + gradient
        self.velocity = velocity if self.momentum else None
        weights -= rate * velocity


def write_digits(file: Path) -> None:
    """The images, 0 to 1, and labels of both splits; raises TrainingError without scikit-learn."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise TrainingError("scikit-learn is missing", remedy=install_command("train", "cpu")) from error
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    held_out, train = np.split(order, [round(len(labels) * TEST_SHARE)])
    np.savez(
        file,
        images=images[train] / 16,
        labels=labels[train],
        test_images=images[held_out] / 16,
        test_labels=labels[held_out],
    )


def batches(asked: DigitsInputs, count: int, seed: int | None = None) -> Iterator[NDArray[np.intp]]:
    """Of each step the numbers of all workers' images, shuffled anew in each epoch."""
    rng = np.random.default_rng([asked.seed if seed is None else seed, 1])
    size = asked.workers * asked.batch
    for _ in range(asked.epochs):
        order = rng.permutation(count)
        for step in range(asked.steps_per_epoch):
            yield order[step * size : (step + 1) * size]


def shares_of(images_per_second: Sequence[float], total: int) -> list[int]:
    """Shares of a step's images in proportion to the speeds, at least one each, rounded by largest remainders."""
    free = total - len(images_per_second)
    exact = [free * speed / sum(images_per_second) for speed in images_per_second]
    shares = [int(one) for one in exact]
    for worker in sorted(range(len(exact)), key=lambda one: shares[one] - exact[one])[: free - sum(shares)]:
        shares[worker] += 1
    return [1 + share for share in shares]


def train_digits(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Train and test; several workers are processes of MPI.

    Result: ``accuracy`` on the test images and ``loss`` on those for training; ``seconds`` of the training,
    ``stepMilliseconds`` of a worker and of these ``exchangeMilliseconds`` (communication and waiting);
    ``imagesPerSecond`` of all workers; ``staleness``, mean and largest number of updates between a pull and its push;
    ``lead``, the most steps that a worker was ahead of the slowest; ``globalBatch``; with ring and hierarchical
    ``shares``, the images of each worker in the last step. Without other workers also
    ``accuracyOfMembers`` (mean), ``accuracySelected`` (of the member with the smallest training loss) and
    ``accuracyAveraged`` (of the mean of their probabilities). Raises ConfigurationError, TrainingError.
    """
    asked = validated(DigitsInputs, inputs)
    with TemporaryDirectory(prefix="caloscale-study-") as temporary:
        folder = Path(temporary)
        write_digits(folder / DIGITS_FILE)
        with threadpool_limits(limits=1):  # small matrices: threads that wait for each other cost more than they bring
            found = _alone(asked, folder) if asked.workers == 1 else _with_ranks(asked, folder)
    return {"globalBatch": asked.workers * asked.batch, **found}


def train_network(asked: DigitsInputs, data: Mapping[str, Any], seed: int) -> Network:
    """A network that one worker has trained in this process."""
    network, descent = Network(asked.hidden, seed), Descent(asked.momentum)
    for step, chosen in enumerate(batches(asked, len(data["labels"]), seed=seed)):
        gradient = network.gradient(data["images"][chosen], data["labels"][chosen])
        descent.update(network.weights, gradient, asked.rate(step))
    return network


def tested(network: Network, data: Mapping[str, Any]) -> dict[str, float]:
    """Accuracy on the test images, loss on those for training."""
    right = network.probabilities(data["test_images"]).argmax(axis=1) == data["test_labels"]
    return {"accuracy": float(right.mean()), "loss": network.loss(data["images"], data["labels"])}


def _alone(asked: DigitsInputs, folder: Path) -> dict[str, Any]:
    with np.load(folder / DIGITS_FILE) as file:
        data = dict(file)
    members, seconds = [], 0.0
    for seed in range(asked.seed, asked.seed + asked.members):
        clock = time.perf_counter()
        network = train_network(asked, data, seed)
        seconds += (time.perf_counter() - clock) / asked.members
        members.append((network, tested(network, data)))
    together = np.mean([network.probabilities(data["test_images"]) for network, _ in members], axis=0)
    figures = [figure for _, figure in members]
    selected = min(figures, key=lambda figure: figure["loss"])
    return {
        **figures[0],
        **_speed(asked, seconds, 0.0),
        "staleness": {"mean": 0.0, "max": 0},
        "lead": 0,
        "accuracyOfMembers": float(np.mean([figure["accuracy"] for figure in figures])),
        "accuracySelected": selected["accuracy"],
        "accuracyAveraged": float((together.argmax(axis=1) == data["test_labels"]).mean()),
    }


def _speed(asked: DigitsInputs, seconds: float, exchange: float) -> dict[str, float]:
    return {
        "seconds": seconds,
        "stepMilliseconds": 1000 * seconds / asked.steps,
        "exchangeMilliseconds": 1000 * exchange / asked.steps,
        "imagesPerSecond": asked.steps * asked.workers * asked.batch / seconds,
    }


def _with_ranks(asked: DigitsInputs, folder: Path) -> dict[str, Any]:
    servers = asked.method not in ("ring", "hierarchical")
    run_ranks("digits_rank", asked.workers + servers, [asked.model_dump_json(by_alias=True), str(folder)])
    found: dict[str, Any] = json.loads((folder / RESULT_FILE).read_text(encoding="utf-8"))
    exchange = found.pop("exchangeSeconds")
    return {**found, **_speed(asked, found["seconds"], exchange)}
