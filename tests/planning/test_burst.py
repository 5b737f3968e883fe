"""A mix of one's own machines and a cloud: against all mixes, and by the command."""

from __future__ import annotations

import datetime as dt
import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.errors import ConfigurationError
from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices
from caloscale.planning.search.burst import Machines, find_mix, plan_burst
from caloscale.spec import load_run

OWN = ("hardware.cloud=none", "hardware.accelerator=nvidia-tesla-v100", "hardware.perNode=4", "hardware.maxNodes=2")
CLOUD = ("hardware.cloud=gcp", "hardware.region=europe-west4", "hardware.maxNodes=4")
number = st.integers(1, 50)
rows = st.lists(st.tuples(st.integers(0, 20), number, st.integers(0, 9)), max_size=5)


def machines(found) -> Machines:
    return Machines(*(np.array([row[k] for row in found], float) for k in range(3)))


def all_mixes(own, cloud, epochs):
    """(dollars, seconds, epochs of one's own machines) of every pair of machines and every division of the epochs."""

    def costs(kinds, trained):
        times = [(start + trained * epoch, rate) for start, epoch, rate in kinds]
        return [(seconds * rate, seconds) for seconds, rate in times] if trained else [(0, 0)]

    for trained in range(epochs + 1):
        for (usd, seconds), (more, later) in itertools.product(costs(own, trained), costs(cloud, epochs - trained)):
            yield usd + more, seconds + later, trained


@given(rows, rows, st.integers(1, 6), st.integers(1, 400))
def test_the_mix_is_the_cheapest_of_all_mixes(own, cloud, epochs, deadline):
    mix = find_mix(machines(own), machines(cloud), epochs, deadline)
    allowed = [each for each in all_mixes(own, cloud, epochs) if each[1] <= deadline]
    if not allowed:
        assert mix is None
        return
    assert mix is not None and mix.seconds <= deadline
    assert (mix.usd, mix.seconds, mix.own_epochs) in allowed
    usd, trained = min(each[0] for each in allowed), mix.own_epochs
    assert mix.usd == usd
    assert trained == max(each[2] for each in allowed if each[0] == usd)
    assert (mix.own is None) == (trained == 0) and (mix.cloud is None) == (trained == epochs)


@given(rows, rows, st.integers(1, 6), st.integers(1, 400), number)
def test_a_later_deadline_is_never_more_expensive(own, cloud, epochs, deadline, more):
    early = find_mix(machines(own), machines(cloud), epochs, deadline)
    late = find_mix(machines(own), machines(cloud), epochs, deadline + more)
    assert early is None or (late is not None and late.usd <= early.usd)


def burst_of(*changes, own=OWN, cloud=CLOUD):
    base = ("train.batchPerReplica=96", *own, *changes)
    run, rest = (load_run(preset="variable-angle", overrides=each) for each in (base, (*base, *cloud)))
    return plan_burst(run, rest, load_prices(), load_measurements(), dt.date(2026, 11, 21))


def test_own_machines_train_what_they_can_and_a_cloud_the_rest():
    mix = burst_of("budget.deadline=6h")
    own, cloud = mix.shares
    assert (own.cloud, own.count, own.usd, cloud.cloud) == ("none", 8, None, "gcp")
    assert own.epochs + cloud.epochs == mix.epochs == 60 and 0 < own.epochs <= mix.own_epochs_by_deadline < 60
    assert own.seconds + cloud.seconds == pytest.approx(mix.total_seconds) and mix.total_seconds <= 6 * 3600
    assert mix.usd == cloud.usd and mix.meets_limits
    assert not burst_of("budget.deadline=6h", f"budget.maxUsd={mix.usd / 2}").meets_limits
    (alone,) = burst_of("budget.deadline=9h").shares
    assert alone.cloud == "none" and alone.epochs == 60
    nothing = burst_of("budget.deadline=5m")
    assert nothing.shares == () and nothing.usd is None and not nothing.meets_limits


@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("hardware.cloud", {"own": ("hardware.cloud=gcp",)}),
        ("--burst", {"cloud": ()}),
        ("--burst", {"cloud": (*CLOUD, "train.epochs=9")}),
    ],
)
def test_bad_input_is_named(field, arguments):
    with pytest.raises(ConfigurationError) as raised:
        burst_of("budget.deadline=6h", **arguments)
    assert raised.value.field == field
    with pytest.raises(ConfigurationError, match=r"budget\.deadline"):
        burst_of()
