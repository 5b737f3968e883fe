"""How generated events are compared with measured ones. Each objective is smallest when they are alike."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from caloscale.errors import ConfigurationError
from caloscale.sagips.environment import load_class
from caloscale.sagips.networks import Network
from caloscale.spec import Solver


class Objective:
    """A comparison of events (rows, observables), float32; it is constructed by `make_objective`. By itself it has no
    variables and a differentiable `value`."""

    def learn(self, generated: tf.Tensor, measured: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        """Adapt to these events where the objective is trained; scale: factor of its learning rate.

        Returns a loss, zero where nothing is trained.
        """
        return tf.constant(0.0)

    def compare(self, generated: tf.Tensor, measured: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """The objective's value and its gradient with respect to the generated events (rows, observables)."""
        with tf.GradientTape() as tape:
            tape.watch(generated)
            value = self.value(generated, measured)
        return value, tape.gradient(value, generated)

    def value(self, generated: tf.Tensor, measured: tf.Tensor) -> tf.Tensor:
        """The scalar value."""
        raise NotImplementedError

    def state(self) -> dict[str, tf.Variable]:
        """The variables that a resumed run needs, by name."""
        return {}


def make_objective(solver: Solver, measured: tf.Tensor, random: np.random.Generator) -> Objective:
    """The objective of a data set with these measured events (rows, observables)."""
    kinds: dict[str, type[Objective]] = {
        "discriminator": Discriminator,
        "likelihood": BinnedLikelihood,
        "energy-distance": EnergyDistance,
    }
    kind = kinds.get(solver.objective) or load_class(solver.objective, "solver.objective")
    return kind(solver, measured, random)  # type: ignore[call-arg]


class Discriminator(Objective):
    """A network that is trained to give 1 for measured and 0 for generated events (least squares, Mao et al. 2017,
    arXiv 1611.04076). The objective's value is the mean squared distance of its output from 1.

    Batches pass through the network in chunks whose activations stay in the cache.
    """

    def __init__(self, solver: Solver, measured: tf.Tensor, random: np.random.Generator) -> None:
        settings = solver.discriminator
        self.network = Network((measured.shape[1], *[settings.width] * settings.layers, 1), random)
        self._rate, self._chunk = settings.learning_rate, settings.chunk
        self._dtype = tf.as_dtype(solver.precision)

    def learn(self, generated: tf.Tensor, measured: tf.Tensor, scale: tf.Tensor) -> tf.Tensor:
        """Update once with the mean over all events; returns the mean of both squared distances, summed."""
        network, rows = self.network, generated.shape[0]
        weights, biases = network.weights.read_value(), network.biases.read_value()

        def gradients(first: tf.Tensor, size: int) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
            both = tf.concat([_rows(measured, first, size), _rows(generated, first, size)], axis=0)
            target = tf.repeat(tf.constant([1.0, 0.0]), size)[:, tf.newaxis]
            with tf.GradientTape() as tape:
                tape.watch((weights, biases))
                output = network.outputs(weights, biases, both, self._dtype)
                loss = tf.reduce_sum(tf.square(output - target)) / rows
            return (loss, *tape.gradient(loss, (weights, biases)))

        loss, of_weights, of_biases = _sum_chunks(gradients, rows, self._chunk)
        network.apply(of_weights, of_biases, self._rate * scale)
        return loss

    def compare(self, generated: tf.Tensor, measured: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Value and gradient; the measured events do not enter."""
        network, rows = self.network, generated.shape[0]
        weights, biases = network.weights.read_value(), network.biases.read_value()

        def gradient(events: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            with tf.GradientTape() as tape:
                tape.watch(events)
                output = network.outputs(weights, biases, events, self._dtype)
                loss = tf.reduce_sum(tf.square(output - 1)) / rows
            return loss, tape.gradient(loss, events)

        if rows <= self._chunk:
            return gradient(generated)
        whole = rows // self._chunk * self._chunk
        chunks = tf.reshape(generated[:whole], (-1, self._chunk, generated.shape[1]))
        fn_output_signature = (tf.TensorSpec((), tf.float32), tf.TensorSpec(chunks.shape[1:], tf.float32))
        losses, parts = tf.map_fn(gradient, chunks, fn_output_signature=fn_output_signature, parallel_iterations=1)
        value, of_events = tf.reduce_sum(losses), tf.reshape(parts, (whole, -1))
        if whole < rows:
            rest, of_rest = gradient(generated[whole:])
            value, of_events = value + rest, tf.concat([of_events, of_rest], axis=0)
        return value, of_events

    def state(self) -> dict[str, tf.Variable]:
        """Variables of the network and its optimiser."""
        return self.network.state()


def _rows(x: tf.Tensor, first: tf.Tensor, size: int) -> tf.Tensor:
    return tf.ensure_shape(tf.slice(x, [first, 0], [size, -1]), (size, x.shape[1]))


def _sum_chunks(
    function: Callable[[tf.Tensor, int], tuple[tf.Tensor, ...]], rows: int, chunk: int
) -> tuple[tf.Tensor, ...]:
    """The sum of function(first, size) over consecutive chunks of the rows."""
    if rows <= chunk:
        return function(tf.constant(0), rows)
    whole = rows // chunk
    total = function(tf.constant(0), chunk)
    total = tf.while_loop(
        lambda k, *sums: k < whole,
        lambda k, *sums: (k + 1, *(a + b for a, b in zip(sums, function(k * chunk, chunk)))),
        (tf.constant(1), *total),
        parallel_iterations=1,
    )[1:]
    if whole * chunk < rows:
        rest = function(tf.constant(whole * chunk), rows - whole * chunk)
        total = tuple(a + b for a, b in zip(total, rest))
    return total


def _require_width(widths: tf.Tensor) -> None:
    """Raise ConfigurationError where an observable of the measured events does not vary: its width is a divisor."""
    if not (widths > 0).numpy().all():
        problem = f"cannot compare observable {int(tf.argmin(widths))}: the measured events do not vary in it"
        remedy = "give more events, write objective: discriminator, or leave the observable out"
        raise ConfigurationError(problem, field="solver.objective", remedy=remedy)


class BinnedLikelihood(Objective):
    """Negative logarithm of the binned likelihood per event, minus its smallest value, summed over the observables.

    Each observable has 50 bins between the 0.1% and 99.9% quantiles of the measured events. An event is divided between
    the two nearest bin centres in proportion to its distance, which makes the histogram of the generated events
    differentiable; the measured ones are binned alike. The value is the Kullback-Leibler divergence of both histograms.
    """

    BINS = 50
    _EMPTY = 1e-4

    def __init__(self, solver: Solver, measured: tf.Tensor, random: np.random.Generator) -> None:
        self._low, self._high = (
            tf.constant(q, tf.float32) for q in np.quantile(np.asarray(measured), [0.001, 0.999], axis=0)
        )
        _require_width(self._high - self._low)
        self._shares = self._histogram(measured)

    def value(self, generated: tf.Tensor, measured: tf.Tensor) -> tf.Tensor:
        """The divergence; the histogram of all measured events is used, not the batch."""
        smooth = (self._histogram(generated) + self._EMPTY) / (1 + self.BINS * self._EMPTY)
        known = (self._shares + self._EMPTY) / (1 + self.BINS * self._EMPTY)
        return tf.reduce_sum(known * (tf.math.log(known) - tf.math.log(smooth)))

    def _histogram(self, events: tf.Tensor) -> tf.Tensor:
        """Shares (observables, bins) that add up to 1."""
        position = (events - self._low) / (self._high - self._low) * (self.BINS - 1)
        position = tf.clip_by_value(tf.transpose(position), 0.0, self.BINS - 1.0)
        left = tf.minimum(tf.floor(position), self.BINS - 2.0)
        share, count = position - left, position.shape[0]
        bins = tf.cast(left, tf.int32) + self.BINS * tf.range(count)[:, tf.newaxis]
        total = tf.math.unsorted_segment_sum(1 - share, bins, count * self.BINS)
        total += tf.math.unsorted_segment_sum(share, bins + 1, count * self.BINS)
        return tf.reshape(total, (count, self.BINS)) / tf.cast(tf.shape(events)[0], tf.float32)


class EnergyDistance(Objective):
    """2 E|X-Y| - E|X-X'| - E|Y-Y'| (Szekely and Rizzo 2013, doi:10.1016/j.jspi.2013.03.018), without the pairs of an
    event with itself, on at most `LARGEST` events of each sample, after scaling by the measured standard deviations.
    """

    LARGEST = 512

    def __init__(self, solver: Solver, measured: tf.Tensor, random: np.random.Generator) -> None:
        self._scale = tf.constant(np.std(np.asarray(measured), axis=0), tf.float32)
        _require_width(self._scale)

    def value(self, generated: tf.Tensor, measured: tf.Tensor) -> tf.Tensor:
        """The distance; unbiased, so that it may be below zero."""
        x, y = self._thinned(generated), self._thinned(measured)
        return 2 * tf.reduce_mean(_distances(x, y)) - _mean_within(x) - _mean_within(y)

    def _thinned(self, events: tf.Tensor) -> tf.Tensor:
        """Every n-th event: generated events of the same parameters are neighbours."""
        step = -(-events.shape[0] // self.LARGEST)
        return events[::step] / self._scale


def _distances(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    squares = tf.reduce_sum(tf.math.squared_difference(x[:, tf.newaxis], y[tf.newaxis]), axis=2)
    return tf.sqrt(squares + 1e-12)


def _mean_within(x: tf.Tensor) -> tf.Tensor:
    rows = x.shape[0]
    return tf.reduce_sum(_distances(x, x) * (1 - tf.eye(rows))) / (rows * (rows - 1))
