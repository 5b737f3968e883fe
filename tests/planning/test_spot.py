from functools import partial

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar

from caloscale.planning.search.spot import NEVER_SECONDS, break_even_rate, daly_seconds, expected
from tests.planning.event_simulation import mean_run

HOUR = 3600.0


@pytest.mark.parametrize(
    ("work_h", "nodes", "per_node_hour", "save", "start_up", "tau", "lifetime", "runs"),
    [
        (40, 1, 0.05, 5, 200, None, np.inf, 400),
        (40, 4, 0.05, 5, 400, None, np.inf, 400),
        (60, 16, 0.05, 10, 600, None, np.inf, 400),
        (100, 8, 0.02, 30, 300, 3600, np.inf, 400),
        (30, 2, 0.5, 20, 900, None, np.inf, 400),
        (400, 1, 0.0, 10, 900, 1800, 24 * HOUR, 60),
        (400, 1, 0.02, 10, 900, 1800, 24 * HOUR, 60),
    ],
)
def test_formula_agrees_with_the_event_simulation(work_h, nodes, per_node_hour, save, start_up, tau, lifetime, runs):
    """Also of machines that end after a day."""
    mean = HOUR / (nodes * per_node_hour) if per_node_hour else np.inf
    run = expected(work_h * HOUR, mean, save, start_up, tau, lifetime)
    setup = {"work": work_h * HOUR, "nodes": nodes, "per_node_rate": per_node_hour / HOUR, "save": save}
    tau = float(run.checkpoint_seconds)
    seconds, interruptions, _ = mean_run(runs, **setup, start_up=start_up, tau=tau, lifetime=lifetime)
    assert float(run.seconds) == pytest.approx(seconds, rel=0.03)
    assert float(run.interruptions) == pytest.approx(interruptions, rel=0.1)


@pytest.mark.parametrize(
    ("per_node_hour", "nodes", "lost", "lifetime"),
    [
        *((rate, nodes, lost, np.inf) for rate, nodes, lost in ((0.2, 1, 1), (4, 1, 1), (0.1, 4, 1), (0.5, 4, 4))),
        *((rate, nodes, 1, np.inf) for rate, nodes in ((0.5, 4), (0.1, 16))),  # several are awaited at once
        *((rate, 1, 1, 24 * HOUR) for rate in (0.2, 1)),
    ],
)
def test_machines_that_are_awaited_are_not_lost(per_node_hour, nodes, lost, lifetime):
    """The others of a job are; a slice is awaited as a whole. An hour to a new machine."""
    mean, start_up = HOUR / (nodes * per_node_hour), 70
    times = {"lifetime_seconds": lifetime, "provisioning_seconds": HOUR}
    run = expected(10 * HOUR, mean, 5, start_up, **times, awaited=lost / nodes)
    setup = {"work": 10 * HOUR, "nodes": nodes, "per_node_rate": per_node_hour / HOUR, "save": 5, "start_up": start_up}
    tau = float(run.checkpoint_seconds)
    seconds, interruptions, waiting = mean_run(300, **setup, tau=tau, lifetime=lifetime, provisioning=HOUR, lost=lost)
    assert float(run.seconds) == pytest.approx(seconds, rel=0.05)
    assert float(run.interruptions) == pytest.approx(interruptions, rel=0.05)
    assert float(run.waiting_seconds) == pytest.approx(waiting, rel=0.08)


def test_a_machine_s_lifetime_begins_when_it_is_there():
    """A day of work of each machine, 18 hours to the next one."""
    run = expected(240 * HOUR, np.inf, 0, 0, 600, 24 * HOUR, 18 * HOUR)
    assert float(run.seconds) == pytest.approx(10 * (24 + 18) * HOUR)
    assert float(run.interruptions) == pytest.approx(10)
    assert np.isfinite(expected(240 * HOUR, np.inf, 0, 0, 600, 24 * HOUR, 24 * HOUR).seconds)


@pytest.mark.parametrize("mean", [np.inf, 1e4, 1e5])
def test_machines_that_live_longer_are_no_slower(mean):
    """A lifetime that had no whole number of checkpoints would lose what comes after the last one."""
    lives = np.linspace(6, 48, 500) * HOUR
    seconds = expected(1e6, mean, 10, 400, lifetime_seconds=lives, provisioning_seconds=300).seconds
    assert np.max(seconds / np.minimum.accumulate(seconds)) < 1.0005


@given(
    mean=st.floats(1e2, 1e6),
    times=st.floats(1, 50),
    provisioning=st.floats(0, 7200),
    start_up=st.floats(10, 500),
    save=st.floats(1, 60),
)
def test_time_and_paid_seconds_of_one_machine_only_grow_with_interruptions(mean, times, provisioning, start_up, save):
    few, many = (
        expected(1e5, each, save, start_up, provisioning_seconds=provisioning) for each in (mean, mean / times)
    )
    assert many.seconds >= few.seconds * (1 - 1e-9)
    assume(many.seconds < NEVER_SECONDS)
    assert many.seconds - many.waiting_seconds >= (few.seconds - few.waiting_seconds) * (1 - 1e-6)
    assert few.seconds - few.waiting_seconds >= 1e5 * (1 - 1e-6)


@given(save=st.floats(0.5, 100), hours=st.floats(0.5, 500))
def test_daly_s_interval_is_next_to_the_numerical_optimum(save, hours):
    mean = hours * HOUR
    best = minimize_scalar(
        lambda log: float(expected(1e6, mean, save, 300, np.exp(log)).seconds), bounds=(0, 14), method="bounded"
    )
    with_daly = float(expected(1e6, mean, save, 300, daly_seconds(save, mean)).seconds)
    assert with_daly <= best.fun * 1.001


def test_daly_is_young_s_interval_for_rare_failures_and_is_bounded():
    """Young: sqrt(2 C M)."""
    assert float(daly_seconds(5, 1e7)) == pytest.approx(10_000, rel=1e-3)
    assert float(daly_seconds(100, 40)) == 40


def test_no_interruptions_cost_nothing():
    run = expected(7200, np.inf, 5, 300)
    assert float(run.seconds) == 7200
    assert float(run.interruptions) == 0
    assert np.isinf(run.checkpoint_seconds)


def test_a_job_that_cannot_get_past_its_interruptions_never_ends():
    assert np.isinf(expected(HOUR, np.inf, 5, 25 * HOUR, 600, 24 * HOUR).seconds)
    assert float(expected(10 * HOUR, 60, 5, 300).seconds) > 100 * HOUR


@given(
    work=st.floats(100, 1e6),
    mean=st.floats(1e3, 1e7),
    save=st.floats(1, 60),
    start_up=st.floats(10, 2000),
    unit=st.floats(1e-3, 1e3),
)
def test_expectations_do_not_depend_on_the_unit_of_time(work, mean, save, start_up, unit):
    seconds = expected(work, mean, save, start_up, lifetime_seconds=86_400)
    other = expected(work * unit, mean * unit, save * unit, start_up * unit, lifetime_seconds=86_400 * unit)
    assume(np.isfinite(seconds.seconds) and work * unit > 1)
    assert float(other.seconds) == pytest.approx(float(seconds.seconds) * unit, rel=1e-6)
    assert float(other.interruptions) == pytest.approx(float(seconds.interruptions), rel=1e-6)


def test_break_even_is_where_both_cost_the_same():
    def spot_usd(save, provisioning, per_node_hour):
        spot = expected(
            100_000,
            HOUR / (4 * per_node_hour),
            save,
            400 - provisioning,
            provisioning_seconds=provisioning,
            awaited=0.25,
        )
        return float(spot.seconds - spot.waiting_seconds / 4) * 6

    rate, unpaid = (break_even_rate(partial(spot_usd, 5, wait), 100_000 * 20) for wait in (0, 300))
    assert unpaid > rate and spot_usd(5, 300, unpaid) == pytest.approx(100_000 * 20, rel=1e-6)
    assert break_even_rate(partial(spot_usd, 5, 0), 100_000 * 5.7) is None
    assert break_even_rate(partial(spot_usd, 1e7, 0), 100_000 * 20) is None  # one checkpoint costs more than it spares
