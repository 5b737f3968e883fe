import datetime as dt
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caloscale.errors import ConfigurationError, InputError, PriceError
from caloscale.planning.catalogue.hardware import load_networks, network_of_preset
from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices
from caloscale.planning.search.plan import Plan, plan
from caloscale.planning.step_time.timing import Timings
from caloscale.report.blocks import markdown
from caloscale.report.plan import draw_plan, in_words, plan_blocks
from caloscale.spec import load_run
from tests.planning.event_simulation import mean_run

TODAY = dt.date(2026, 11, 21)
STUDY = dt.date(2022, 6, 1)
PRICES = load_prices()
MEASURED = load_measurements()
V100 = ("hardware.accelerator=nvidia-tesla-v100", "train.batchPerReplica=96")
FOUR_NODES = (*V100, "hardware.count=32", "hardware.perNode=8")
PART_OF_A_HOST = ("hardware.accelerator=nvidia-h100-80gb", "hardware.perNode=2")
IN_EUROPE = (*FOUR_NODES, "hardware.region=europe-west4")


def plan_of(*overrides, as_of=TODAY, measurements=MEASURED, preset="variable-angle", prices=PRICES):
    return plan(load_run(preset=preset, overrides=overrides), prices, measurements, as_of)


def test_the_json_has_the_names_that_others_rely_on():
    made = json.loads(plan_of("budget.deadline=6h").model_dump_json(by_alias=True))
    names = {
        "accelerator", "count", "workers", "acceleratorsPerWorker", "nodes", "region", "capacityType", "epochSeconds",
        "epochSecondsInterval", "totalSeconds", "usd", "usdPerEpoch", "usdInterval", "checkpointSeconds",
        "expectedInterruptions", "reasons", "extrapolates",
    }  # fmt: skip
    for candidate in (made["chosen"], *made["candidates"], *made["pareto"]):
        assert names <= set(candidate)
        low, high = candidate["epochSecondsInterval"]
        assert low < candidate["epochSeconds"] < high
        assert candidate["usdInterval"][0] <= candidate["usd"] <= candidate["usdInterval"][1]
        assert candidate["usdPerEpoch"] == pytest.approx(candidate["usd"] / 60)
        assert candidate["reasons"]
    assert made["prices"]["asOf"] == "2026-11-21"
    assert Plan.model_validate(made).model_dump(mode="json", by_alias=True) == made


def test_a_fixed_placement_is_priced_by_hand():
    """Four nodes of n1-standard-64 with 8 V100 in europe-west4, on demand, at the prices of 2022."""
    made = plan_of(*IN_EUROPE, "hardware.capacityType=on-demand", as_of=STUDY)
    assert made.considered == 1
    chosen = made.chosen
    node = 64 * 0.034802 + 240 * 0.004664 + 8 * 2.55
    assert chosen.usd_per_hour == pytest.approx(4 * node)
    assert chosen.usd == pytest.approx(4 * node * chosen.total_seconds / 3600)
    assert chosen.steps_per_epoch == 40
    assert chosen.epoch_seconds == pytest.approx(115.02 + 3.37 + 4, rel=0.02)  # measured
    assert chosen.total_seconds == pytest.approx(chosen.start_up_seconds + 60 * chosen.epoch_seconds)
    assert (chosen.workers, chosen.nodes, chosen.accelerators_per_worker) == (4, 4, 8)
    assert chosen.expected_interruptions == 0


def test_cost_per_epoch_of_2_to_32_v100_is_flat_within_some_per_cent():
    """The study's statement, for nodes with the same host per GPU (8 vCPU), europe-west4, prices of 2022."""
    usd = []
    for count, per_node in ((2, 1), (4, 2), (8, 4), (16, 8), (32, 8)):
        size = (f"hardware.count={count}", f"hardware.perNode={per_node}")
        made = plan_of(*IN_EUROPE, *size, "hardware.capacityType=spot", as_of=STUDY)
        usd.append(made.chosen.usd_per_hour * made.chosen.epoch_seconds / 3600)
    assert max(usd) / min(usd) < 1.1


def test_one_worker_a_node_is_the_best_layout_of_32_gpus_and_the_penalties_are_the_measured_ones():
    made = plan_of(*IN_EUROPE)
    best = made.layouts[0]
    assert (best.workers, best.accelerators_per_worker, best.nodes) == (4, 8, 4)
    assert best.aligned and best.slower_than_best == 0
    on_four_nodes = {layout.workers: layout for layout in made.layouts if layout.nodes == 4}
    measured = {8: 116.09 / 115.02, 16: 119.82 / 115.02, 32: 136.33 / 115.02}
    for workers, ratio in measured.items():
        assert 1 + on_four_nodes[workers].slower_than_best == pytest.approx(ratio, abs=0.03)
        assert not on_four_nodes[workers].aligned
    assert on_four_nodes[32].step_scatter == pytest.approx(0.114, abs=0.01)
    assert [x.epoch_seconds for x in made.layouts] == sorted(x.epoch_seconds for x in made.layouts)
    unmeasured = plan_of(*IN_EUROPE, "data.showers=124950", preset="flow").layouts
    assert len(unmeasured) == len(made.layouts) and {layout.step_scatter for layout in unmeasured} == {None}


def test_free_placement_considers_every_division_and_chooses_the_aligned_one():
    made = plan_of(*FOUR_NODES, "hardware.placement=Free")
    assert {c.workers for c in made.candidates} == {4, 8, 16, 32}
    assert made.chosen.workers == made.chosen.nodes == 4
    forced = plan_of(*FOUR_NODES, "hardware.placement=Free", "hardware.workers=16")
    assert forced.chosen.accelerators_per_worker == 2


def test_unmeasured_machines_are_listed_and_chosen_only_when_named():
    free = plan_of("budget.maxUsd=1000")
    unmeasured = [c for c in free.candidates if not c.measured]
    assert {"nvidia-l4", "nvidia-tesla-a100", "nvidia-h100-80gb", "tpu-v6e"} <= {c.accelerator for c in unmeasured}
    assert free.chosen.measured and all(c.measured for c in free.pareto)
    assert all("unmeasured" in c.reasons[0] and c.extrapolates for c in unmeasured)
    named = plan_of("hardware.accelerator=nvidia-l4")
    assert named.chosen.accelerator == "nvidia-l4" and not named.chosen.measured
    titles = [[getattr(block, "caption", "") for block in plan_blocks(made)] for made in (free, named)]
    assert [any("Not measured" in title for title in of_plan) for of_plan in titles] == [True, False]
    one_core = plan_of("hardware.accelerator=tpu-v6e").chosen  # workers of eight cores alone were measured
    assert one_core.start_up_seconds == pytest.approx(367, abs=1)
    assert plan_of(*PART_OF_A_HOST).chosen.break_even_per_node_hour is None  # on demand it is not sold


def test_a_machine_that_is_sold_as_spot_only_is_planned_on_demand_only_where_it_is_there():
    """Nodes of flex-start have no label of spot: on a cluster both fields are those of the pool."""
    named = ("hardware.machineType=a3-highgpu-2g", "hardware.interruptionsPerNodeHour=50")
    assert {c.capacity_type for c in plan_of(*named).candidates} == {"spot"}
    there = plan_of(*named, "hardware.capacityType=on-demand").chosen
    assert any("sold as spot and flex-start only" in reason for reason in there.reasons)


def test_the_cheapest_of_each_cloud_that_is_not_slower_is_listed():
    given = ("train.batchPerReplica=96", "budget.deadline=4h")
    made = plan_of(*given)
    listed = [c for c in made.candidates if c.cloud == "azure" and c.total_seconds <= made.chosen.total_seconds]
    as_fast = (*given, "hardware.cloud=azure", f"budget.deadline={int(made.chosen.total_seconds)}s")
    sold = ("nvidia-tesla-v100-32gb", "nvidia-tesla-a100", "nvidia-h100-80gb")
    usd = min(plan_of(*as_fast, f"hardware.accelerator={name}").chosen.usd for name in sold)
    assert listed[0].usd == pytest.approx(usd)
    row = next(block for block in plan_blocks(made) if "another cloud" in getattr(block, "caption", ""))
    assert f"{usd:.2f}" in row.rows[0]


def test_a_machine_type_to_which_several_gpus_are_added_names_none_of_them():
    """A P100 would be cheaper by an estimate; nothing else is sold with an A100."""
    on = "hardware.machineType={}".format
    assert plan_of(on("n1-standard-8")).chosen.accelerator == "nvidia-tesla-v100"
    assert plan_of(on("n1-standard-8"), "hardware.accelerator=p100").chosen.accelerator == "nvidia-tesla-p100"
    assert plan_of(on("a2-highgpu-1g")).chosen.accelerator == "nvidia-tesla-a100"
    made = plan_of("data.showers=124950", on("n1-standard-8"), preset="flow")
    assert made.chosen is None and any("name hardware.accelerator" in note for note in made.notes)


def test_a_plan_on_tpus_says_that_the_image_for_them_is_needed():
    named = "cluster.image=example.org/trainer:0.1.0-tpu"
    for accelerator, overrides, says in (("tpu-v3", (), True), ("tpu-v3", (named,), False), ("v100", (), False)):
        reasons = plan_of(f"hardware.accelerator={accelerator}", *overrides).chosen.reasons
        assert any("image for TPUs" in reason for reason in reasons) is says


def test_slices_of_several_hosts_are_planned_and_chosen_only_when_asked_for():
    tpu = ("hardware.accelerator=tpu-v3", "train.batchPerReplica=128", "hardware.region=europe-west4")
    made = plan_of(*tpu, "budget.maxUsd=10000")
    assert {c.topology for c in made.candidates} == {"2x2", "4x4"}
    assert made.chosen.topology == "2x2" and made.chosen.nodes == 1
    asked = plan_of(*tpu, "hardware.topology=4x4")
    assert (asked.chosen.count, asked.chosen.nodes, asked.chosen.accelerators_per_worker) == (16, 4, 4)
    assert any("one-host slices only" in reason for reason in asked.chosen.reasons)
    assert asked.chosen.steps_per_epoch == 124_950 // (32 * 128)  # two cores a chip
    any_kind = plan_of("hardware.count=16", "train.batchPerReplica=96")
    assert "tpu-v3" in {c.accelerator for c in any_kind.candidates} and any_kind.chosen.topology is None
    two_hosts = plan_of("hardware.accelerator=tpu-v5e", "hardware.nodes=2").chosen
    assert (two_hosts.topology, two_hosts.nodes) == ("2x4", 2)
    pods = plan_of("hardware.machineType=ct3p-hightpu-4t", "train.batchPerReplica=128")
    assert pods.chosen is None and pods.notes == (
        "slices of several hosts alone are left: name hardware.topology, count or nodes to choose one",
    )


def test_interruptions_are_configured_or_unknown_and_never_invented():
    base = (*IN_EUROPE, "hardware.capacityType=spot")
    unknown = plan_of(*base).chosen
    assert unknown.expected_interruptions is None and unknown.interruptions_per_node_hour is None
    assert unknown.checkpoint_seconds == 60
    assert any("not known" in reason and reason.endswith("without any") for reason in unknown.reasons)
    daily = plan_of(*base, "hardware.nodeLifetime=24h", "train.epochs=6000").chosen
    assert daily.expected_interruptions > 5
    assert any(reason.endswith("without any but the ends of hardware.nodeLifetime") for reason in daily.reasons)
    assert unknown.break_even_per_node_hour > 0
    given_rate = plan_of(*base, "hardware.interruptionsPerNodeHour=0.1", "hardware.provisioning=5m").chosen
    assert given_rate.total_seconds > unknown.total_seconds
    assert given_rate.expected_interruptions == pytest.approx(4 * 0.1 * given_rate.total_seconds / 3600, rel=0.05)
    there = {"capacity_type": "spot", "region": "europe-west4", "provisioning_seconds": 300.0}
    own = MEASURED[4].model_copy(update={**there, "node_hours": 100.0, "interruptions": 10})
    calibrated = plan_of(*base, measurements=(*MEASURED, own)).chosen
    assert calibrated.interruptions_per_node_hour == pytest.approx(0.105)


@pytest.mark.parametrize("more", [(), ("train.epochs=1", "hardware.nodeLifetime=24h")])
def test_spot_stops_paying_at_the_break_even_rate(more):
    """With the start-up, which is half of a short training, in both."""
    base = (*IN_EUROPE, *more)
    rate = plan_of(*base, "hardware.capacityType=spot").chosen.break_even_per_node_hour
    assert plan_of(*base, f"hardware.interruptionsPerNodeHour={0.8 * rate}").chosen.capacity_type == "spot"
    assert plan_of(*base, f"hardware.interruptionsPerNodeHour={1.3 * rate}").chosen.capacity_type == "on-demand"
    there = (f"hardware.interruptionsPerNodeHour={rate}", "hardware.capacityType=spot")
    on_demand = plan_of(*base, "hardware.capacityType=on-demand").chosen.usd
    assert plan_of(*base, *there).chosen.usd == pytest.approx(on_demand, rel=1e-6)


def test_a_wait_that_is_interrupted_is_not_taken_off_the_money_in_full():
    """One V100, taken away each hour, an hour to a new one: what an event simulation pays."""
    base = (*V100, "hardware.count=1", "hardware.region=us-central1", "hardware.capacityType=spot")
    chosen = plan_of(*base, "hardware.interruptionsPerNodeHour=1", "hardware.provisioning=1h").chosen
    seconds, _, waiting = mean_run(
        30,
        work=60 * chosen.epoch_seconds,
        nodes=1,
        per_node_rate=1 / 3600,
        save=5,
        start_up=chosen.start_up_seconds,
        tau=chosen.checkpoint_seconds,
        lifetime=float("inf"),
        provisioning=3600,
    )
    assert chosen.usd == pytest.approx(chosen.usd_per_hour * (seconds - waiting) / 3600, rel=0.03)


@settings(max_examples=20, deadline=None)
@given(
    rate=st.floats(0, 10),
    more=st.floats(0, 40),
    minutes=st.integers(1, 120),
    placed=st.sampled_from(["nvidia-tesla-v100 count=1", "nvidia-tesla-v100 count=32", "tpu-v3 count=4"]),
)
def test_more_interruptions_are_never_cheaper(rate, more, minutes, placed):
    placed = f"accelerator={placed}"
    base = [f"hardware.{field}" for field in (*placed.split(), "region=us-central1", "capacityType=spot")]
    few, many = (
        plan_of(*base, f"hardware.interruptionsPerNodeHour={each}", f"hardware.provisioning={minutes}m")
        for each in (rate, rate + more)
    )
    cheapest = [min((c.usd for c in made.pareto), default=float("inf")) for made in (few, many)]
    assert cheapest[1] >= cheapest[0] * (1 - 1e-6) > 0


def test_what_never_ends_is_not_chosen_and_says_why():
    base = (*V100, "hardware.count=128", "hardware.interruptionsPerNodeHour=50")
    made = plan_of(*base)
    assert made.chosen.capacity_type == "on-demand"
    assert any("interrupted before they make progress" in note for note in made.notes)
    spot = [c for c in made.candidates if c.capacity_type == "spot"]
    assert spot and all(any("never chosen" in reason for reason in c.reasons) for c in spot)
    alone = plan_of(*base, "hardware.capacityType=spot")
    assert alone.chosen is None and alone.nearest is None
    assert not any("nothing was measured" in note for note in alone.notes)
    two_nodes = ("hardware.count=16", "hardware.interruptionsPerNodeHour=500", "hardware.provisioning=10h")
    waiting = plan_of(V100[0], *two_nodes, "hardware.capacityType=spot")
    years = 1000 * 365 * 24
    for endless in waiting.candidates:  # dollars of all nodes, not the difference of two huge times
        assert endless.total_seconds == years * 3600 and endless.node_hours == endless.nodes * years
        assert endless.usd == pytest.approx(endless.usd_per_hour * years)
    spot = ("hardware.capacityType=spot", "hardware.interruptionsPerNodeHour=0.05", "train.epochs=640000")
    late = plan_of(V100[0], "hardware.count=8", "hardware.perNode=8", "hardware.region=europe-west4", *spot).chosen
    most_seconds, most_usd = late.total_seconds_interval[1], late.usd_interval[1]
    assert most_seconds > 10 * 365 * 86_400 > late.total_seconds  # the upper end alone takes ten years
    assert most_usd == pytest.approx(late.usd_per_hour * most_seconds / 3600)
    (long,) = plan_of(*IN_EUROPE, "hardware.capacityType=on-demand", "train.epochs=10000000").candidates
    assert long.usd == pytest.approx(long.usd_per_hour * long.total_seconds / 3600)
    assert any("takes ten years, or" in reason for reason in long.reasons)


def test_max_minutes_ends_the_training():
    base = (*V100, "hardware.count=1", "hardware.capacityType=on-demand", "hardware.region=us-central1")
    chosen = plan_of(*base, "train.maxMinutes=30").chosen
    assert chosen.total_seconds == pytest.approx(1800)  # the trainer's clock begins with the start-up, too
    assert chosen.usd == pytest.approx(chosen.usd_per_hour * chosen.total_seconds / 3600)
    assert chosen.usd_per_epoch == pytest.approx(chosen.usd * chosen.epoch_seconds / (1800 - chosen.start_up_seconds))
    short = plan_of(*base, "train.maxMinutes=0.1").chosen
    assert (short.epochs, short.total_seconds) == (0, pytest.approx(short.start_up_seconds))
    assert any("train.maxMinutes ends the training after 0.5 of 60 epochs" in reason for reason in chosen.reasons)
    whole = plan_of(*base).chosen
    assert plan_of(*base, "train.maxMinutes=100000").chosen == whole
    assert not any("maxMinutes" in reason for reason in whole.reasons)


@pytest.mark.parametrize(
    ("strategy", "fits"),
    [
        ("one-device", lambda c: c.count == 1 and c.topology is None),
        ("mirrored", lambda c: c.workers == 1 and c.topology is None),
        ("multi-worker", lambda c: c.topology is None),
        ("tpu", lambda c: c.topology is not None),
        ("auto", lambda c: True),
    ],
)
def test_a_strategy_is_planned_where_it_trains_on_all_accelerators(strategy, fits):
    """Others would be rented and idle, or the training refuses them when they are paid."""
    whole = plan_of("train.batchPerReplica=96", "hardware.maxNodes=3").candidates
    made = plan_of("train.batchPerReplica=96", "hardware.maxNodes=3", f"train.strategy={strategy}")
    assert {c.accelerator for c in made.candidates} <= {c.accelerator for c in whole}
    assert made.candidates and all(map(fits, made.candidates))
    if strategy == "one-device":
        with pytest.raises(ConfigurationError, match=r"train\.strategy one-device does not train on all"):
            plan_of(*FOUR_NODES, "train.strategy=one-device")


@pytest.mark.parametrize("field", ["maxBatchPerReplica=64", "accumulate=32"])
def test_memory_holds_a_micro_batch(field):
    base = (V100[0], "hardware.count=1", "train.globalBatchSize=2048")
    chosen = plan_of(*base, f"train.{field}").chosen
    assert chosen.batch_per_replica == 2048
    assert "32 micro-batches of 64: timed as one batch of 2048" in chosen.reasons
    assert not any("unproven" in reason for reason in chosen.reasons)
    with pytest.raises(ConfigurationError, match=r"at least 48\.0 GiB") as caught:
        plan_of(*base)
    assert field.partition("=")[0] in caught.value.remedy
    with pytest.raises(ConfigurationError, match="accumulate 7 does not divide the 2048 showers"):
        plan_of(*base, "train.accumulate=7")


def test_bfloat16_takes_half_the_memory():
    base = (V100[0], "hardware.count=1", "train.batchPerReplica=1000")
    with pytest.raises(ConfigurationError, match=r"23\.4 GiB"):
        plan_of(*base)
    chosen = plan_of(*base, "train.precision=bfloat16").chosen
    assert chosen.batch_per_replica == 1000 and any("timed as float32" in reason for reason in chosen.reasons)


def test_showers_of_more_cells_take_longer():
    coarse, fine = (
        plan_of(V100[0], "hardware.count=1", f"data.preprocessing.rebin={rebin}", preset="compact").chosen
        for rebin in ("[3, 3, 1]", "[1, 1, 1]")
    )
    assert fine.step_seconds > 1.5 * coarse.step_seconds
    assert any("65025 cells and 2.45 GFLOP a shower; the preset compact has 7225" in reason for reason in fine.reasons)
    assert not any("cells" in reason for reason in coarse.reasons)


def test_a_measurement_on_the_cells_of_the_preset_is_scaled_to_other_cells():
    own = MEASURED[4].model_copy(update={"network": "compact", "source": "run mine"})
    measured = (*MEASURED, own)
    usual, fine = (
        plan_of(*V100, "hardware.count=8", f"data.preprocessing.rebin={rebin}", preset="compact", measurements=measured)
        for rebin in ("[3, 3, 1]", "[1, 1, 1]")
    )
    usual, fine = usual.chosen, fine.chosen
    assert usual.measured and not fine.measured
    assert fine.step_seconds == pytest.approx(9 * usual.step_seconds, rel=0.1)
    assert fine.reasons[0].startswith("scaled: nvidia-tesla-v100 with compact x 9")
    flow = own.model_copy(update={"network": "flow"})  # a preset that is not in the catalogue of networks
    fine = plan_of(*V100, "data.preprocessing.rebin=[1, 3, 1]", preset="flow", measurements=(*MEASURED, flow)).chosen
    assert not fine.measured and fine.reasons[0].startswith("scaled: nvidia-tesla-v100 with flow x")
    other_form = network_of_preset("flow").model_copy(update={"gflop_per_shower": 0.1})  # as many cells, more layers
    assert not Timings((*MEASURED, flow), other_form).of("gcp", "nvidia-tesla-v100").measured
    other = plan_of("hardware.accelerator=nvidia-l4", preset="flow", measurements=(*MEASURED, flow)).chosen
    assert other.reasons[0].startswith("unmeasured: nvidia-tesla-v100 with flow x")
    on_l4 = own.model_copy(update={"accelerator": "nvidia-l4", "machine_type": "g2-standard-4"})
    fine_network = load_networks()["compact"].model_copy(update={"cells": 9 * load_networks()["compact"].cells})
    timings = Timings((*MEASURED, on_l4), fine_network)
    assert "nvidia-l4 with compact x 1" in timings.of("gcp", "nvidia-l4").basis


def test_when_nothing_meets_the_limits_the_nearest_is_named():
    made = plan_of("budget.maxUsd=20", "budget.deadline=2h")
    assert made.chosen is None and made.binding == "both"
    assert made.nearest in made.pareto
    assert any("raise" in note for note in made.notes)
    assert plan_of("budget.maxUsd=1").binding == "maxUsd"


def test_compatible_and_incompatible_limits_are_distinguished():
    """One of two limits that can be met, but not together, may be raised; of two that cannot be met both must be."""
    base = (*V100, "hardware.region=europe-west4", "hardware.capacityType=spot")
    fastest = min(plan_of(*base).pareto, key=lambda c: c.total_seconds)
    either = (f"budget.maxUsd={fastest.usd - 0.01}", f"budget.deadline={int(fastest.total_seconds) + 1}s")
    for limits, word in ((("budget.maxUsd=5", "budget.deadline=10m"), "and"), (either, "or")):
        made = plan_of(*base, *limits)
        assert made.binding == "both"
        assert f"no candidate meets both limits: raise budget.maxUsd {word} budget.deadline" in made.notes


def test_prices_that_are_too_old_are_distinguished_from_missing_ones():
    made = plan_of(as_of=dt.date(2025, 6, 1))
    (old,) = (note for note in made.notes if "older than budget.maxPriceAge" in note)
    assert "n1-standard-64 with 8 x nvidia-tesla-v100" in old and "nvidia-b200" not in old
    assert any("nvidia-b200" in title for title in made.prices.unpriced)
    assert not any("v100" in title for title in made.prices.unpriced)
    assert not any("maxPriceAge" in note for note in plan_of().notes)


def test_a_short_time_between_checkpoints_is_not_shown_as_none():
    for seconds, shown in ((0.001, "0.001"), (0.5, "0.5"), (9.5, "9.5"), (10, "10"), (1234, "1234")):
        chosen = plan_of(*IN_EUROPE, "hardware.capacityType=on-demand", f"checkpoint.everySeconds={seconds}").chosen
        assert f"a checkpoint every {shown} s" in in_words(chosen)


def test_a_plan_says_with_which_interval_between_checkpoints_its_time_is_reached():
    spot = (*IN_EUROPE, "hardware.capacityType=spot", "hardware.interruptionsPerNodeHour=0.05")
    chosen = plan_of(*spot).chosen
    best = f"checkpoint.everySeconds={chosen.checkpoint_seconds:.0f}"
    (said,) = [reason for reason in chosen.reasons if "best interval" in reason]
    assert best in said and said.endswith("the run saves every 60 s")
    for without in (plan_of(*spot, best).chosen, plan_of(*IN_EUROPE).chosen):
        assert not any("best interval" in reason for reason in without.reasons)


def test_a_price_that_was_seen_after_its_day_is_not_old():
    """The price of 2022 was seen on 2025-03-02: 365 + 365 + 366 + 60 days after 2022-01-01."""
    for day, says in ((dt.date(2022, 1, 1), "seen 1156 days later"), (dt.date(2025, 3, 2), "0 days old")):
        made = plan_of("hardware.cloud=azure", "hardware.region=eastus", as_of=day)
        page = markdown(*plan_blocks(made))
        assert f"price: 2.448 USD an hour of NC24s_v3 (vm), {says}" in page


@pytest.mark.parametrize(
    ("overrides", "error", "says"),
    [
        (["hardware.accelerator=nvidia-tesla-v10"], ConfigurationError, "did you mean 'nvidia-tesla-v100'"),
        (["hardware.accelerator=tpu-v3", "hardware.topology=3x3"], ConfigurationError, "there are 2x2"),
        (["hardware.topology=7x7"], ConfigurationError, "one of 2x2"),
        (["hardware.accelerator=nvidia-l4", "hardware.topology=2x2"], ConfigurationError, "belongs to TPU"),
        ([*V100, "hardware.count=3", "hardware.perNode=8"], ConfigurationError, "not a multiple"),
        (["hardware.count=8", "hardware.perNode=3"], ConfigurationError, "multiple"),
        (["hardware.accelerator=nvidia-tesla-a100", "hardware.perNode=3"], ConfigurationError, "1, 2, 4, 8, 16"),
        (["hardware.accelerator=nvidia-gb200", "hardware.count=6"], ConfigurationError, "reached by no layout"),
        (["hardware.accelerator=nvidia-b200"], PriceError, "add a row 'gcp,"),
        ([*V100, "hardware.region=mars-east1"], PriceError, "europe-west4, us-central1"),
        (["hardware.machineType=n1-standrd-64"], InputError, "did you mean 'n1-standard-64'"),
        (["budget.maxUsd=-5"], ConfigurationError, "greater than 0"),
        (["data.showers=null", "data.source=/data/showers"], ConfigurationError, "data.showers=124950"),
        (["train.batchPerReplica=4096"], ConfigurationError, "GiB"),
        (["data.showers=10"], ConfigurationError, "beyond the 10 showers"),
        (["hardware.diskGib=100"], PriceError, "disk_gib"),
        ([*V100, "hardware.controlPlane=true"], PriceError, "control_plane"),
        ([*PART_OF_A_HOST, "hardware.capacityType=on-demand"], PriceError, "a3-highgpu-2g is not sold on demand"),
    ],
)
def test_bad_input_is_refused_with_a_remedy(overrides, error, says):
    with pytest.raises(error, match=says) as caught:
        plan_of(*overrides)
    assert caught.value.exit_code == 2


def test_the_figure_names_the_choice(tmp_path):
    made = plan_of(*V100, "hardware.region=europe-west4", "budget.deadline=4h")
    draw_plan(made, tmp_path / "pareto.svg")
    text = (tmp_path / "pareto.svg").read_text()
    assert f"chosen: {made.chosen.count} x nvidia-tesla-v100, europe-west4, spot" in text
    assert "prices of 2026-11-21" in text


def test_a_family_that_xla_cannot_compile_gets_no_tpu():
    """With a GPU or nothing named it has the others; a TPU that is named is refused."""
    made = plan_of("hardware.cloud=gcp", preset="flow")
    assert made.candidates and not any("tpu" in candidate.accelerator for candidate in made.candidates)
    assert "TPUs do not train the family flow" in " ".join(made.notes)
    for named in ("accelerator=tpu-v3", "machineType=ct5lp-hightpu-1t", "topology=2x2"):
        with pytest.raises(ConfigurationError, match="XLA cannot compile its step") as error:
            plan_of(f"hardware.{named}", preset="flow")
        assert error.value.exit_code == 2 and "name a GPU" in str(error.value)


def test_prices_of_disks_and_the_control_plane_count_on_own_machines_that_have_a_price(tmp_path):
    """Without a price of the machine the choice is that of the hours of accelerators alone."""
    own = ("hardware.cloud=none", "hardware.perNode=8", "hardware.region=mylab", *V100)
    beside = ("hardware.diskGib=100", "hardware.controlPlane=true")
    header = "provider,region,sku_kind,sku,unit,capacity_type,usd_per_unit_hour,effective_from,observed_on,source\n"
    rows = {"vm,own,vm": 5, "disk_gib,boot,gib": 0.001, "control_plane,cluster,cluster": 50}
    files = [tmp_path / "own.csv", tmp_path / "beside.csv"]
    for first, file in enumerate(files):
        lines = (f"none,own,{sold},on-demand,{usd},2026-01-01,2026-11-01,ours\n" for sold, usd in rows.items())
        file.write_text(header + "".join(list(lines)[first:]))
    priced = plan_of(*own, *beside, prices=load_prices(files[:1])).chosen
    assert priced.usd_per_hour == pytest.approx(priced.nodes * (5 + 100 * 0.001) + 50)
    for prices in (PRICES, load_prices(files[1:])):
        without = plan_of(*own, *beside, prices=prices)
        assert without.chosen == plan_of(*own).chosen and without.prices.parts == ()


def test_a_price_of_own_machines_in_a_region_counts_where_the_run_names_none(tmp_path):
    own = ("hardware.cloud=none", "hardware.perNode=8", "hardware.machineType=box", *V100)
    header = "provider,region,sku_kind,sku,unit,capacity_type,usd_per_unit_hour,effective_from,observed_on,source\n"
    row = "none,{},vm,box,vm,on-demand,{},2026-01-01,2026-11-01,ours\n".format
    (tmp_path / "own.csv").write_text(header + row("lab-b", 7) + row("lab-a", 9))
    prices = load_prices([tmp_path / "own.csv"])
    for overrides, region, usd in (((), "lab-b", 7), (("hardware.region=lab-a",), "lab-a", 9)):
        chosen = plan_of(*own, *overrides, prices=prices).chosen
        assert (chosen.region, chosen.usd_per_hour) == (region, usd * chosen.nodes)


@pytest.mark.parametrize(
    ("field", "sold"), [("diskGib=100", "disk_gib,boot,gib"), ("controlPlane=true", "control_plane,cluster,cluster")]
)
def test_regions_without_a_price_of_disks_or_the_control_plane_are_left_out(tmp_path, field, sold):
    (tmp_path / "more.csv").write_text(
        "provider,region,sku_kind,sku,unit,capacity_type,usd_per_unit_hour,effective_from,observed_on,source\n"
        f"gcp,europe-west4,{sold},on-demand,0.1,2026-01-01,2026-11-01,Compute Engine pricing\n"
    )
    made = plan_of(*V100, f"hardware.{field}", prices=load_prices([tmp_path / "more.csv"]))
    assert {c.region for c in plan_of(*V100).candidates} == {"europe-west4", "us-central1"}
    assert {c.region for c in made.candidates} == {"europe-west4"}
    assert made.prices.parts[-1].usd_per_unit_hour == 0.1


def test_own_machines_may_have_more_accelerators_than_those_of_clouds():
    made = plan_of("hardware.cloud=none", "hardware.perNode=72", "hardware.nodes=2", *V100)
    assert (made.chosen.count, made.chosen.workers) == (144, 2)


def test_the_fixed_cost_of_an_epoch_of_another_network_may_be_none():
    """Most of an epoch of 1,440 showers would be that of the study's epochs of a hundred thousand."""
    chosen = plan_of(V100[0], "hardware.count=1", preset="compact").chosen
    assert not chosen.measured and chosen.extrapolates
    assert plan_of(preset="compact").chosen is None
    low, high = chosen.epoch_seconds_interval
    assert low < 0.2 * chosen.epoch_seconds and high > 1.9 * chosen.epoch_seconds
    assert "in addition to its showers are those of variable-angle: may be none" in " ".join(chosen.reasons)
