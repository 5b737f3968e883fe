"""What proposes parameters: a network trained with gradients, or Bayesian optimisation."""

import hashlib
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from caloscale.errors import ConfigurationError
from caloscale.random import EventDraws
from caloscale.sagips.data import fraction_of_rank, measured_events, measured_norms, sample_of
from caloscale.sagips.environment import EVENTS, NORMS, PARAMETERS, load_class, make_environment
from caloscale.sagips.networks import Network
from caloscale.sagips.objectives import make_objective
from caloscale.sagips.remote_memory import Floats
from caloscale.sagips.saves import Problem
from caloscale.spec import DataSet, Solver

_SHARED, _OWN, _SHARE, _ANALYSIS = range(4)
"""What random numbers are for: weights that all ranks share, of one rank, its share of the data, the analysis."""


@dataclass(frozen=True)
class Step:
    """What an optimiser computed in an epoch."""

    losses: Mapping[str, float]
    """Values by name."""
    gradient: Floats
    """What ranks average, flat; empty where there is nothing to exchange."""
    rest: tuple[tf.Tensor, ...] = ()
    """Gradients that stay in the rank."""
    transfer_seconds: float = 0.0
    """Time in which the gradient was copied into host memory, s."""


class Optimizer(Protocol):
    """It is constructed with a solver's configuration and the number of its rank."""

    problem: Problem

    def step(self, epoch: int) -> Step:
        """Compute an epoch (from 0); parameters are not changed yet."""
        ...

    def apply(self, gradient: Floats, step: Step, epoch: int) -> None:
        """Update with the averaged gradient of an earlier step. epoch: the present one."""
        ...

    def propose(self) -> Floats:
        """Normalised parameters (analysisSamples, parameters), from the same noise on all ranks, with all seeds and in
        all epochs."""
        ...

    def generator(self) -> dict[str, NDArray[Any]]:
        """What proposes, as arrays, for a checkpoint."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """All that a resumed run needs."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from a state."""
        ...


def make_optimizer(solver: Solver, rank: int) -> Optimizer:
    """The optimiser of a rank. Raises ConfigurationError or InputError for a problem that cannot be set up."""
    kinds: dict[str, type[Optimizer]] = {"generator": GeneratorOptimizer, "bayesian": BayesianOptimizer}
    kind = kinds.get(solver.optimizer) or load_class(solver.optimizer, "solver.optimizer")
    return kind(solver, rank)  # type: ignore[call-arg]


class _Comparison:
    """A data set: measured events, pipeline and objective, on one rank."""

    def __init__(self, solver: Solver, data: DataSet, index: int, rank: int) -> None:
        field = f"solver.dataSets.{index}.environment"
        self.environment = make_environment(data.environment, data.options, solver.events_per_sample, field)
        shard = (rank, solver.ranks) if solver.data == "sharded" else (0, 1)
        self.sample = sample_of(self.environment, data.environment, solver.events_per_sample, field)
        events = measured_events(data, index, solver.seed, *shard)
        self.digest = "" if data.source == "truth" else hashlib.sha256(events.tobytes()).hexdigest()
        self.measured = tf.constant(fraction_of_rank(events, solver, rank, random_of(solver, _SHARE, rank, index)))
        self.norms = measured_norms(self.environment) if solver.norm_terms else None
        self.objective = make_objective(solver, self.measured, random_of(solver, _OWN, rank, index))
        self._seed, self._index, self._per_sample = seed_of(solver, rank), index, solver.events_per_sample

    def generate(self, parameters: tf.Tensor, epoch: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Events (rows, observables) of parameters (samples, parameters), and the norm terms."""
        draws = EventDraws(self._seed, epoch, 1 + self._index, 0, parameters.shape[0])
        values = self.environment({PARAMETERS: parameters}, draws)
        shape = (parameters.shape[0], self._per_sample, len(self.environment.observables))
        events = tf.reshape(tf.ensure_shape(values[EVENTS], shape), (shape[0] * shape[1], shape[2]))
        if self.norms is None or NORMS not in values:
            return events, tf.constant(0.0)
        return events, tf.reduce_sum(tf.reduce_mean(tf.math.squared_difference(values[NORMS], self.norms), axis=0))

    def bootstrap(self, rows: int, epoch: tf.Tensor) -> tf.Tensor:
        """Measured events (rows, observables), drawn with replacement."""
        seed = tf.stack([tf.constant(self._seed % 2**31, tf.int64), epoch * 256 + self._index])
        chosen = tf.random.stateless_uniform((rows,), seed, maxval=self.measured.shape[0], dtype=tf.int32)
        return tf.gather(self.measured, chosen)


def _problem(comparisons: Sequence[_Comparison]) -> Problem:
    """The parameters and their truth, which all pipelines share. Raises ConfigurationError where they do not."""
    environments = [comparison.environment for comparison in comparisons]
    names = tuple(environments[0].parameters)
    for index, environment in enumerate(environments):
        if tuple(environment.parameters) != names:
            problem = (
                f"its parameters {list(environment.parameters)} are not those of the first data set, {list(names)}"
            )
            field = f"solver.dataSets.{index}.environment"
            remedy = "all pipelines of a run take the same parameters, in the same order"
            raise ConfigurationError(problem, field=field, remedy=remedy)
    truths = {index: tuple(map(float, one.truth)) for index, one in enumerate(environments) if one.truth is not None}
    known = next(iter(truths.values()), None)
    for index, truth in truths.items():
        if truth != known:
            problem = f"its truth {truth} is not that of another data set, {known}"
            remedy = "give all pipelines the same truth, or None where it is not known"
            raise ConfigurationError(problem, field=f"solver.dataSets.{index}.environment", remedy=remedy)
    digests, samples = zip(*((comparison.digest, comparison.sample) for comparison in comparisons))
    return Problem(names, known, digests, samples)


class GeneratorOptimizer:
    """A network from noise to parameters, trained with gradients of the objectives; with discriminators a GAN.

    An epoch: parameters from new noise, events of each pipeline, one update of each discriminator, then the generator's
    gradient. Ranks that exchange gradients start from the same generator.
    """

    def __init__(self, solver: Solver, rank: int) -> None:
        self._solver, self._seed = solver, seed_of(solver, rank)
        self._comparisons = [_Comparison(solver, data, k, rank) for k, data in enumerate(solver.data_sets)]
        self.problem = _problem(self._comparisons)
        settings = solver.generator
        outputs = len(self.problem.parameters)
        first = rank if solver.exchange == "none" else 0
        sizes = (settings.noise, *[settings.width] * settings.layers, outputs)
        self.network = Network(sizes, random_of(solver, _SHARED, first))
        self._rate = settings.learning_rate
        if solver.learning_rate_scaling == "linear":
            self._rate *= solver.ranks
        # Not of the seed: members of an ensemble, which differ in it, are compared at equal noise.
        noise = np.random.default_rng(_ANALYSIS).standard_normal((solver.analysis_samples, settings.noise))
        self._analysis_noise = tf.constant(noise, tf.float32)
        self._step = tf.function(self._compute)
        self._update = tf.function(self.network.apply)

    def step(self, epoch: int) -> Step:
        """Losses of generator and discriminators, gradients of the generator."""
        losses, exchanged, rest = self._step(tf.constant(epoch, tf.int64), tf.constant(self._scale(epoch)))
        values = losses.numpy()  # an accelerator has computed the epoch when they are there
        clock = time.perf_counter()
        gradient = exchanged.numpy()
        transfer = time.perf_counter() - clock
        if gradient.size == 0:
            problem = "the events have no gradient with respect to the parameters"
            remedy = "write differentiable pipelines, or optimizer: bayesian, which needs no gradient"
            raise ConfigurationError(problem, field="solver.dataSets", remedy=remedy)
        names = ("generator", "norms", "discriminator")
        return Step(dict(zip(names, values.tolist())), gradient, rest, transfer)

    def apply(self, gradient: Floats, step: Step, epoch: int) -> None:
        """Update weights and biases with Adam."""
        weights = self.network.weights.shape[0]
        if self._solver.averages_biases:
            biases = tf.constant(gradient[weights:])
        else:  # the exchange leaves out what is not finite of the weights
            biases = tf.where(tf.math.is_finite(step.rest[0]), step.rest[0], 0.0)
        self._update(tf.constant(gradient[:weights]), biases, tf.constant(self._rate * self._scale(epoch), tf.float32))

    def propose(self) -> Floats:
        """Parameters of the noise of the analysis."""
        return tf.sigmoid(self.network(self._analysis_noise)).numpy()

    def generator(self) -> dict[str, NDArray[Any]]:
        """Weights and biases."""
        return {"weights": self.network.weights.numpy(), "biases": self.network.biases.numpy()}

    def state(self) -> dict[str, NDArray[Any]]:
        """Networks and optimisers."""
        return {name: variable.numpy() for name, variable in self._variables().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Assign a state's values."""
        for name, variable in self._variables().items():
            variable.assign(state[name])

    def _variables(self) -> dict[str, tf.Variable]:
        variables = {f"generator.{name}": v for name, v in self.network.state().items()}
        for index, comparison in enumerate(self._comparisons):
            variables |= {f"objective{index}.{name}": v for name, v in comparison.objective.state().items()}
        return variables

    def _scale(self, epoch: int) -> float:
        """Learning rate over its start."""
        if self._solver.learning_rate_decay == "constant":
            return 1.0
        return 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * epoch / self._solver.epochs))

    def _compute(self, epoch: tf.Tensor, scale: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tuple[tf.Tensor, ...]]:
        draws = EventDraws(self._seed, epoch, 0, 0, self._solver.samples_per_rank)
        noise = draws.normal((self._solver.generator.noise,))
        network = self.network
        weights, biases = network.weights.read_value(), network.biases.read_value()
        with tf.GradientTape() as tape:
            tape.watch((weights, biases))
            parameters = tf.sigmoid(network.outputs(weights, biases, noise))
            generated = [comparison.generate(parameters, epoch) for comparison in self._comparisons]
            norms = self._solver.norm_weight * tf.add_n([terms for _, terms in generated])
        values, learned, of_events = [], [], []
        for comparison, (events, _) in zip(self._comparisons, generated):
            measured = comparison.bootstrap(events.shape[0], epoch)
            learned.append(comparison.objective.learn(events, measured, scale))
            with tf.control_dependencies([learned[-1]]):
                value, gradient = comparison.objective.compare(events, measured)
            values.append(value)
            of_events.append(gradient)
        gradients = tape.gradient(
            [*(events for events, _ in generated), norms], (weights, biases), output_gradients=[*of_events, tf.ones(())]
        )
        losses = tf.stack([tf.add_n(values), norms, tf.add_n(learned)])
        if gradients[0] is None:  # `step` raises the error: TensorFlow would change its type here
            return losses, tf.zeros(0), ()
        if self._solver.averages_biases:
            return losses, tf.concat(gradients, axis=0), ()
        return losses, gradients[0], (gradients[1],)


class BayesianOptimizer:
    """A Gaussian process over the objective's values proposes where to evaluate next: largest expected improvement
    (Jones et al. 1998, doi:10.1023/A:1008306431147). It needs no gradients.
    """

    _START = 4
    """Evaluations before the process is fitted, per parameter."""
    _CANDIDATES = 4096

    def __init__(self, solver: Solver, rank: int) -> None:
        self._solver, self._rank = solver, rank
        self._comparisons = [_Comparison(solver, data, k, rank) for k, data in enumerate(solver.data_sets)]
        self.problem = _problem(self._comparisons)
        self._count = len(self.problem.parameters)
        self._points = np.empty((0, self._count))
        self._values = np.empty(0)
        self._evaluate = tf.function(self._objective)

    def step(self, epoch: int) -> Step:
        """Evaluate the objective at a new point."""
        point = self._next(epoch)
        parameters = tf.constant(np.repeat(point[np.newaxis], self._solver.samples_per_rank, axis=0), tf.float32)
        value = float(self._evaluate(parameters, tf.constant(epoch, tf.int64)))
        if math.isfinite(value):
            self._points = np.vstack([self._points, point])
            self._values = np.append(self._values, value)
        return Step({"generator": value}, np.empty(0, np.float32))

    def apply(self, gradient: Floats, step: Step, epoch: int) -> None:
        """Nothing: the step has kept its value."""

    def propose(self) -> Floats:
        """The evaluated point of the smallest predicted value, repeated."""
        if not len(self._values):
            point = np.full(self._count, 0.5)
        else:
            few = len(self._values) < self._START * self._count
            point = self._points[np.argmin(self._values if few else self._fit().predict(self._points))]
        return np.repeat(point[np.newaxis], self._solver.analysis_samples, axis=0).astype(np.float32)

    def generator(self) -> dict[str, NDArray[Any]]:
        """Points and values."""
        return {"points": self._points, "values": self._values}

    def state(self) -> dict[str, NDArray[Any]]:
        """Points and values."""
        return self.generator()

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue with these points."""
        self._points, self._values = state["points"], state["values"]

    def _objective(self, parameters: tf.Tensor, epoch: tf.Tensor) -> tf.Tensor:
        total = tf.constant(0.0)
        for comparison in self._comparisons:
            events, norms = comparison.generate(parameters, epoch)
            measured = comparison.bootstrap(events.shape[0], epoch)
            total += comparison.objective.compare(events, measured)[0] + self._solver.norm_weight * norms
        return total

    def _next(self, epoch: int) -> NDArray[np.float64]:
        from scipy.stats import norm, qmc

        start = self._START * self._count
        if len(self._values) < start:
            sequence = qmc.Sobol(self._count, rng=random_of(self._solver, _OWN, self._rank))
            return sequence.random_base2(math.ceil(math.log2(max(start, epoch + 1))))[epoch]
        process = self._fit()
        random = random_of(self._solver, _OWN, self._rank, epoch)
        near = self._points[np.argsort(self._values)[:8]]
        local = near[random.integers(len(near), size=self._CANDIDATES)] + random.normal(
            0, 0.05, (self._CANDIDATES, self._count)
        )
        candidates = np.clip(np.vstack([random.random((self._CANDIDATES, self._count)), local]), 0, 1)
        mean, deviation = process.predict(candidates, return_std=True)
        lowest = process.predict(self._points).min()
        gain = (lowest - mean) / np.maximum(deviation, 1e-12)
        improvement = (lowest - mean) * norm.cdf(gain) + deviation * norm.pdf(gain)
        return candidates[np.argmax(improvement)]

    def _fit(self) -> Any:
        import warnings

        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

        kernel = ConstantKernel(1.0) * Matern(np.full(self._count, 0.5), (0.02, 20), nu=2.5) + WhiteKernel(0.01)
        process = GaussianProcessRegressor(kernel, normalize_y=True, random_state=self._solver.seed % 2**32)
        above = self._values - self._values.min()
        shift = float(max(0.1 * np.median(above), 1e-12))  # keeps the logarithm finite, and scatter small
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of length scales at their bounds
            return process.fit(self._points, np.log(np.maximum(above, 0) + shift))


def random_of(solver: Solver, *purpose: int) -> np.random.Generator:
    """Random numbers for a purpose."""
    return np.random.default_rng([solver.seed, *purpose])


def seed_of(solver: Solver, rank: int) -> int:
    """Seed of a rank's noise, events and bootstrap samples."""
    return int(np.random.SeedSequence([solver.seed, _OWN, rank]).generate_state(1, np.uint64)[0])
