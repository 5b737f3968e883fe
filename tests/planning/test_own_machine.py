"""Machines at hand: closed forms of what training, generating and simulating take on them."""

import datetime as dt
import shlex
from typing import Any

import pytest

from caloscale.errors import InputError
from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices
from caloscale.planning.search.candidates import Basis
from caloscale.planning.search.own_machine import (
    MachineSpeed,
    cells_of,
    detector_of,
    name_of_network,
    plan_making,
    plan_training,
    priced_machine,
    reference_speeds,
)
from caloscale.planning.search.plan import plan
from caloscale.report.blocks import markdown
from caloscale.report.plan import break_even_in_words, is_met, plan_blocks, verdict
from caloscale.spec import Run, load_run

DAY = dt.date(2026, 11, 21)
PRICES = load_prices()
N1_STANDARD_2 = 2 * 0.031611 + 7.5 * 0.004237  # USD per hour, us-central1, on demand
N1_STANDARD_8 = 4 * N1_STANDARD_2


def run_of(*overrides: str) -> Run:
    return load_run(preset="compact", overrides=("train.maxMinutes=null", "data.showers=1000000", *overrides))


def basis(run: Run) -> Basis:
    return Basis(run, PRICES, (), DAY)


def speed_of(run: Run, **fields: Any) -> MachineSpeed:
    usual: dict[str, Any] = {
        "machine_type": "n1-standard-2",
        "processor": "a processor",
        "cores": 2,
        "network": run.model.preset,
        "cells": cells_of(run.data),
        "detector": detector_of(run.data),
        "batch": run.train.replica_batch(1),
        "trained_per_second": 500.0,
        "generated_per_second": 250.0,
        "simulated_per_second": 10.0,
        "source": "run mine",
        "observed_on": DAY,
    }
    return MachineSpeed(**{**usual, **fields})


def test_the_generator_pays_from_where_both_cost_the_same() -> None:
    """n g + T + M m = n m."""
    run = run_of("data.showers=9000", "data.validationFraction=0.1")
    made = plan_making(basis(run), 3_600_000, [speed_of(run)], training_usd=2.0, is_planned=True)
    generated, simulated = 4 * N1_STANDARD_2 / 3.6e6, 100 * N1_STANDARD_2 / 3.6e6
    assert made.training_showers_usd == pytest.approx(10_000 * simulated)
    n = made.break_even_showers
    assert n is not None and n * simulated >= n * generated + 2 + 10_000 * simulated > (n - 1) * (simulated - generated)
    assert break_even_in_words(made).startswith(f"cheaper than Monte Carlo from {n:,} showers on: training 2.00 USD")
    own = run_of("data.source=mine.h5")
    of_files = plan_making(basis(own), 3_600_000, [speed_of(own)], training_usd=2.0, is_planned=True)
    assert of_files.training_showers_usd == 0
    assert of_files.break_even_showers == pytest.approx(2 / (simulated - generated), abs=1)


def test_a_generator_that_costs_more_than_monte_carlo_never_pays() -> None:
    run = run_of()
    slow = speed_of(run, generated_per_second=5.0)
    made = plan_making(basis(run), 1000, [slow], training_usd=2.0, is_planned=True)
    assert made.break_even_showers is None and "never cheaper" in break_even_in_words(made)


def test_a_machine_that_has_measured_nothing_has_an_answer() -> None:
    run = load_run(preset="compact")
    made = plan_making(basis(run), 1000, [])
    (row,) = (r for r in reference_speeds() if r.network == "compact")
    generator, geant4 = made.offers
    assert generator.reference and geant4.reference and made.training_reference
    assert (generator.showers_per_second, geant4.showers_per_second) == (
        row.generated_per_second,
        row.simulated_per_second,
    )
    assert made.break_even_showers is not None and "reference machine" in break_even_in_words(made)


def test_hours_of_a_machine_without_a_price_are_no_dollars() -> None:
    """The training is planned on one's own GPU: when the generator pays is not known."""
    own_gpu = [f"hardware.{field}" for field in ("cloud=none", "accelerator=nvidia-l4", "perNode=1")]
    made = plan(load_run(preset="flow", overrides=own_gpu), PRICES, load_measurements(), DAY, generate=1_000_000)
    assert made.chosen is not None and made.making is not None
    assert (made.making.training_usd, made.making.break_even_showers, made.making.training_reference) == (None,) * 3
    assert "is not known" in break_even_in_words(made.making)


def test_what_was_measured_replaces_the_reference() -> None:
    run = load_run(preset="compact")
    measured = speed_of(run, simulated_per_second=None)
    offers = {o.method: o for o in plan_making(basis(run), 1000, [measured]).offers}
    assert not offers["generator"].reference and offers["generator"].showers_per_second == 250
    assert offers["Monte Carlo"].reference
    other = load_run(preset="compact", overrides=["data.energyGev=[1, 2]"])
    of_other = {o.method: o for o in plan_making(basis(other), 1000, []).offers}
    assert of_other["generator"].reference and of_other["Monte Carlo"].showers_per_second is None  # another detector


@pytest.mark.parametrize("change", ["model.latentSize=128", "train.generatorUpdates=5", "train.precision=bfloat16"])
def test_speeds_of_other_settings_are_not_those_of_the_preset(change: str) -> None:
    """Only Geant4, which has no network, is as fast, and the generator where the training alone is another."""
    usual, other = run_of(), run_of(change)
    rows = [speed_of(usual), speed_of(other, network=name_of_network(other), trained_per_second=10.0, source="run b")]
    for run, row in zip((usual, other), rows):
        trained = plan_training(basis(run), rows)
        assert trained is not None and trained.seconds == pytest.approx(run.train.epochs * 1e6 / row.trained_per_second)
        assert plan_training(basis(run), [each for each in rows if each is not row]) is None
    made = plan_making(basis(other), 1000, rows[:1])
    same = 250.0 if change.startswith("train.") else None
    assert {o.method: o.showers_per_second for o in made.offers} == {"Monte Carlo": 10.0, "generator": same}
    assert name_of_network(usual) == "compact" != name_of_network(other)


def test_what_was_not_measured_is_listed_with_the_command_that_measures_it() -> None:
    """Another detector has another Geant4 speed, other cells another network: neither is invented."""
    run = run_of()
    lead = run_of("data.geometry.absorber=lead")
    plates = run_of("data.front=[{material: iron, thicknessMm: 200}]")
    fine = run_of("data.preprocessing.rebin=[1,1,1]")
    for other, expected in ((lead, {"generator"}), (plates, {"generator"}), (fine, set())):
        made = plan_making(basis(other), 1000, [speed_of(run)], rented=("a2-highgpu-1g",))
        assert {o.method for o in made.offers if o.showers_per_second} == expected
        absent = [o for o in made.offers if o.showers_per_second is None]
        assert (absent[0].hours, absent[0].usd, absent[0].machines) == (None, None, None)
        assert any("--measure --set budget.pricedAs.machineType=a2-highgpu-1g" in o.basis for o in absent)


@pytest.mark.parametrize(
    ("hardware", "listed"),
    [
        (("machineType=a2-highgpu-2g",), ("a2-highgpu-2g",)),
        (("accelerator=nvidia-tesla-t4", "perNode=1"), ("n1-standard-8 with 1 x nvidia-tesla-t4",)),
        (("accelerator=tpu-v3",), ()),
        (("cloud=none", "accelerator=nvidia-tesla-v100", "perNode=1"), ()),
    ],
)
def test_a_rented_machine_is_listed_by_the_name_that_has_its_price(
    hardware: tuple[str, ...], listed: tuple[str, ...]
) -> None:
    run = run_of(*(f"hardware.{field}" for field in hardware))
    made = plan(run, PRICES, load_measurements(), DAY, generate=1000)
    assert made.chosen is not None and made.making is not None
    offers = {offer.machine_type: offer for offer in made.making.offers}
    assert offers.keys() == {"n1-standard-2", *listed}
    for name in listed:
        (*_, setting) = shlex.split(offers[name].basis)
        assert priced_machine(run_of(setting)).per_node == made.chosen.count // made.chosen.nodes


def test_gpus_that_are_added_to_a_machine_type_are_priced_with_it() -> None:
    """By GPU, vCPU and GiB of the catalogue of 2026."""
    run = run_of("train.epochs=9", "budget.pricedAs.machineType=n1-standard-8 with 1 x nvidia-tesla-t4")
    speed = speed_of(run, machine_type=run.budget.priced_as.machine_type)
    made = plan(run, PRICES, load_measurements(), DAY, speeds=[speed], generate=900_000).own_training
    assert made is not None and made.usd == pytest.approx(5 * (N1_STANDARD_8 + 0.35))
    with pytest.raises(InputError, match="did you mean 'n1-standard-8 with 1 x nvidia-tesla-t4'"):
        priced_machine(run_of("budget.pricedAs.machineType=n1-standard-8 with nvidia-tesla-t4"))


def test_a_machine_type_that_does_not_exist_is_refused_where_seconds_are_priced_as_it() -> None:
    run = run_of("budget.pricedAs.machineType=n1-standrd-2")
    assert plan(run, PRICES, load_measurements(), DAY).making is None
    for options in ({"generate": 10}, {"speeds": [speed_of(run)]}):
        with pytest.raises(InputError, match="did you mean 'n1-standard-2'") as refused:
            plan(run, PRICES, load_measurements(), DAY, **options)
        assert refused.value.field == "budget.pricedAs.machineType"


def test_machines_are_listed_cheapest_first() -> None:
    run = run_of()
    fast = speed_of(run, machine_type="n1-standard-8", generated_per_second=1500.0, simulated_per_second=20.0)
    offers = plan_making(basis(run), 3_600_000, [speed_of(run), fast]).offers
    assert [(o.method, o.machine_type) for o in offers] == [
        ("generator", "n1-standard-8"),
        ("generator", "n1-standard-2"),
        ("Monte Carlo", "n1-standard-2"),
        ("Monte Carlo", "n1-standard-8"),
    ]
    assert offers[0].usd == pytest.approx(3_600_000 / 1500 / 3600 * N1_STANDARD_8)


def test_training_on_the_machine_at_hand_in_closed_form() -> None:
    run = run_of("train.epochs=9")
    made = plan_training(basis(run), [speed_of(run)])
    assert made is not None and made.seconds == pytest.approx(9 * 1e6 / 500) and made.epochs == 9
    assert made.usd == pytest.approx(5 * N1_STANDARD_2) and made.meets_limits
    capped = plan_training(basis(run_of("train.epochs=9", "train.maxMinutes=60")), [speed_of(run)])
    assert capped is not None and (capped.seconds, capped.epochs) == (3600, pytest.approx(1.8))
    for limit, met in (("maxUsd=.4", False), ("maxUsd=.5", True), ("deadline=4h", False), ("deadline=6h", True)):
        limited = plan_training(basis(run_of("train.epochs=9", f"budget.{limit}")), [speed_of(run)])
        assert limited is not None and limited.meets_limits is met, limit


def test_a_small_price_is_not_none() -> None:
    run = run_of("train.epochs=1", "data.showers=100")
    made = plan(run, PRICES, load_measurements(), DAY, speeds=[speed_of(run)], generate=10)
    page = markdown(*plan_blocks(made))
    assert made.own_training is not None and made.own_training.usd == pytest.approx(100 / 500 / 3600 * N1_STANDARD_2)
    assert "5.6e-05 h, 5.3e-06 USD as n1-standard-2" in page and " 0.00 " not in page.replace("0.00 h", "")


def test_the_newest_measurement_with_the_nearest_batch_counts() -> None:
    run = run_of("train.batchPerReplica=64")
    rows = [
        speed_of(run, batch=64, trained_per_second=100.0, observed_on=dt.date(2026, 1, 1)),
        speed_of(run, batch=64, trained_per_second=200.0),
        speed_of(run, batch=32, trained_per_second=400.0),
    ]
    made = plan_training(basis(run), rows)
    assert made is not None and made.seconds == pytest.approx(run.train.epochs * 1e6 / 200)
    assert plan_training(basis(run_of("budget.pricedAs.machineType=n1-standard-8")), rows) is None


def test_a_plan_says_what_the_machine_at_hand_can_do() -> None:
    run = run_of("train.epochs=9", "budget.deadline=6h")
    rows = [speed_of(run)]
    made = plan(run, PRICES, load_measurements(), DAY, speeds=rows, generate=10_000_000)
    assert made.chosen is None and is_met(made)
    assert verdict(made).startswith("chosen: this machine (a processor); 5.00 h, 0.47 USD as n1-standard-2")
    page = markdown(*plan_blocks(made))
    assert "by generator: 5.56 h on 2 x n1-standard-2" in page and "run mine" in page and page.count("| --- |") == 2
    hour = {part.kind: part.usd_per_hour for part in made.prices.parts}
    assert sum(hour.values()) == pytest.approx(N1_STANDARD_2) and f"run mine, {rows[0].observed_on}" in page
    seen = max((DAY - part.observed_on).days for part in made.prices.parts)
    assert bool(made.prices.warnings) is (seen > 90) and f"{seen} days old" in page
    short = run_of("train.epochs=9", "budget.deadline=4h")
    late = plan(short, PRICES, load_measurements(), DAY, speeds=rows, generate=10_000_000)
    assert late.making is not None and late.making.training_usd == pytest.approx(5 * N1_STANDARD_2)  # its own
    assert not is_met(late) and verdict(late).startswith("nothing meets the limits; nearest: this machine")
