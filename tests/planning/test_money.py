import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.planning.billing.bill import bill
from caloscale.planning.billing.usage import Attempt, NodeUse, RunUse
from caloscale.planning.catalogue.hardware import Slice
from caloscale.planning.catalogue.prices import CENT, SMALL_UNIT, Key, load_prices, split_exactly
from caloscale.planning.search.offers import find_offers
from caloscale.spec import Hardware

TODAY = dt.date(2026, 11, 21)
PRICES = load_prices()
N1_STANDARD_2 = 2 * 0.031611 + 7.5 * 0.004237  # USD per hour, us-central1, on demand
OWN = {"machine_type": "n1-standard-2", "region": "us-central1", "capacity_type": "on-demand"}


def own_run(*seconds: float) -> RunUse:
    attempts = tuple(Attempt(nodes=(NodeUse(**OWN, nodes=1, seconds=s),), shower_seconds=s) for s in seconds)
    return RunUse(name="mine", day=TODAY, attempts=attempts, own_machine=True, epochs=1)


def test_an_hour_of_every_node_costs_in_the_bill_what_it_costs_in_the_estimate():
    offers, _, _ = find_offers(Hardware(), PRICES, TODAY)
    slices = 0
    for offer in offers:
        if isinstance(offer.hardware, Slice):  # v5e 2x4 exists on two machine types, with other numbers of hosts
            slices, sold = slices + 1, (offer.hardware.price_kind, offer.hardware.price_sku)
            price = PRICES.find(Key("gcp", offer.region, *sold, offer.capacity_type), TODAY).usd_per_unit_hour
            whole = price * (offer.hardware.chips if sold[0] == "tpu_chip" else 1)
            assert offer.rate.usd_per_hour * offer.hardware.hosts == pytest.approx(whole)
        held = NodeUse(
            **offer.hardware.values_of("provider", "machine_type", "per_node", "topology"),
            accelerator=offer.accelerator.accelerator,
            region=offer.region,
            capacity_type=offer.capacity_type,
            nodes=offer.node_counts[0],
            seconds=3.6e6,
        )
        made = bill(RunUse(name="x", day=TODAY, attempts=(Attempt(nodes=(held,)),), epochs=0), PRICES)
        assert made.usd == pytest.approx(1000 * held.nodes * offer.rate.usd_per_hour, abs=0.01)
        (node,) = made.nodes
        assert sum(part.usd_per_hour for part in node.rate_parts) == pytest.approx(node.usd_per_node_hour)
    assert slices > 10 and len(offers) - slices > 10


def test_a_million_showers_by_hand():
    fast, slow = ((NodeUse(**OWN, nodes=1, seconds=0), speed) for speed in (100, 1))
    made = bill(own_run(3600), PRICES, generation=fast, monte_carlo=slow)
    million = made.per_million_showers
    assert million.monte_carlo_usd == pytest.approx(N1_STANDARD_2 * 1000 / 3.6)  # rate x ms per shower / 3.6
    assert million.generated_usd == pytest.approx(N1_STANDARD_2 * 10 / 3.6)
    assert made.usd == 0.095 and million.training_usd == pytest.approx(N1_STANDARD_2)
    assert million.generated_with_training_usd == pytest.approx(million.generated_usd + N1_STANDARD_2)
    many = million.break_even_showers / 1e6
    assert N1_STANDARD_2 + many * million.generated_usd == pytest.approx(many * million.monte_carlo_usd)
    assert bill(own_run(1), PRICES).per_million_showers is None
    assert bill(own_run(1), PRICES, generation=fast).per_million_showers.monte_carlo_usd is None
    assert bill(own_run(1), PRICES, generation=slow, monte_carlo=fast).per_million_showers.break_even_showers is None
    assert bill(own_run(1), PRICES, generation=fast, monte_carlo=fast).per_million_showers.break_even_showers is None


@given(st.lists(st.floats(0, 1e7), max_size=20))
def test_split_money_adds_up_and_no_part_moves_by_more_than_a_cent(amounts):
    total, parts = split_exactly(amounts)
    assert sum(parts, Decimal(0)) == total
    assert abs(total - sum(map(Decimal, amounts))) <= CENT / 2 + Decimal("1e-6")
    assert all(abs(part - Decimal(amount)) < CENT + Decimal("1e-6") for part, amount in zip(parts, amounts))


def test_halves_are_rounded_up_and_missing_units_go_to_the_largest_remainders():
    assert [split_exactly([amount])[0] for amount in (0.005, 0.015, 0.025)] == [Decimal(n) / 100 for n in (1, 2, 3)]
    assert split_exactly([0.004, 0.009, 0.008]) == (Decimal("0.02"), [Decimal(n) / 100 for n in (0, 1, 1)])
    assert split_exactly([0.005, 0.005])[1] == [CENT, Decimal(0)]  # the first of equal ones
    assert split_exactly([0.00005], SMALL_UNIT) == (SMALL_UNIT, [SMALL_UNIT])
    assert split_exactly([]) == (Decimal(0), [])
