from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.errors import InputError, PriceError
from caloscale.planning.cost import StageUse, price_run
from caloscale.planning.money import CENT, split_exactly
from caloscale.planning.prices import load_prices
from caloscale.spec import PricedMachine

TODAY = dt.date(2026, 11, 21)
PRICES = load_prices()


def use(name: str, seconds: float) -> StageUse:
    return StageUse(name=name, seconds=seconds, core_seconds=2 * seconds)


def test_a_run_costs_its_hours_at_the_rate():
    cost = price_run([use("simulate", 3600), use("train", 7200)], PricedMachine(), PRICES, TODAY)
    assert cost.usd_per_hour == pytest.approx(2 * 0.031611 + 7.5 * 0.004237)
    assert cost.usd == 0.285  # 3 hours at 0.0949995, to a hundredth of a cent
    assert [stage.usd for stage in cost.stages] == [0.095, 0.19]
    assert cost.prices_observed_on == dt.date(2026, 1, 1)
    assert "not converted" in cost.note


def test_a_million_showers_by_hand():
    cost = price_run(
        [use("train", 3600)], PricedMachine(), PRICES, TODAY, generated_per_second=100, monte_carlo_per_second=1
    )
    per_million = cost.per_million_showers
    assert per_million.monte_carlo_usd == pytest.approx(0.0949995 * 1000 / 3.6)  # rate x ms per shower / 3.6
    assert per_million.generated_usd == pytest.approx(0.0949995 * 10 / 3.6)
    assert per_million.generated_with_training_usd == pytest.approx(per_million.generated_usd + cost.usd)
    many = per_million.break_even_showers / 1e6
    assert cost.usd + many * per_million.generated_usd == pytest.approx(many * per_million.monte_carlo_usd)


def test_speeds_that_were_not_measured_are_absent_and_nonsense_is_refused():
    assert price_run([], PricedMachine(), PRICES, TODAY).per_million_showers is None
    only = price_run([use("train", 1)], PricedMachine(), PRICES, TODAY, generated_per_second=5).per_million_showers
    assert only.monte_carlo_usd is None and only.break_even_showers is None
    slow = price_run(
        [use("train", 1)], PricedMachine(), PRICES, TODAY, generated_per_second=1, monte_carlo_per_second=2
    ).per_million_showers
    assert slow.break_even_showers is None
    for speed in (0, -1, float("nan")):
        with pytest.raises(InputError, match="positive"):
            price_run([], PricedMachine(), PRICES, TODAY, generated_per_second=speed)


def test_a_missing_price_is_an_error():
    with pytest.raises(PriceError, match="add a row"):
        price_run([use("train", 1)], PricedMachine(region="mars-east1"), PRICES, TODAY)
    with pytest.raises(InputError, match="did you mean"):
        price_run([use("train", 1)], PricedMachine(machine_type="n1-standard-3"), PRICES, TODAY)


@given(st.lists(st.floats(0, 1e6), max_size=12))
def test_stages_add_up_to_the_total_exactly(seconds):
    cost = price_run([use(f"s{i}", s) for i, s in enumerate(seconds)], PricedMachine(), PRICES, TODAY)
    assert sum((Decimal(str(stage.usd)) for stage in cost.stages), Decimal(0)) == Decimal(str(cost.usd))
    assert cost.usd == pytest.approx(sum(seconds) / 3600 * cost.usd_per_hour, abs=1e-4)


@given(st.lists(st.floats(0, 1e7), max_size=20))
def test_split_money_adds_up_and_no_part_moves_by_more_than_a_cent(amounts):
    total, parts = split_exactly(amounts)
    assert sum(parts, Decimal(0)) == total
    assert abs(total - sum(map(Decimal, amounts))) <= CENT / 2 + Decimal("1e-6")
    assert all(abs(part - Decimal(amount)) < CENT + Decimal("1e-6") for part, amount in zip(parts, amounts))


def test_negative_money_is_refused():
    with pytest.raises(ValueError, match="negative"):
        split_exactly([1, -1])
