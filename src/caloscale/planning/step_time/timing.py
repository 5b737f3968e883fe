"""From the step to the run: test passes, fixed cost of an epoch, start-up; measured machines and estimated ones."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import InputError
from caloscale.planning.catalogue.hardware import Accelerator, Network, find_accelerator, network_of_preset
from caloscale.planning.catalogue.measurements import Measurement
from caloscale.planning.step_time.throughput import DEFAULT_SCATTER, FORMS, Numbers, Setups, StepModel, fit_steps

EPOCH_OVERHEAD_SECONDS = 4.0
"""Wall time of an epoch beyond training and test pass, s: 3.7 and 4.2 in the study's two long runs (60 and 120
epochs), 1.3 to 2.2 in the short ones (time stamps of recardoso/ISC_HPC_3DGAN kubeflow/results/tfjobs_runs.csv)."""
TEST_PASS_ERROR = 0.5
"""Relative error that is allowed for the test pass: the study's scatter by that much, and it is a few per cent."""
OTHER_NETWORK_ERROR = 1.0
"""The same where another network was measured, also for the time to agree: each may be none, or double."""
UNMEASURED_MARGIN = 1.5
"""An estimate lies between the ratio of the peaks and that of the bandwidths, or this factor beyond."""
OTHER_NETWORK_MARGIN = 3.0
"""The same when another network was measured: its layers may use the machine much better or worse."""
ENOUGH_ROWS = 10
"""Rows of an accelerator from which on its own scatter is believed."""


@dataclass(frozen=True)
class RunTimes:
    """Predicted times of training runs, one an element."""

    steps: Numbers
    """Steps of an epoch; 0 where the global batch is larger than the data."""
    step_seconds: Numbers
    """Mean step, s."""
    epoch_seconds: Numbers
    """An epoch: training, test pass and fixed cost, s."""
    epoch_low: Numbers
    """Lower end of its 90% interval, s."""
    epoch_high: Numbers
    """Upper end, s."""
    start_up_seconds: Numbers
    """Building, tracing and the first step, s; a restart costs it again."""
    outside: NDArray[np.bool_]
    """Whether each is outside what was measured."""


@dataclass(frozen=True)
class Timing:
    """Times of one network on one accelerator of one provider."""

    models: tuple[StepModel, ...]
    """The step in the form that is used, then in the others."""
    test: Numbers
    """Test pass: fixed part, s, and s x replicas per training shower."""
    start: Numbers
    """Start-up: fixed part, s, and s per replica of a worker."""
    measured: bool
    """Whether this accelerator was measured with this network."""
    basis: str
    """What the times rest on, for a reader."""
    caveats: tuple[str, ...] = ()
    """What is assumed beyond the fit; makes every prediction an extrapolation."""
    fixed_error: float = TEST_PASS_ERROR
    """Relative error of test pass and fixed cost."""

    def predict(self, setups: Setups, showers: int) -> RunTimes:
        """Times with ``showers`` training showers in an epoch."""
        step = self.models[0].predict(setups)
        low, high = step.low.copy(), step.high.copy()
        for other in self.models[1:]:  # beyond the measurements the form itself is in doubt
            central = other.predict(setups).seconds
            low = np.where(step.outside, np.minimum(low, central), low)
            high = np.where(step.outside, np.maximum(high, central), high)
        steps = np.floor(showers / (setups.replicas * setups.batch))
        test = self.test[0] + self.test[1] * showers / setups.replicas
        fixed = test + EPOCH_OVERHEAD_SECONDS
        return RunTimes(
            steps=steps,
            step_seconds=step.seconds,
            epoch_seconds=steps * step.seconds + fixed,
            epoch_low=steps * low + (1 - self.fixed_error) * fixed,
            epoch_high=steps * high + (1 + self.fixed_error) * fixed,
            start_up_seconds=self.start[0] + self.start[1] * setups.replicas / setups.workers,
            outside=step.outside | bool(self.caveats),
        )

    def extrapolations(self, setup: Setups) -> tuple[str, ...]:
        """In which respects, and how far, one setup is outside what was measured; empty: inside."""
        return (*self.caveats, *self.models[0].extrapolations(setup))


class Timings:
    """Times of a network on every accelerator, fitted once each."""

    def __init__(self, measurements: Sequence[Measurement], network: Network) -> None:
        """``network``: on the showers that are trained with."""
        self.network = network
        usual = network_of_preset(network.network) or network
        own, preset = (f"{n.cells} cells and {n.gflop_per_shower:.3g} GFLOP a shower" for n in (network, usual))
        self._other_showers = () if network.has_step_of(usual) else (f"{own}; the preset {usual.network} has {preset}",)
        self._measurements = measurements
        self._fitted: dict[tuple[str, str], Timing] = {}

    def of(self, provider: str, accelerator: str) -> Timing:
        """Times on an accelerator of a provider: measured, or estimated from another accelerator or network."""
        key = (provider, accelerator)
        if key not in self._fitted:
            measured = None if self._other_showers else self._measured(*key)
            timing = measured or self._estimated(find_accelerator(accelerator))
            self._fitted[key] = replace(timing, caveats=(*timing.caveats, *self._other_showers))
        return self._fitted[key]

    def _measured(self, provider: str, accelerator: str) -> Timing | None:
        own = [m for m in self._measurements if (m.network, m.accelerator) == (self.network.network, accelerator)]
        if not own:
            return None
        here = [m for m in own if m.provider == provider]
        there = own[0].provider
        rows = here or [m for m in own if m.provider == there]
        basis = f"{len(rows)} runs measured on {accelerator}{'' if here else f' at {there}'}"
        timing = _fit(rows, self._measurements, self.network, basis)
        if here:
            return timing
        here_is = "on these machines" if provider == "none" else f"at {provider}"
        return replace(timing, caveats=(f"measured at {there}, not {here_is}",))

    def _estimated(self, accelerator: Accelerator) -> Timing:
        key = (self.network.network, accelerator.accelerator)
        own = any((m.network, m.accelerator) == key for m in self._measurements)  # on the cells of the preset
        base = accelerator if own else find_accelerator(accelerator.estimated_from)
        there = [m for m in self._measurements if m.accelerator == base.accelerator]
        measured = {m.network for m in there}
        known = self.network.network if self.network.network in measured else "variable-angle"
        rows = [m for m in there if m.network == known]
        rows = [m for m in rows if m.provider == "gcp"] or rows
        if not rows:
            problem = f"there is no measurement to estimate {accelerator.accelerator} from"
            remedy = f"add one of {self.network.network} or variable-angle on {base.accelerator}"
            raise InputError(problem, field="measurements", remedy=remedy)
        network = network_of_preset(known) or self.network
        timing = _fit(rows, self._measurements, network, "")
        arithmetic = self.network.gflop_per_shower / network.gflop_per_shower
        base_peak, base_bandwidth = base.peak_tflops / base.replicas, base.bandwidth_gb_per_s / base.replicas
        ratios = [
            arithmetic * base_peak / (accelerator.peak_tflops / accelerator.replicas),
            arithmetic * base_bandwidth / (accelerator.bandwidth_gb_per_s / accelerator.replicas),
        ]
        factor = float(np.sqrt(ratios[0] * ratios[1]))
        is_other = known != self.network.network
        margin, error = (OTHER_NETWORK_MARGIN, OTHER_NETWORK_ERROR) if is_other else (UNMEASURED_MARGIN, 0.0)
        low, high = min(ratios) / margin, max(ratios) * margin
        caveats = [] if own else [f"no measurement of {self.network.network} on {accelerator.accelerator}"]
        if is_other:
            fixed = timing.test[0] + EPOCH_OVERHEAD_SECONDS
            caveats.append(f"{fixed:.1f} s of an epoch in addition to its showers are those of {known}: may be none")
        basis = (
            f"{'scaled' if own else 'unmeasured'}: {base.accelerator} with {known} x {factor:.2g}, "
            f"between the ratios of peak and bandwidth ({low:.2g} to {high:.2g} with a margin)"
        )
        return Timing(
            models=tuple(replace(m, scaled=(factor, low, high), agreement_error=error) for m in timing.models),
            test=timing.test * [1, factor],
            start=timing.start,
            measured=False,
            basis=basis,
            caveats=tuple(caveats),
            fixed_error=error or TEST_PASS_ERROR,
        )


def _fit(rows: Sequence[Measurement], everything: Sequence[Measurement], network: Network, basis: str) -> Timing:
    alike = [m for m in everything if m.network == network.network]
    tested = [m for m in rows if m.test_seconds] or [m for m in alike if m.test_seconds]
    started = [m for m in rows if m.first_step_seconds] or [m for m in alike if m.first_step_seconds]
    test = _line([m.test_seconds for m in tested], [m.showers / m.replicas for m in tested])
    sizes = [m.replicas / m.workers for m in started]
    if len(set(sizes)) == 1:  # how it depends on them is not known: it is what was measured
        sizes = [0.0] * len(sizes)
    start = _line([m.first_step_seconds for m in started], sizes)
    pooled = _pooled(alike, network, rows[0].provider)
    models = tuple(fit_steps(rows, network, form, pooled=pooled) for form in FORMS)
    return Timing(models=models, test=test, start=start, measured=True, basis=basis)


def _pooled(measurements: Sequence[Measurement], network: Network, provider: str) -> tuple[float, int]:
    """Scatter of new runs at a provider, pooled over its accelerators that have rows to spare, or over all."""
    groups: dict[tuple[str, str], list[Measurement]] = {}
    for m in measurements:
        groups.setdefault((m.provider, m.accelerator), []).append(m)
    enough = {key: rows for key, rows in groups.items() if len(rows) >= ENOUGH_ROWS}
    here = {key: rows for key, rows in enough.items() if key[0] == provider} or enough
    fitted = [fit_steps(rows, network) for rows in here.values()]
    freedom = sum(model.freedom for model in fitted)
    if not freedom:
        return DEFAULT_SCATTER
    return float(np.sqrt(sum(model.freedom * model.scatter**2 for model in fitted) / freedom)), freedom


def _line(values: Sequence[float | None], x: Sequence[float]) -> Numbers:
    """Non-negative intercept and slope by relative errors; zeros when there are no values."""
    y = np.array(values, float)
    if not len(y):
        return np.zeros(2)
    design = np.column_stack([np.ones(len(y)), x])
    from scipy.optimize import nnls  # loaded when needed: half a second

    return np.asarray(nnls(design / y[:, None], np.ones(len(y)))[0])
