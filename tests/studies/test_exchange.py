"""Exchanges of real processes with imitated computing, and the model beside them."""

import pytest

from caloscale.sagips.remote_memory import Counts
from caloscale.studies.exchange import ExchangeInputs, bandwidth, model_events, shares_of, time_exchange

SMALL = {"ranks": 2, "epochs": 10, "tensors": [300, 40]}


@pytest.mark.parametrize(
    ("speeds", "total", "shares"),
    [([1, 1, 1, 1], 16, [4, 4, 4, 4]), ([3, 1], 10, [7, 3]), ([1, 1, 1], 10, [4, 3, 3]), ([1e6, 1, 1], 6, [4, 1, 1])],
)
def test_shares_follow_the_speeds(speeds, total, shares):
    assert shares_of(speeds, total) == shares and sum(shares) == total


def test_groups_are_equal_but_for_the_last():
    assert ExchangeInputs(ranks=7, group=3).groups() == ((0, 1, 2), (3, 4, 5), (6,))


def test_shares_count_the_slots_of_remote_memory_in_the_groups():
    """Groups of two and of one; leaders' messages are contributions, too, but no slots."""
    ranks = ExchangeInputs(method="grouped-rma", ranks=3, group=2)
    counts = [
        Counts(exchanges=10, contributions=9, stale=3, age=8, repeated=2, missing=1),
        Counts(exchanges=10, contributions=5, stale=1, age=4, repeated=4, missing=1),
        Counts(exchanges=10, contributions=6),
    ]
    assert ranks.slot_shares(counts) == {"staleShare": 4 / 20, "newShare": 12 / 20, "age": 12 / 12}
    nothing = [Counts(exchanges=4, missing=4)] * 2
    assert ExchangeInputs(method="grouped-rma", ranks=2).slot_shares(nothing) == {
        "staleShare": 0, "newShare": 0, "age": None,
    }  # fmt: skip
    for other in (ExchangeInputs(method="ring", ranks=3), ExchangeInputs(method="grouped-rma", ranks=3, group=1)):
        assert set(other.slot_shares(counts).values()) == {None}


@pytest.mark.parametrize(("seconds", "found"), [(3.0, 500.0), (1.0, None), (0.5, None)])
def test_a_bandwidth_that_the_times_do_not_show_is_none(seconds, found):
    assert bandwidth(1000, 1.0, seconds) == found


@pytest.mark.integration
@pytest.mark.parametrize("method", ["ring", "grouped-rma", "chunked-ring", "hierarchical"])
def test_no_rank_ends_before_it_has_computed(method):
    found = time_exchange({**SMALL, "tensors": [340], "method": method, "computeMilliseconds": 3, "width": 0.2})
    assert found["epochMilliseconds"] >= found["computingMilliseconds"] >= 3 * 0.5
    assert found["samplesPerSecond"] == pytest.approx(2 * 16 * 1000 / found["epochMilliseconds"])
    assert (found["newShare"] is None) == (method != "grouped-rma")
    assert (found["modelled"] is None) == (method == "hierarchical")
    assert all(value is None or value > 0 for value in found["links"].values()) and found["shares"] == [16, 16]
    if method == "grouped-rma":
        assert 0 <= found["staleShare"] <= found["newShare"] <= 1


@pytest.mark.integration
def test_a_slow_worker_gets_fewer_samples():
    slow = {"computeMilliseconds": 2, "slowSampleMilliseconds": 2.0, "epochs": 12, "ranks": 2}
    equal = time_exchange({**slow, "method": "chunked-ring"})
    shared = time_exchange({**slow, "method": "chunked-ring", "rebalanceEvery": 3})
    assert sum(shared["shares"]) == 32 and shared["shares"][1] < 8 < equal["shares"][1] == 16


@pytest.mark.integration
@pytest.mark.parametrize(("method", "bound", "most"), [("bounded", 0, 1), ("asynchronous", 2, 20)])
def test_servers_count_staleness_and_keep_their_bound(method, bound, most):
    found = time_exchange({**SMALL, "method": method, "bound": bound, "slowMilliseconds": 2})
    assert 0 <= found["staleness"]["mean"] <= found["staleness"]["max"] <= most
    if method == "bounded":
        assert found["lead"] <= bound


def test_the_model_of_many_ranks_without_exchange_computes_only():
    found = model_events({"method": "none", "ranks": 40, "computeMilliseconds": 20})
    assert found["epochMilliseconds"] == pytest.approx(20) and found["computingShare"] == pytest.approx(1)
    slower = model_events({"method": "ring", "ranks": 40, "computeMilliseconds": 20, "latencySeconds": 1e-3})
    # 39 messages around the ring, each of them at least the latency between nodes
    assert slower["epochMilliseconds"] > 20 + 39
