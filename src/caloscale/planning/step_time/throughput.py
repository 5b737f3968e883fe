"""Seconds of a training step, fitted to measurements, with an interval and the distance of extrapolations.

t = (a + b B)(1 + cv m(w)) + 2 R [alpha_in (n - w) + alpha_out (w - 1)] + oversubscription + lone
    + 2 (w-1)/w S/beta
with B showers a replica, n replicas, w workers, R all-reduces of together S bytes, m(w) the expected maximum of w
standard normals. a, b, the alphas and the two layout terms are fitted (non-negative least squares of relative
errors); cv, the steps' own scatter in the quietest run, and beta are put in.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caloscale.planning.catalogue.hardware import Network
from caloscale.planning.catalogue.measurements import Measurement

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Setups:
    """Ways of running a network, one an element of each array."""

    replicas: Numbers
    """Replicas n of the network (GPUs, TPU cores)."""
    workers: Numbers
    """Workers w that they are divided into."""
    nodes: Numbers
    """Nodes m that the workers are on."""
    batch: Numbers
    """Showers in a replica's batch."""

    def __getitem__(self, chosen: NDArray[np.intp] | slice) -> "Setups":
        return Setups(self.replicas[chosen], self.workers[chosen], self.nodes[chosen], self.batch[chosen])

    def __len__(self) -> int:
        return len(self.replicas)


Form = Callable[[Setups], list[Numbers]]
"""Quantities that the time to agree is proportional to, in addition to the arithmetic a + b x batch; the coefficients,
s, are fitted and must not be negative."""


def _layout_terms(s: Setups) -> list[Numbers]:
    """Workers that share their node with others, w (w/m - 1), and workers with a single replica each, beyond the
    first: seen to be the least steady."""
    lone = np.where(s.replicas == s.workers, s.workers - 1, 0.0)
    return [np.asarray(s.workers * (s.workers / s.nodes - 1)), np.asarray(lone)]


def two_level(s: Setups) -> list[Numbers]:
    """A ring over all replicas: (replicas - workers) hops inside nodes and (workers - 1) between them."""
    return [s.replicas - s.workers, s.workers - 1, *_layout_terms(s)]


def flat(s: Setups) -> list[Numbers]:
    """A ring over all replicas whose hops are all alike."""
    return [s.replicas - 1, *_layout_terms(s)]


def tree(s: Setups) -> list[Numbers]:
    """A tree over all replicas: the logarithm of their number."""
    return [np.log2(s.replicas), *_layout_terms(s)]


def stragglers(s: Setups) -> list[Numbers]:
    """No latency, only waiting for the slowest replica: the root of the logarithm of their number."""
    return [np.sqrt(2 * np.log(s.replicas)), *_layout_terms(s)]


FORMS: tuple[Form, ...] = (two_level, flat, tree, stragglers)
"""TensorFlow's and NCCL's all-reduce of small tensors is a ring, so `two_level` is used; the others show how much the
choice matters."""
LEVEL = 0.9
"""Level of the predictive interval: nine of ten new runs should lie in it."""
DEFAULT_SCATTER = (0.05, 5)
"""Scatter of a run and degrees of freedom where no accelerator has rows to spare: two runs of one setup differed by
3 and by 5% in the study."""
NODE_BYTES_PER_SECOND = 32e9 / 8
"""Network of an n1 node with GPUs, 32 Gbit/s (Compute Engine documentation, network bandwidth). Gradients of some MB
pass in milliseconds: it hardly matters."""


@dataclass(frozen=True)
class StepTimes:
    """Predicted steps, one an element."""

    seconds: Numbers
    """Expected mean step, s."""
    low: Numbers
    """Lower end of the 90% interval for a new run, s."""
    high: Numbers
    """Upper end, s."""
    outside: NDArray[np.bool_]
    """Whether each lies outside what was measured; `StepModel.extrapolations` states how far."""


@dataclass(frozen=True)
class StepModel:
    """Step time of one network on one accelerator of one provider."""

    network: Network
    form: Form
    setups: Setups
    """What was measured."""
    coefficients: Numbers
    """a, b and those of the form's columns; a is 0 where one batch size only was measured."""
    weighted: Numbers
    """Columns over measured seconds: the design matrix of the relative errors."""
    scatter: float
    """Relative standard deviation of a new run about the fit."""
    freedom: int
    """Degrees of freedom of the scatter."""
    cv: float
    """Scatter of the steps in the quietest run, relative."""
    scaled: tuple[float, float, float] | None = None
    """Of an accelerator, or a network, that was not measured: the arithmetic is so many times that of the measured one,
    with the ends of the 90% interval of this factor; the time to agree is as it was."""
    agreement_error: float = 0.0
    """Relative error of the time to agree: another network may have fewer or more all-reduces."""

    def predict(self, setups: Setups) -> StepTimes:
        """Expected step time of setups, with its interval."""
        columns = _columns(self.form, setups, self.cv)
        seconds = columns @ self.coefficients + _transfer(self.network, setups)
        relative = columns / seconds[:, None]
        information = np.linalg.pinv(self.weighted.T @ self.weighted)
        leverage = np.einsum("ij,jk,ik->i", relative, information, relative)
        from scipy.special import stdtrit

        half = stdtrit(self.freedom, (1 + LEVEL) / 2) * self.scatter * np.sqrt(1 + np.maximum(leverage, 0))
        low, high = seconds * np.exp(-half), seconds * np.exp(half)
        if len(np.unique(self.setups.batch)) == 1:  # the fixed part is unknown: anything from none (the fit) to all
            ratio = (seconds + self.coefficients[1] * (self.setups.batch[0] - setups.batch)) / seconds
            low, high = np.minimum(low, low * ratio), np.maximum(high, high * ratio)
        if self.scaled is not None:
            arithmetic = columns[:, :2] @ self.coefficients[:2]  # and waiting for the slowest
            rest = seconds - arithmetic
            factor, least, most = self.scaled
            fewest, largest = (1 - self.agreement_error) * rest, (1 + self.agreement_error) * rest
            low, high = (least * arithmetic + fewest) * low / seconds, (most * arithmetic + largest) * high / seconds
            seconds = factor * arithmetic + rest
        outside = ~np.isin(_shape(setups), _shape(self.setups))
        for ours, theirs in zip(_ranges(setups), _ranges(self.setups)):
            outside |= (ours < theirs.min()) | (ours > theirs.max())
        return StepTimes(seconds, low, high, outside)

    def extrapolations(self, setup: Setups) -> tuple[str, ...]:
        """In which respects, and how far, one setup lies outside what was measured; empty: inside."""
        names = ("replicas", "workers", "showers a replica")
        known = self.setups
        reasons = [
            reason
            for name, ours, theirs in zip(names, _ranges(setup), _ranges(known))
            for reason in _beyond(name, float(ours[0]), theirs)
        ]
        if not np.isin(_shape(setup), _shape(known))[0]:
            per_worker, per_node = setup.replicas[0] / setup.workers[0], setup.workers[0] / setup.nodes[0]
            reasons.append(
                f"no layout with {per_worker:g} replicas a worker and {per_node:g} workers a node was measured"
            )
        return tuple(reasons)


def fit_steps(
    measurements: Sequence[Measurement],
    network: Network,
    form: Form = two_level,
    *,
    pooled: tuple[float, int] = DEFAULT_SCATTER,
) -> StepModel:
    """The step model of measurements of one network on one accelerator of one provider.

    With too few rows for the form, the flat ring; ``pooled``: scatter and degrees of freedom that are used where the
    rows leave none.
    """
    setups = setups_of(measurements)
    seconds = np.array([m.step_seconds for m in measurements])
    cv = min((m.step_cv for m in measurements if m.step_cv is not None), default=0.0)
    rank = int(np.linalg.matrix_rank(_columns(form, setups, cv)))
    if form is two_level and len(seconds) <= rank:
        form = flat
    design = _columns(form, setups, cv)
    if len(np.unique(setups.batch)) == 1:
        design[:, 0] = 0
    weighted = design / seconds[:, None]
    from scipy.optimize import nnls  # loaded when needed: half a second

    coefficients, _ = nnls(weighted, 1 - _transfer(network, setups) / seconds)
    residuals = (design @ coefficients + _transfer(network, setups)) / seconds - 1
    freedom = len(seconds) - int((coefficients > 0).sum())
    scatter, freedom = (float(np.sqrt((residuals**2).sum() / freedom)), freedom) if freedom > 0 else pooled
    return StepModel(network, form, setups, coefficients, weighted, scatter, freedom, cv)


def setups_of(measurements: Sequence[Measurement]) -> Setups:
    """The setups of measurements as arrays."""
    rows = [(m.replicas, m.workers, m.nodes, m.batch_per_replica) for m in measurements]
    return Setups(*np.array(rows, float).T)


def _columns(form: Form, setups: Setups, cv: float) -> Numbers:
    waiting = 1 + cv * expected_maximum(setups.workers)
    return np.column_stack([waiting, waiting * setups.batch, *form(setups)]).astype(float)


def expected_maximum(members: Numbers) -> Numbers:
    """Expected maximum of n standard normal numbers: a synchronous step waits for the slowest worker.

    Blom's approximation, the normal quantile of (n - 3/8)/(n + 1/4): right within five per cent from n = 2 on, where
    the asymptotic form sqrt(2 ln n) is twice too large. Source: G. Blom, Statistical Estimates (1958).
    """
    from scipy.special import ndtri

    return np.asarray(ndtri((members - 0.375) / (members + 0.25)))


def _transfer(network: Network, setups: Setups) -> Numbers:
    """Bandwidth part of the ring all-reduces of a step, s."""
    size = 1e6 * network.reduced_mb
    return np.asarray(2 * (setups.workers - 1) / setups.workers * size / NODE_BYTES_PER_SECOND)


def _ranges(setups: Setups) -> tuple[Numbers, Numbers, Numbers]:
    return setups.replicas, setups.workers, setups.batch


def _shape(setups: Setups) -> Numbers:
    """One number for replicas a worker and workers a node."""
    return np.asarray(setups.replicas / setups.workers + 1e6 * setups.workers / setups.nodes)


def _beyond(what: str, value: float, known: Numbers) -> list[str]:
    low, high = known.min(), known.max()
    if low <= value <= high:
        return []
    factor = value / high if value > high else low / value
    side = f"{factor:.1f} times the most" if value > high else f"1/{factor:.1f} of the fewest"
    return [f"{value:g} {what}: {side} measured ({high if value > high else low:g})"]
