"""The model of the exchanges against closed forms."""

import numpy as np
import pytest

from caloscale.studies.exchange import Ranks
from caloscale.studies.exchange_events import ExchangePlan, Link, Network, simulate
from tests.sagips.vectors import groups_of_sizes

NETWORK = Network(within=Link(1e-6, 1e10), between=Link(1e-5, 1e9), window=Link(2e-6, 5e9))
SIZE = 200_000
FREE = Network(*[Link(0.0, 1e30)] * 3)


def plan(method, sizes, outer_every=5):
    return ExchangePlan(method, groups_of_sizes(sizes), SIZE, outer_every)


def exchange_seconds(made):
    """Time of a rank's epoch that is not computing, the mean over ranks and epochs."""
    return (made.ended[-1] - made.computing.sum(0)).mean() / len(made.ended)


def test_without_stragglers_messages_take_their_closed_forms():
    same = np.full((20, 12), 0.5)
    within, between = NETWORK.within.seconds(SIZE), NETWORK.between.seconds(SIZE)
    # A ring over three groups waits in each step for the messages between groups.
    assert simulate(plan("ring", [4, 4, 4]), same, NETWORK).seconds_per_epoch == pytest.approx(0.5 + 11 * between)
    assert exchange_seconds(simulate(plan("ring", [12]), same, NETWORK)) == pytest.approx(11 * within)
    all_reduce = 22 * 1e-5 + 22 / 12 * SIZE / 1e9
    assert exchange_seconds(simulate(plan("all-reduce", [4, 4, 4]), same, NETWORK)) == pytest.approx(all_reduce)
    assert exchange_seconds(simulate(plan("none", [4, 4, 4]), same, NETWORK)) == 0
    grouped = simulate(plan("grouped-ring", [4, 4, 4], outer_every=100), same, NETWORK)
    assert exchange_seconds(grouped) == pytest.approx(3 * within)
    outer = simulate(plan("grouped-ring", [4, 4, 4], outer_every=5), same, NETWORK)
    # Epochs 4, 9, 14, 19 of 1 to 20: leaders wait for leaders, and their groups for them in the epoch after.
    assert outer.ended[-1, 0] - 20 * 0.5 == pytest.approx(20 * 3 * within + 4 * 2 * between)
    uneven = simulate(plan("grouped-ring", [1, 3, 2], outer_every=100), same[:, :6], NETWORK)
    np.testing.assert_allclose(uneven.ended[-1] - 10, 20 * within * np.array([0, 2, 2, 2, 1, 1]))


def test_a_synchronous_exchange_waits_for_the_slowest_rank():
    times = np.random.default_rng(3).exponential(size=(40_000, 6))
    made = simulate(plan("all-reduce", [6]), times, FREE)
    # The mean maximum of n exponential times is the harmonic number.
    assert made.seconds_per_epoch == pytest.approx(sum(1 / k for k in range(1, 7)), rel=0.02)
    assert simulate(plan("ring", [6]), times[:50], FREE).ended[-1] == pytest.approx(
        simulate(plan("all-reduce", [6]), times[:50], FREE).ended[-1]
    )


def test_with_remote_memory_nobody_waits():
    times = np.random.default_rng(4).exponential(size=(300, 8))
    made = simulate(plan("grouped-rma", [4, 4], outer_every=1000), times, FREE)
    np.testing.assert_allclose(made.ended, times.cumsum(0))
    assert made.slots == 300 * 8 * 3 and made.counts.stale <= made.counts.contributions
    leading = simulate(plan("grouped-rma", [4, 4], outer_every=1), times, FREE)
    followers = [1, 2, 3, 5, 6, 7]
    np.testing.assert_allclose(leading.ended[:, followers], times.cumsum(0)[:, followers])
    # Two leaders meet in every epoch: each ends with the slower one.
    np.testing.assert_allclose(leading.ended[-1, [0, 4]], times[:, [0, 4]].max(1).sum())


def test_of_a_slower_neighbour_gradients_are_repeated_and_of_a_faster_one_lost():
    times = np.tile([1.0, 3.5], (300, 1))
    made = simulate(plan("grouped-rma", [2], outer_every=1000), times, FREE)
    # Rank 0 finds something new in every 3.5th of its epochs, and is then at the end. Until then rank 1 always does.
    fresh = 300 / 3.5
    assert made.counts.missing == 3
    assert made.counts.contributions == pytest.approx(2 * fresh, abs=2)
    assert made.counts.repeated == pytest.approx(2 * (300 - fresh) - 3, abs=2)
    # What rank 0 reads is older than its own epoch, what rank 1 reads is newer.
    assert made.counts.stale == pytest.approx(fresh, abs=1)


def test_ranks_in_step_find_everything_and_remote_memory_takes_its_copies():
    # Rank by rank a little later, so that the left neighbour of all but rank 0 has always written.
    offsets = np.array([0.0, 0.1, 0.2, 0.3])
    times = np.full((50, 4), 1.0)
    times[0] += offsets
    made = simulate(plan("grouped-rma", [4], outer_every=1000), times, FREE)
    # In the first epoch rank r finds what the r ranks before it have sent; then rank 0 finds what is an epoch old.
    assert (made.counts.missing, made.counts.repeated) == (3 + 2 + 1, 0)
    assert made.counts.stale == 49 * (3 + 2 + 1)
    cost = simulate(plan("grouped-rma", [4], outer_every=1000), times, NETWORK)
    copy = SIZE / 5e9
    assert cost.ended[-1, 3] - times[:, 3].sum() == pytest.approx(50 * (copy + 6 * 2e-6 + (3 + 3 + 2) * copy))


def test_straggling_times_have_the_mean_and_width_they_are_asked_for():
    ranks = {"epochs": 2000, "ranks": 100, "compute_milliseconds": 500}
    times = Ranks(**ranks, width=0.1).computing_seconds()
    assert times.mean() == pytest.approx(0.5, rel=2e-3) and times.std() / times.mean() == pytest.approx(0.1, rel=0.02)
    slow = Ranks(**ranks, stragglers=0.02, straggler_factor=3).computing_seconds()
    assert (slow > 1).mean() == pytest.approx(0.02, rel=0.1)
    np.testing.assert_allclose(np.unique(slow.round(9)), [0.5, 1.5])
