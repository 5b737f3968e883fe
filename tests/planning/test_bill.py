from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from caloscale.errors import InputError, PriceError
from caloscale.planning.billing.bill import Speed, bill
from caloscale.planning.billing.calibration import calibrate
from caloscale.planning.billing.usage import Attempt, MeasuredTraining, NodeUse, RunUse, measurement_of
from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices
from caloscale.planning.catalogue.slices import load_slices
from caloscale.planning.search.plan import plan
from caloscale.spec import load_run
from tests.cluster.examples import BESIDE

TODAY = dt.date(2026, 11, 21)
PRICES = load_prices()
MEASURED = load_measurements()
NODE_USD = 64 * 0.01392 + 240 * 0.001866 + 8 * 1.0443  # n1-standard-64 with 8 V100, europe-west4, spot, 2026


def nodes(seconds, count=4, capacity_type="spot"):
    return NodeUse(
        machine_type="n1-standard-64",
        accelerator="nvidia-tesla-v100",
        per_node=8,
        region="europe-west4",
        capacity_type=capacity_type,
        nodes=count,
        seconds=seconds,
    )


def run_use(*attempts, **fields):
    return RunUse(name="test", day=TODAY, attempts=attempts, **{"epochs": 60, **fields})


INTERRUPTED = run_use(
    Attempt(
        nodes=(nodes(3600),),
        start_up_seconds=130,
        training_seconds=3000,
        evaluation_seconds=90,
        lost_seconds=300,
        waiting_seconds=60,
        interruptions=1,
    ),
    Attempt(nodes=(nodes(4000),), start_up_seconds=130, training_seconds=3700, evaluation_seconds=110),
    slower_than_aligned=0.25,
    observed=MeasuredTraining(
        network="variable-angle",
        workers=4,
        batch_per_replica=96,
        showers=124_950,
        epochs=59,
        step_seconds=2.87,
        step_cv=0.01,
        test_seconds=3.4,
        first_step_seconds=130,
        provisioning_seconds=240,
    ),
)


def test_a_bill_by_hand():
    made = bill(INTERRUPTED, PRICES)
    usd = {part.purpose: part.usd for part in made.parts}
    per_second = 4 * NODE_USD / 3600
    assert made.usd == pytest.approx(7600 * per_second, abs=0.01)
    assert usd["training"] == pytest.approx(6700 / 1.25 * per_second, abs=0.02)
    assert usd["misalignment"] == pytest.approx(6700 * 0.2 * per_second, abs=0.02)
    assert usd["evaluation"] == pytest.approx(200 * per_second, abs=0.02)
    assert usd["startUp"] == pytest.approx(260 * per_second, abs=0.02)
    assert usd["lostWork"] == pytest.approx(300 * per_second, abs=0.02)
    assert usd["waiting"] == pytest.approx(60 * per_second, abs=0.02)
    assert usd["idle"] == pytest.approx((20 + 60) * per_second, abs=0.02)
    assert usd["unallocated"] == 0
    assert made.nodes[0].node_hours == pytest.approx(4 * 7600 / 3600)
    assert (made.attempts, made.interruptions) == (2, 1)
    assert made.usd_per_epoch == pytest.approx(made.usd / 60)
    assert made.co2_kg == pytest.approx(32 * 0.3 * 7600 / 3600 * 236 / 1000)  # V100: 300 W; europe-west4: 236 g/kWh
    assert "324 days before" in made.warnings[0]


ACTIVITIES = (
    "training_seconds",
    "evaluation_seconds",
    "start_up_seconds",
    "waiting_seconds",
    "lost_seconds",
    "shower_seconds",
    "validation_seconds",
)
attempts = st.builds(
    lambda spare, node_count, capacity_type, used, seconds: Attempt(
        nodes=(nodes(sum(seconds) + spare, node_count, capacity_type),),
        used_share=used,
        **dict(zip(ACTIVITIES, seconds)),
    ),
    st.floats(0, 1e4),
    st.integers(1, 16),
    st.sampled_from(["spot", "on-demand"]),
    st.floats(0.01, 1),
    st.tuples(*[st.floats(0, 1e5)] * len(ACTIVITIES)),
)


@given(st.lists(attempts, min_size=1, max_size=5), st.floats(0, 3))
def test_waste_and_work_add_up_to_the_bill_to_the_cent(tries, slower):
    made = bill(run_use(*tries, slower_than_aligned=slower), PRICES)
    total = Decimal(str(made.usd))
    assert sum((Decimal(str(part.usd)) for part in made.parts), Decimal(0)) == total
    assert sum((Decimal(str(kind.usd)) for kind in made.nodes), Decimal(0)) == total
    assert all(part.usd >= 0 for part in made.parts)
    rates = {"spot": NODE_USD, "on-demand": 64 * 0.034802 + 240 * 0.004664 + 8 * 2.604}
    by_hand = sum(
        use.nodes * use.seconds / 3600 * rates[use.capacity_type] for attempt in tries for use in attempt.nodes
    )
    assert made.usd == pytest.approx(by_hand, abs=0.01, rel=1e-9)


def test_a_small_bill_is_stated_to_a_hundredth_of_a_cent():
    seconds = {"shower_seconds": 2.0, "training_seconds": 1.0, "validation_seconds": 0.5}
    made = bill(run_use(Attempt(nodes=(nodes(4.0, 1),), **seconds), epochs=0), PRICES)
    per_second = NODE_USD / 3600
    usd = {part.purpose: part.usd for part in made.parts}
    assert made.usd == round(4 * per_second, 4) and made.usd_per_epoch is None
    assert usd["showers"] == pytest.approx(2 * per_second, abs=1e-4)
    assert usd["evaluation"] == pytest.approx(0.5 * per_second, abs=1e-4)
    assert usd["idle"] == pytest.approx(0.5 * per_second, abs=1e-4)
    assert sum(Decimal(str(part.usd)) for part in made.parts) == Decimal(str(made.usd))


@given(st.lists(attempts, min_size=1, max_size=3), st.floats(1, 100))
def test_the_difference_from_the_estimate_is_explained_to_the_cent(tries, epochs):
    made = bill(run_use(*tries, epochs=epochs), PRICES, plan=PLANNED)
    against = made.against_estimate
    causes = sum((Decimal(str(cause.usd)) for cause in against.causes), Decimal(0))
    assert causes == Decimal(str(against.difference_usd))
    assert Decimal(str(against.estimated_usd)) + causes == Decimal(str(made.usd))


PLANNED = plan(
    load_run(
        preset="variable-angle",
        overrides=[
            "train.batchPerReplica=96",
            "hardware.accelerator=nvidia-tesla-v100",
            "hardware.count=32",
            "hardware.perNode=8",
            "hardware.region=europe-west4",
            "hardware.capacityType=spot",
            "hardware.interruptionsPerNodeHour=0",
        ],
    ),
    PRICES,
    MEASURED,
    TODAY,
)


def test_a_run_as_planned_differs_by_nothing():
    chosen = PLANNED.chosen
    attempt = Attempt(
        nodes=(nodes(chosen.total_seconds),),
        start_up_seconds=chosen.start_up_seconds,
        training_seconds=60 * chosen.epoch_seconds - 200,
        evaluation_seconds=200,
    )
    against = bill(run_use(attempt), PRICES, plan=PLANNED).against_estimate
    assert against.inside
    assert abs(against.difference_usd) <= 0.01
    assert all(abs(cause.usd) <= 0.01 for cause in against.causes)


def test_slices_are_paid_as_a_whole():
    held = NodeUse(
        machine_type="ct3p-hightpu-4t",
        accelerator="tpu-v3",
        per_node=4,
        topology="4x4",
        region="europe-west4",
        capacity_type="spot",
        nodes=4,
        seconds=3600,
    )
    made = bill(run_use(Attempt(nodes=(held,), training_seconds=3600)), PRICES)
    assert made.usd == pytest.approx(10.56)
    assert made.co2_kg == pytest.approx(16 * 0.45 * 236 / 1000)


@pytest.mark.parametrize(
    "row", [row for row in load_slices() if not row.retired and row.price_kind == "tpu_chip"], ids=lambda row: row.title
)
def test_an_hour_of_all_hosts_costs_the_chips_of_the_slice(row):
    """A topology that exists on two machine types (v5e 2x4) is priced by the hosts that were held."""
    sold = [p for p in PRICES.rows if (p.sku_kind, p.sku) == ("tpu_chip", row.price_sku) and p.effective_to is None]
    price = next(iter(sold), None)
    if price is None:
        assert row.accelerator == "tpu-v7", "the catalogue has no price"
        return
    held = NodeUse(
        machine_type=row.machine_type,
        accelerator=row.accelerator,
        per_node=row.chips_per_host,
        topology=row.topology,
        region=price.region,
        capacity_type=price.capacity_type,
        nodes=row.hosts,
        seconds=3600,
    )
    made = bill(run_use(Attempt(nodes=(held,), training_seconds=3600)), PRICES)
    assert made.usd == pytest.approx(row.chips * price.usd_per_unit_hour, abs=0.005)


def test_hosts_that_no_such_slice_has_are_refused():
    held = nodes(3600).model_copy(
        update={"machine_type": "ct5lp-hightpu-1t", "accelerator": "tpu-v5e", "topology": "2x4"}
    )
    with pytest.raises(InputError, match="ct5lp-hightpu-8t, ct5lp-hightpu-4t"):
        bill(run_use(Attempt(nodes=(held,))), PRICES)


def test_a_million_showers_with_the_bill_amortised_against_geant4_on_cpu_nodes():
    generator = Speed(
        machine_type="n1-standard-8",
        accelerator="nvidia-tesla-v100",
        per_node=1,
        region="europe-west4",
        showers_per_second=500,
    )
    geant4 = Speed(machine_type="n1-standard-8", region="europe-west4", showers_per_second=4)
    made = bill(INTERRUPTED, PRICES, generation=generator, monte_carlo=geant4).per_million_showers
    assert made.monte_carlo_usd == pytest.approx((8 * 0.034802 + 30 * 0.004664) / 3600 / 4 * 1e6)
    assert made.generated_usd == pytest.approx((8 * 0.034802 + 30 * 0.004664 + 2.604) / 3600 / 500 * 1e6)
    assert made.generated_with_training_usd == pytest.approx(made.generated_usd + bill(INTERRUPTED, PRICES).usd)
    assert made.break_even_showers > 0


def test_bills_refuse_what_has_no_price_or_does_not_add_up():
    elsewhere = nodes(10).model_copy(update={"region": "mars-east1"})
    with pytest.raises(PriceError, match="add a row"):
        bill(run_use(Attempt(nodes=(elsewhere,))), PRICES)
    with pytest.raises(ValidationError, match="activities take 400 s"):
        Attempt(nodes=(nodes(100),), training_seconds=400)
    with pytest.raises(ValidationError):
        Attempt(nodes=(), training_seconds=1)


def test_a_run_becomes_a_measurement_that_changes_the_next_plan():
    row = measurement_of(INTERRUPTED)
    assert (row.count, row.nodes, row.workers, row.steps) == (32, 4, 4, 40)
    assert row.node_hours == pytest.approx(4 * 7600 / 3600) and row.interruptions == 1
    made = calibrate([INTERRUPTED], MEASURED)
    assert made.residuals[0].error == pytest.approx(0, abs=0.03) and made.residuals[0].inside
    assert {error.form for error in made.forms} >= {"two-level ring", "tree"}
    assert made.interruptions[0].per_node_hour == pytest.approx(1.5 / (4 * 7600 / 3600))
    assert "run test" in made.csv


def test_own_measurements_make_an_unmeasured_machine_measured():
    use = INTERRUPTED.model_copy(
        update={
            "attempts": (
                Attempt(
                    nodes=(
                        NodeUse(
                            machine_type="g2-standard-96",
                            accelerator="nvidia-l4",
                            per_node=8,
                            region="us-central1",
                            capacity_type="on-demand",
                            nodes=1,
                            seconds=1000,
                        ),
                    )
                ),
            ),
            "observed": INTERRUPTED.observed.model_copy(update={"workers": 1, "step_seconds": 4.0}),
        }
    )
    run = load_run(
        preset="variable-angle",
        overrides=["train.batchPerReplica=96", "hardware.region=us-central1", "hardware.accelerator=nvidia-l4"],
    )
    before = plan(run, PRICES, MEASURED, TODAY).chosen
    after = plan(run, PRICES, (*MEASURED, measurement_of(use)), TODAY).chosen
    assert not before.measured and after.measured


def test_calibration_refuses_nonsense():
    nothing = INTERRUPTED.model_copy(update={"observed": None})
    with pytest.raises(InputError, match="no run measured"):
        calibrate([nothing], MEASURED)
    odd = INTERRUPTED.model_copy(update={"observed": INTERRUPTED.observed.model_copy(update={"workers": 5})})
    with pytest.raises(InputError, match="does not add up") as error:
        calibrate([odd], MEASURED)
    assert error.value.exit_code == 2


@pytest.fixture(scope="module")
def beside(tmp_path_factory):
    """Prices with rows for boot disks and the control plane."""
    file = tmp_path_factory.mktemp("prices") / "beside.csv"
    file.write_text(BESIDE)
    return load_prices([file])


@settings(max_examples=25, deadline=None)
@given(
    count=st.integers(1, 8),
    disk_gib=st.sampled_from([0, 100, 250.5]),
    control_plane=st.booleans(),
    spot=st.booleans(),
    showers=st.integers(20_000, 400_000),
)
def test_the_estimate_of_what_was_used_is_the_bill(beside, count, disk_gib, control_plane, spot, showers):
    fields = [
        f"hardware.count={8 * count}",
        "hardware.perNode=8",
        f"hardware.diskGib={disk_gib}",
        f"data.showers={showers}",
    ]
    fields += [f"hardware.controlPlane={str(control_plane).lower()}", "hardware.interruptionsPerNodeHour=0"]
    fields += [f"hardware.capacityType={'spot' if spot else 'on-demand'}", "hardware.region=europe-west4"]
    run = load_run(preset="variable-angle", overrides=["hardware.accelerator=nvidia-tesla-v100", *fields])
    chosen = plan(run, beside, MEASURED, TODAY).chosen
    held = nodes(chosen.total_seconds, count, "spot" if spot else "on-demand").model_copy(
        update={"disk_gib": disk_gib, "control_plane_seconds": chosen.total_seconds if control_plane else 0.0}
    )
    made = bill(run_use(Attempt(nodes=(held,))), beside)
    node_usd = NODE_USD if spot else 64 * 0.034802 + 240 * 0.004664 + 8 * 2.604
    hours = chosen.total_seconds / 3600
    by_hand = hours * (count * (node_usd + 0.0002 * disk_gib) + (0.25 if control_plane else 0.0))
    assert chosen.usd == pytest.approx(by_hand, rel=1e-9)
    assert made.usd == pytest.approx(by_hand, abs=0.005001)
    assert sum(Decimal(str(part.usd)) for part in made.nodes) == Decimal(str(made.usd))
    clusters = [part.node_hours for part in made.nodes if part.title.startswith("control plane")]
    assert clusters == pytest.approx([hours] if control_plane else [])
