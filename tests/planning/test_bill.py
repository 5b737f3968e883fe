import datetime as dt
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from caloscale.errors import InputError, PriceError
from caloscale.planning.billing.bill import bill
from caloscale.planning.billing.calibration import calibrate
from caloscale.planning.billing.usage import ACTIVITIES, Attempt, MeasuredTraining, NodeUse, RunUse, measurement_of
from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices
from caloscale.planning.search.plan import plan
from caloscale.spec import load_run
from tests.cluster.examples import BESIDE

TODAY = dt.date(2026, 11, 21)
PRICES = load_prices()
MEASURED = load_measurements()
NODE_USD = 64 * 0.01392 + 240 * 0.001866 + 8 * 1.0443  # n1-standard-64 with 8 V100, europe-west4, spot, 2026


def nodes(seconds, count=4, capacity_type="spot", **fields):
    machine = {"machine_type": "n1-standard-64", "accelerator": "nvidia-tesla-v100", "per_node": 8}
    place = {"region": "europe-west4", "capacity_type": capacity_type}
    return NodeUse(**{**machine, **place, "nodes": count, "seconds": seconds, **fields})


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
        first_step_seconds=130,
    ),
)


def test_a_bill_by_hand():
    made = bill(INTERRUPTED, PRICES)
    usd = {part.purpose: part.usd for part in made.parts}
    per_second = 4 * NODE_USD / 3600
    assert made.usd == pytest.approx(7600 * per_second, abs=0.01)
    seconds = {"showers": 0, "training": 6700 / 1.25, "evaluation": 200, "startUp": 260, "waiting": 60}
    seconds |= {"lostWork": 300, "misalignment": 6700 * 0.2, "unallocated": 0, "idle": 20 + 60}
    assert usd == pytest.approx({purpose: value * per_second for purpose, value in seconds.items()}, abs=0.02)
    assert made.nodes[0].node_hours == pytest.approx(4 * 7600 / 3600)
    assert (made.attempts, made.interruptions) == (2, 1)
    assert made.usd_per_epoch == pytest.approx(7600 * per_second / 60)
    assert made.co2_kg == pytest.approx(32 * 0.3 * 7600 / 3600 * 236 / 1000)  # V100: 300 W; europe-west4: 236 g/kWh
    assert "324 days before" in made.warnings[0]


attempts = st.builds(
    lambda spare, node_count, capacity_type, used, seconds: Attempt(
        nodes=(nodes(sum(seconds) + spare, node_count, capacity_type),),
        used_share=used,
        **{f"{activity}_seconds": value for activity, value in zip(ACTIVITIES, seconds)},
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


def test_a_bill_below_a_dollar_is_stated_to_a_hundredth_of_a_cent(own_prices):
    prices = own_prices("none,own,vm,mine,vm,spot,1,no,2026-01-01,,2026-01-01,test,list,no,,\n")
    seconds = {"training_seconds": 1200, "shower_seconds": 720, "validation_seconds": 360}
    for held_seconds, third in ((3600, 0.33), (3598, 0.3333)):
        held = nodes(held_seconds, 1, provider="none", machine_type="mine", region="own")
        made = bill(run_use(Attempt(nodes=(held,), **seconds), epochs=0), prices)
        usd = {part.purpose: part.usd for part in made.parts}
        assert usd["training"] == third and made.usd_per_epoch is None
        assert (usd["showers"], usd["evaluation"]) == (0.2, 0.1)
        assert sum(Decimal(str(part)) for part in usd.values()) == Decimal(str(made.usd))
    held = nodes(1.26, 1, provider="none", machine_type="mine", region="own")
    small = bill(run_use(Attempt(nodes=(held,)), epochs=5), prices)
    assert small.usd == 0.0004 and small.usd_per_epoch == pytest.approx(0.00007)


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
            *(f"hardware.{field}" for field in ("accelerator=nvidia-tesla-v100", "count=32", "perNode=8")),
            *(f"hardware.{field}" for field in ("region=europe-west4", "capacityType=spot")),
            "hardware.interruptionsPerNodeHour=0",
        ],
    ),
    PRICES,
    MEASURED,
    TODAY,
)


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({"region": "mars-east1"}, PriceError, "add a row"),
        ({"accelerator": "nvidia-tesla-a100"}, InputError, "n1-standard-64 with 8 x nvidia-tesla-v100"),
        (
            {"machine_type": "ct5lp-hightpu-1t", "accelerator": "tpu-v5e", "topology": "2x4"},
            InputError,
            "ct5lp-hightpu-8t, ct5lp-hightpu-4t",
        ),
    ],
)
def test_nodes_that_do_not_exist_or_have_no_price_are_refused(fields, error, says):
    with pytest.raises(error, match=says):
        bill(run_use(Attempt(nodes=(nodes(10, **fields),))), PRICES)


def test_own_measurements_make_an_unmeasured_machine_measured():
    l4 = {"machine_type": "g2-standard-96", "accelerator": "nvidia-l4", "region": "us-central1"}
    observed = INTERRUPTED.observed.model_copy(update={"workers": 1, "step_seconds": 4.0})
    use = run_use(Attempt(nodes=(nodes(1000, 1, "on-demand", **l4),)), observed=observed)
    run = load_run(
        preset="variable-angle",
        overrides=["train.batchPerReplica=96", "hardware.region=us-central1", "hardware.accelerator=nvidia-l4"],
    )
    before = plan(run, PRICES, MEASURED, TODAY).chosen
    after = plan(run, PRICES, (*MEASURED, measurement_of(use)), TODAY).chosen
    assert not before.measured and after.measured


def test_calibration_refuses_nonsense():
    flow, unknown = (
        INTERRUPTED.model_copy(update={"observed": INTERRUPTED.observed.model_copy(update={"network": network})})
        for network in ("flow", "my-family")
    )
    assert calibrate([flow], MEASURED).residuals[0].predicted_seconds > 0  # of a family, not of the catalogue
    with pytest.raises(InputError, match="is not a preset"):
        calibrate([unknown], MEASURED)
    other = nodes(4000, accelerator="nvidia-tesla-p100")
    mixed = run_use(Attempt(nodes=(nodes(4000), other)), observed=INTERRUPTED.observed)
    with pytest.raises(InputError, match="several kinds"):
        calibrate([mixed], MEASURED)


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
    fields = [f"hardware.count={8 * count}", "hardware.perNode=8", f"hardware.diskGib={disk_gib}"]
    fields += [f"data.showers={showers}"]
    fields += [f"hardware.controlPlane={str(control_plane).lower()}", "hardware.interruptionsPerNodeHour=0"]
    fields += [f"hardware.capacityType={'spot' if spot else 'on-demand'}", "hardware.region=europe-west4"]
    run = load_run(preset="variable-angle", overrides=["hardware.accelerator=nvidia-tesla-v100", *fields])
    planned = plan(run, beside, MEASURED, TODAY)
    chosen = planned.chosen
    times = {"control_plane": 1}
    parts = [part.usd_per_hour * times.get(part.kind, count) for part in planned.prices.parts]
    assert sum(parts) == pytest.approx(chosen.usd_per_hour)
    beside_seconds = chosen.total_seconds if control_plane else 0.0
    extras = {"disk_gib": disk_gib, "control_plane_seconds": beside_seconds}
    held = nodes(chosen.total_seconds, count, "spot" if spot else "on-demand", **extras)
    made = bill(run_use(Attempt(nodes=(held,))), beside)
    node_usd = NODE_USD if spot else 64 * 0.034802 + 240 * 0.004664 + 8 * 2.604
    hours = chosen.total_seconds / 3600
    by_hand = hours * (count * (node_usd + 0.0002 * disk_gib) + (0.25 if control_plane else 0.0))
    assert chosen.usd == pytest.approx(by_hand, rel=1e-9)
    assert made.usd == pytest.approx(by_hand, abs=0.005001)
    assert sum(Decimal(str(part.usd)) for part in made.nodes) == Decimal(str(made.usd))
    clusters = [part.node_hours for part in made.nodes if part.title.startswith("control plane")]
    assert clusters == pytest.approx([hours] if control_plane else [])


def test_each_cause_of_a_difference_by_hand():
    """An estimate of 60 epochs of 100 s, 50 s of start-up and 30 s that are lost; the run made 50 epochs."""
    estimate = PLANNED.chosen.model_copy(
        update={
            **{"usd": 50.0, "usd_per_hour": 50 / (6080 / 3600)},
            **{"epoch_seconds": 100.0, "start_up_seconds": 50.0, "total_seconds": 6080.0},
        }
    )
    planned = PLANNED.model_copy(update={"chosen": estimate, "epochs": 60})
    seconds = {"training": 4500, "evaluation": 700, "start_up": 80, "lost": 40, "waiting": 25, "shower": 11}
    activities = {f"{name}_seconds": value for name, value in seconds.items()} | {"validation_seconds": 13}
    use = run_use(Attempt(nodes=(nodes(5500),), **activities), epochs=50)
    made = bill(use, PRICES, plan=planned)
    per_second = 4 * NODE_USD / 3600
    assert {cause.cause: cause.usd for cause in made.against_estimate.causes} == pytest.approx(
        {
            "price of an hour": 6080 * per_second - 50,
            "epochs that were planned and not run": -1000 * per_second,
            "seconds of an epoch": (5200 - 5000) * per_second,
            "start-up": (80 - 50) * per_second,
            "interruptions: lost work and waiting": (65 - 30) * per_second,
            "showers and validation, which are not in the estimate": 24 * per_second,
            "idle and drain": (5500 - 5200 - 80 - 65 - 24) * per_second,
        },
        abs=0.025,
    )
    assert made.against_estimate.difference_usd == pytest.approx(5500 * per_second - 50, abs=0.005)
    same, below_a_cent = (made.usd, made.usd, True), (made.usd - 0.004, made.usd - 0.003, True)
    for low, high, inside in (same, below_a_cent, (made.usd + 0.01, 99, False), (0, made.usd - 0.01, False)):
        around = planned.model_copy(update={"chosen": estimate.model_copy(update={"usd_interval": (low, high)})})
        assert bill(use, PRICES, plan=around).against_estimate.inside == inside
    nearest = planned.model_copy(update={"chosen": None, "nearest": estimate})
    assert bill(use, PRICES, plan=nearest).against_estimate == made.against_estimate
    for absent in ({"usd": None}, {"usd_interval": None}):
        none = planned.model_copy(update={"chosen": estimate.model_copy(update=absent)})
        assert bill(use, PRICES, plan=none).against_estimate is None
    nothing = bill(run_use(Attempt(nodes=(nodes(0),))), PRICES, plan=planned)
    assert (nothing.usd, nothing.against_estimate.difference_usd) == (0, -50)
    assert {part.share for part in nothing.parts} == {0} and nothing.co2_kg == 0


def test_the_hours_of_missing_nodes_belong_to_the_interruptions():
    """Four nodes, of which the estimate does not pay one while it is replaced; the price of an hour is as planned."""
    overrides = [f"hardware.{field}" for field in ("accelerator=nvidia-tesla-v100", "count=32", "perNode=8")]
    overrides += [f"hardware.{field}" for field in ("region=europe-west4", "capacityType=spot", "provisioning=255s")]
    rate = "hardware.interruptionsPerNodeHour=1"
    planned = plan(load_run(preset="variable-angle", overrides=[*overrides, rate]), PRICES, MEASURED, TODAY)
    estimate = planned.chosen
    missing = estimate.expected_interruptions * 255
    assert estimate.node_hours == pytest.approx((4 * estimate.total_seconds - missing) / 3600)
    assert estimate.accelerator_hours == pytest.approx(8 * estimate.node_hours)
    work = estimate.epochs * estimate.epoch_seconds
    seconds = {"training_seconds": work, "start_up_seconds": estimate.start_up_seconds}
    seconds["lost_seconds"] = estimate.total_seconds - sum(seconds.values())
    some = (nodes(estimate.total_seconds, 3), nodes(estimate.total_seconds - missing, 1))
    for held, more in (((nodes(estimate.total_seconds),), missing), (some, 0)):
        against = bill(run_use(Attempt(nodes=held, **seconds)), PRICES, plan=planned).against_estimate
        causes = {cause.cause: cause.usd for cause in against.causes}
        assert against.difference_usd == pytest.approx(more * NODE_USD / 3600, abs=0.01)
        assert causes.pop("interruptions: lost work and waiting") == against.difference_usd
        assert set(causes.values()) == {0}


def test_epochs_beyond_max_minutes_are_neither_interruptions_nor_missing():
    """train.maxMinutes ends a training that was planned with 60 epochs after 3 of them, as the estimate states."""
    estimate = PLANNED.chosen.model_copy(
        update={
            **{"start_up_seconds": 50.0, "epoch_seconds": 1000.0, "epochs": 3.0, "total_seconds": 3050.0},
            **{"usd": 50.0, "usd_per_hour": 50 / (3050 / 3600)},
        }
    )
    use = run_use(Attempt(nodes=(nodes(3050),), training_seconds=3000, start_up_seconds=50), epochs=3.0)
    made = bill(use, PRICES, plan=PLANNED.model_copy(update={"chosen": estimate}))
    causes = {cause.cause: cause.usd for cause in made.against_estimate.causes}
    assert {cause for cause, usd in causes.items() if usd} == {"price of an hour"}


def test_kinds_of_nodes_are_billed_one_by_one_and_restarts_are_summed():
    mixed = Attempt(nodes=(nodes(3600, 2), nodes(1800, 1, "on-demand")), training_seconds=900, used_share=0.5)
    made = bill(run_use(mixed, Attempt(nodes=(nodes(1800, 2),), count=3, interruptions=2)), PRICES)
    on_demand = 64 * 0.034802 + 240 * 0.004664 + 8 * 2.604
    assert [(kind.capacity_type, kind.region, kind.node_hours) for kind in made.nodes] == [
        ("spot", "europe-west4", 3.0),
        ("on-demand", "europe-west4", 0.5),
    ]
    assert [kind.usd for kind in made.nodes] == pytest.approx([3 * NODE_USD, on_demand / 2], abs=0.01)
    assert [kind.usd_per_node_hour for kind in made.nodes] == pytest.approx([NODE_USD, on_demand])
    assert [(part.kind, part.quantity) for part in made.nodes[0].rate_parts] == [
        ("vcpu", 64),
        ("mem_gib", 240),
        ("gpu", 8),
    ]
    assert (made.attempts, made.interruptions) == (4, 2)
    usd = {part.purpose: part.usd for part in made.parts}
    first = 2 * NODE_USD + on_demand / 2
    assert usd["unallocated"] == pytest.approx(first / 2, abs=0.01)
    assert usd["training"] == pytest.approx(first / 2 / 4, abs=0.01)  # a quarter of the hour
    assert usd["idle"] == pytest.approx(first / 2 * 3 / 4 + NODE_USD, abs=0.01)
    assert {part.purpose: part.share for part in made.parts} == pytest.approx(
        {purpose: value / made.usd for purpose, value in usd.items()}, abs=2e-4
    )
    small = bill(run_use(Attempt(nodes=(nodes(0.1),), training_seconds=0.07, start_up_seconds=0.03)), PRICES)
    assert {part.purpose: part.share for part in small.parts if part.share} == {
        "training": pytest.approx(0.7),  # of what was spent, not of the rounded parts
        "startUp": pytest.approx(0.3),
    }
    assert made.co2_kg == pytest.approx(3.5 * 8 * 0.3 * 236 / 1000)


@pytest.fixture
def own_prices(tmp_path):
    """The catalogue with rows of one's own."""

    def load(*rows):
        (tmp_path / "own.csv").write_text("".join((*BESIDE.splitlines(keepends=True)[:2], *rows)))
        return load_prices([tmp_path / "own.csv"])

    return load


def test_emissions_are_unknown_where_a_power_or_a_grid_is(own_prices):
    for change in ({"region": "us-central1"}, {"accelerator": "", "per_node": 0}, {"region": "mars-1"}):
        own = nodes(60, **change, provider="none", machine_type="mine")
        rows = f"none,{own.region},vm,mine,vm,spot,1.5,no,2026-01-01,,2026-01-01,test,list,no,,\n"
        made = bill(run_use(Attempt(nodes=(own,))), own_prices(rows))
        assert made.usd == pytest.approx(4 * 1.5 / 60)
        assert (made.co2_kg is None) == (change != {"region": "us-central1"})


def test_a_machine_of_no_cloud_is_billed_by_the_nearest_row(own_prices):
    """Rows of one's own: of the region before those of no region, of the machine before those of its GPUs."""
    held = nodes(3600, 1, provider="none", machine_type="mine", region="cern")
    rows = {
        "region, machine": ("none,cern,vm,mine,vm,spot,3,no,2026-01-01,,2026-01-01,test,list,no,,\n", 3),
        "region, GPUs": ("none,cern,gpu,nvidia-tesla-v100,gpu,spot,0.5,no,2026-01-01,,2026-01-01,test,list,no,,\n", 4),
        "machine": ("none,own,vm,mine,vm,spot,7,no,2026-01-01,,2026-01-01,test,list,no,,\n", 7),
        "GPUs": ("none,own,gpu,nvidia-tesla-v100,gpu,spot,2,no,2026-01-01,,2026-01-01,test,suspect,no,,odd\n", 16),
    }
    use = run_use(Attempt(nodes=(held,)))
    for first in range(4):
        chosen = list(rows.values())[first:]
        made = bill(use, own_prices(*(text for text, _ in reversed(chosen))))
        assert made.usd == chosen[0][1]
        assert any("doubtful: odd" in warning for warning in made.warnings) == (first == 3)
        assert len(made.warnings) == len(set(made.warnings)) == 1 + (first == 3)
    old = own_prices(*(text for text, _ in rows.values())).no_older_than(30)
    with pytest.raises(PriceError, match="vm mine in cern is 324 days old") as refused:
        bill(use, old)
    assert refused.value.field == "budget.maxPriceAge"
    with pytest.raises(PriceError, match="no spot price of vm mine in cern"):
        bill(use, PRICES)


def test_a_measurement_has_the_figures_of_the_last_attempt():
    row = measurement_of(INTERRUPTED)
    seen = INTERRUPTED.observed
    assert row.steps == 40 and row.node_hours == pytest.approx(4 * 7600 / 3600)
    unknown = {"step_cv", "test_seconds", "provisioning_seconds"}
    assert row.model_dump(exclude={"node_hours", "steps", "note", *unknown}) == {
        **seen.model_dump(exclude={"epochs"}),
        "provider": "gcp",
        "machine_type": "n1-standard-64",
        "accelerator": "nvidia-tesla-v100",
        "count": 32,
        "nodes": 4,
        "epochs": 59,
        "capacity_type": "spot",
        "region": "europe-west4",
        "source": "run test",
        "observed_on": TODAY,
        "interruptions": 1,
    }
    listed = INTERRUPTED.model_copy(
        update={"attempts": (Attempt(nodes=(nodes(60, 2, "on-demand"), nodes(50, 2, "on-demand"))),)}
    )
    row = measurement_of(listed)
    assert (row.count, row.nodes, row.steps, row.node_hours, row.interruptions) == (32, 4, 40, None, None)
    assert row.capacity_type == "on-demand"
    first = Attempt(nodes=(nodes(3600, 4, "on-demand"),), interruptions=1)
    moved = INTERRUPTED.model_copy(update={"attempts": (first, *INTERRUPTED.attempts)})
    assert measurement_of(moved).interruptions == 1  # those on demand are none of spot nodes
    chips = nodes(60, 4, machine_type="ct3p-hightpu-4t", accelerator="tpu-v3", per_node=4)
    tpu = INTERRUPTED.model_copy(update={"attempts": (Attempt(nodes=(chips,)),)})
    assert measurement_of(tpu).steps == 124_950 // (2 * 16 * 96)  # a chip has two cores
    assert measurement_of(INTERRUPTED.model_copy(update={"observed": None})) is None


def test_activities_may_exceed_the_time_of_the_nodes_by_a_second():
    assert Attempt(nodes=(nodes(100), nodes(60)), training_seconds=101).held_seconds == 100
    with pytest.raises(ValidationError, match="activities take 102 s, the nodes were held for 100 s"):
        Attempt(nodes=(nodes(100), nodes(60)), training_seconds=101.5)
    made = bill(run_use(Attempt(nodes=(nodes(100),), training_seconds=60.6, lost_seconds=40.4)), PRICES)
    usd = {part.purpose: part.usd for part in made.parts}
    assert usd["idle"] == 0 and usd["training"] == pytest.approx(made.usd * 0.6, abs=0.01)


def test_a_calibration_by_hand():
    """A spot run on a GPU of the catalogue beside one of four times the replicas, and one that measured nothing."""
    seen = INTERRUPTED.observed
    silent = INTERRUPTED.model_copy(update={"name": "silent", "observed": None})
    made = calibrate([INTERRUPTED, silent], MEASURED)
    (residual,) = made.residuals
    assert (residual.source, residual.accelerator, residual.count) == ("run test", "nvidia-tesla-v100", 32)
    assert residual.step_seconds == seen.step_seconds and made.level == 0.9
    low, high = residual.predicted_interval
    assert low < residual.predicted_seconds < high
    assert residual.error == pytest.approx(residual.predicted_seconds / seen.step_seconds - 1)
    for step_seconds, inside in ((low, True), (high, True), (low * 0.999, False), (high * 1.001, False)):
        slow = INTERRUPTED.model_copy(update={"observed": seen.model_copy(update={"step_seconds": step_seconds})})
        (again,) = calibrate([slow], MEASURED).residuals
        assert again.inside == inside and again.predicted_interval == residual.predicted_interval
    (rate,) = made.interruptions
    assert (rate.cloud, rate.accelerator, rate.region) == ("gcp", "nvidia-tesla-v100", "europe-west4")
    assert rate.per_node_hour == pytest.approx(1.5 / (4 * 7600 / 3600))
    listed = INTERRUPTED.model_copy(update={"attempts": (Attempt(nodes=(nodes(60, 4, "on-demand"),)),)})
    assert calibrate([listed], MEASURED).interruptions == ()


SPOT_100_HOURS = Attempt(nodes=(nodes(90_000),), interruptions=10)
T4 = {"machine_type": "n1-standard-32", "accelerator": "nvidia-tesla-t4", "per_node": 4}


@pytest.mark.parametrize(
    ("attempts", "per_node_hour", "left_out"),
    [
        ((Attempt(nodes=(nodes(90_000, **T4),)), Attempt(nodes=(nodes(3600),), interruptions=4)), 4.5 / 4, (0, 100)),
        (
            (Attempt(nodes=(nodes(90_000, region="us-central1"),), interruptions=10), Attempt(nodes=(nodes(3600),))),
            0.5 / 4,
            (10, 100),
        ),
        ((SPOT_100_HOURS, Attempt(nodes=(nodes(3600, 4, "on-demand"),))), 10.5 / 100, None),
        ((Attempt(nodes=(nodes(36_000, 2), nodes(36_000, 2, "on-demand")), interruptions=2),), 2.5 / 20, None),
        ((Attempt(nodes=(nodes(36_000, 2, "on-demand"), nodes(36_000, 2)), interruptions=2),), 2.5 / 20, None),
        (
            (Attempt(nodes=(nodes(3600), nodes(3600, 2, **T4)), interruptions=3), SPOT_100_HOURS),
            10.5 / 100,
            (3, 6),
        ),
    ],
    ids=["accelerator", "region", "on demand at the end", "spot first", "spot last", "of two accelerators"],
)
def test_interruptions_count_where_the_spot_nodes_were(attempts, per_node_hour, left_out):
    made = calibrate([INTERRUPTED.model_copy(update={"attempts": attempts})], MEASURED)
    (rate,) = made.interruptions
    assert (rate.accelerator, rate.region) == ("nvidia-tesla-v100", "europe-west4")
    assert rate.per_node_hour == pytest.approx(per_node_hour)
    said = left_out and "run test: {} interruptions in {} hours of spot nodes are not counted".format(*left_out)
    assert [warning.partition(": these")[0] for warning in made.warnings] == [said] * bool(left_out)
