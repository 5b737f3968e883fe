"""Where runs go, what is missing when they cannot, and whether they are where they should be."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from caloscale.cluster.capacity import pool_plan
from caloscale.cluster.capacity.gke_pools import scale_from_zero_pools
from caloscale.cluster.capacity.nodes import Use, node_of
from caloscale.cluster.capacity.placement import choose_placement, shortage, verify_placement
from caloscale.cluster.capacity.resizing import resize, shrink, worker_configuration
from caloscale.cluster.workload.pod_template import pod_template
from caloscale.planning.catalogue.hardware import load_accelerators
from caloscale.planning.search.plan import plan
from caloscale.spec import build_run
from tests.cluster import examples as ex

V100 = ("hardware.accelerator=nvidia-tesla-v100", "hardware.perNode=8")


def test_the_shortage_is_exact() -> None:
    run = ex.run_of(*V100, "hardware.count=32")
    held = Use("n0", 8, 38.0, 140.0)
    there = ex.pools(*(ex.node(f"n{i}", "X") for i in range(4)), uses=(held,))
    placed = choose_placement(run, there, ex.CATALOGUE).placed
    assert placed is not None
    assert shortage(placed, there) == "4 nodes with 8 free nvidia-tesla-v100 needed, 3 present: pool X is at 3/4"
    assert shortage(placed, ex.pools(*(ex.node(f"n{i}", "X") for i in range(4)))) is None
    gone = shortage(placed, ex.pools(*(ex.node(f"n{i}", "Y") for i in range(4))))
    assert gone == "4 nodes with 8 free nvidia-tesla-v100 needed, 0 present: pool X is at 0/0"


def test_launched_workers_that_are_not_bound_yet_count() -> None:
    run = ex.run_of(*V100, "hardware.count=16")
    raw = [ex.node(f"n{i}", "X") for i in range(3)]
    placed = choose_placement(run, ex.pools(*raw), ex.CATALOGUE).placed
    on_demand, spot = (("X", "nvidia-tesla-v100", kind) for kind in ("on-demand", "spot"))
    assert placed is not None and shortage(placed, ex.pools(*raw, coming={on_demand: 1, spot: 3})) is None
    assert "1 present" in str(shortage(placed, ex.pools(*raw, coming={on_demand: 2})))


@pytest.mark.parametrize(
    "change",
    [
        {"ready": "False"},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "dedicated", "value": "others", "effect": "NoSchedule"}]}},
        {"spec": {"taints": [{"key": "nvidia.com/gpu", "value": "broken", "effect": "NoExecute"}]}},
        {"spec": {"taints": [{"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"}]}},
        {"labels": {"cloud.google.com/gke-gpu-sharing-strategy": "time-sharing"}},
        {"allocatable": {"nvidia.com/gpu": ""}},  # a recreated node whose driver is not there yet
    ],
    ids=["not ready", "cordoned", "foreign taint", "emptied", "spot without its label", "shared", "no driver"],
)
def test_nodes_that_are_not_for_us(change: dict) -> None:
    run = ex.run_of(*V100, "hardware.count=16")
    there = ex.pools(ex.node("n0", "X"), ex.node("n1", "X", **change))
    choice = choose_placement(run, there, ex.CATALOGUE)
    assert choice.placed is None or shortage(choice.placed, there) is not None


@pytest.mark.parametrize("value", ["present", "true", None])
def test_gpu_nodes_are_tainted_in_many_ways(value: str | None) -> None:
    taint = {"key": "nvidia.com/gpu", "effect": "NoSchedule"} | ({"value": value} if value else {})
    raw = ex.node("n0", "X", spec={"taints": [taint]})
    launch = ex.launch_of(ex.run_of(*V100, "hardware.count=8"), raw)
    keys = {each["key"]: each for each in pod_template(launch)["spec"]["tolerations"]}
    assert keys["nvidia.com/gpu"] == {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def test_a_gpu_node_is_not_for_processors() -> None:
    """Its taint keeps pods away that ask for no GPU."""
    tainted = ex.cpu_node("c0")
    tainted["spec"]["taints"] = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    assert not node_of(tainted).open and node_of(ex.cpu_node("c1")).open


@pytest.mark.parametrize("hardware", [(), ("hardware.accelerator=nvidia-tesla-v100", "hardware.count=8")])
def test_a_node_whose_gpus_are_not_there_yet_is_none_without_gpus(hardware: tuple[str, ...]) -> None:
    """Of a new node the kubelet is ready before the device plugin; the batch and the bill would be those of no GPU."""
    run, new = ex.run_of(*hardware), ex.node("n0", gpus=0)
    pools, refused = ex.pools_of(ex.nodes(new))
    assert not pools and "pool v100-8 advertises no nvidia-tesla-v100: driver or device plugin" in refused[0]
    placed = choose_placement(run, ex.pools(new, ex.node("n1")), ex.CATALOGUE).placed
    assert placed is not None and (placed.per_node, placed.accelerators_per_worker, placed.global_batch) == (8, 8, 512)


def test_shared_pools_are_refused_with_the_reason() -> None:
    shared = ex.node("n0", "cheap", labels={"cloud.google.com/gke-gpu-sharing-strategy": "mps"})
    found, refused = ex.pools_of([node_of(shared)], ())
    assert found == [] and len(refused) == 1 and "pool cheap shares its GPUs" in refused[0]


@pytest.mark.parametrize(
    ("taint", "shown"),
    [
        ({"key": "team", "value": "b", "effect": "NoSchedule"}, "team=b:NoSchedule, which workers do not tolerate"),
        ({"key": "broken", "effect": "NoExecute"}, "broken:NoExecute, which workers do not tolerate: remove it"),
        ({"key": "node.kubernetes.io/not-ready", "effect": "NoExecute"}, None),
        ({"key": "ToBeDeletedByClusterAutoscaler", "value": "1", "effect": "NoSchedule"}, None),
    ],
)
def test_a_pool_with_a_taint_of_an_administrator_says_so(taint: dict[str, str], shown: str | None) -> None:
    found, refused = ex.pools_of([node_of(ex.node("n0", "X", spec={"taints": [taint]}))], ())
    assert found == [] and refused == ([] if shown is None else refused[:1])
    assert shown is None or f"pool X has the taint {shown}" in refused[0]


def test_a_node_of_which_a_stranger_has_a_gpu_is_not_whole() -> None:
    run = ex.run_of(*V100, "hardware.count=8")
    there = ex.pools(ex.node("n0", "X"), uses=(Use("n0", 1, 1.0, 1.0),))
    placed = choose_placement(run, there, ex.CATALOGUE).placed
    assert placed is not None and "0 present: pool X is at 0/1" in str(shortage(placed, there))


def test_without_a_pool_the_message_says_what_there_is() -> None:
    choice = choose_placement(ex.run_of(*V100, "hardware.count=32"), [], ex.CATALOGUE)
    assert choice.message == (
        "4 nodes with 8 free nvidia-tesla-v100 needed, 0 present: "
        "the cluster has no pool with accelerators that is ready"
    )
    other = choose_placement(
        ex.run_of(*V100, "hardware.count=32", "hardware.capacityType=spot"), ex.pools(ex.node("n0", "X")), ex.CATALOGUE
    )
    assert other.message.endswith("the pools are X (1 x 8 nvidia-tesla-v100, on-demand, europe-west4)")
    unknown = ex.pools(ex.node("n0", "X", labels={"node.kubernetes.io/instance-type": "n1-standard-48"}))
    run = ex.run_of(*V100, "hardware.count=8", "hardware.cloud=gcp")
    message = choose_placement(run, unknown, ex.CATALOGUE).message
    assert "nvidia-tesla-v100, its cloud is none by machine type n1-standard-48, on-demand" in message


def test_the_plan_is_the_planners() -> None:
    run = ex.run_of(*V100, "hardware.count=32", "hardware.capacityType=spot", "hardware.region=europe-west4")
    placed = choose_placement(run, ex.pools(*(ex.spot(f"n{i}") for i in range(4))), ex.CATALOGUE).placed
    best = plan(run, ex.CATALOGUE.prices, ex.CATALOGUE.measurements, ex.CATALOGUE.as_of).chosen
    assert placed is not None and best is not None
    assert (placed.nodes, placed.workers, placed.estimate_usd, placed.usd_per_hour) == (
        best.nodes,
        best.workers,
        best.usd,
        best.usd_per_hour,
    )


def test_a_pool_with_room_goes_before_a_cheaper_one_without() -> None:
    run = ex.run_of(*V100, "hardware.count=16")
    raw = [*(ex.spot(f"s{i}", "cheap") for i in range(2)), *(ex.node(f"n{i}", "expensive") for i in range(2))]
    assert choose_placement(run, ex.pools(*raw), ex.CATALOGUE).placed.pool == "cheap"  # type: ignore[union-attr]
    full = ex.pools(*raw, uses=(Use("s0", 8, 1.0, 1.0),))
    assert choose_placement(run, full, ex.CATALOGUE).placed.pool == "expensive"  # type: ignore[union-attr]


def test_beyond_the_budget_nothing_is_placed() -> None:
    run = ex.run_of(*V100, "hardware.count=32", "budget.maxUsd=1")
    choice = choose_placement(run, ex.pools(*(ex.spot(f"n{i}") for i in range(4))), ex.CATALOGUE)
    assert choice.placed is None and choice.over_budget
    assert "USD" in choice.message and "budget.maxUsd is 1" in choice.message and "remedy" in choice.message


SPOT = (V100[0], "hardware.capacityType=spot", "hardware.region=europe-west4")


@pytest.mark.parametrize(
    ("there", "limit", "needed"),
    [(1, "deadline=6h", 2), (2, "deadline=6h", 2), (8, "deadline=6h", 2), (3, "deadline=90m", 7), (1, "maxUsd=100", 1)],
)
def test_a_run_that_more_nodes_would_end_in_time_waits_for_the_fewest(there: int, limit: str, needed: int) -> None:
    """Nothing is final while they may come; what is there is enough once it is."""
    pools = ex.pools(*(ex.spot(f"n{i}", "X") for i in range(there)))
    choice = choose_placement(ex.run_of(*SPOT, f"budget.{limit}"), pools, ex.CATALOGUE)
    assert choice.placed is not None and not choice.over_budget and choice.placed.nodes == needed
    few = f"{needed} nodes with 8 free nvidia-tesla-v100 needed, {there} present: pool X is at {there}/{there}"
    assert shortage(choice.placed, pools) == (few if there < needed else None)
    assert any(r.startswith(f"too few nodes are there ({there}): ") for r in choice.placed.reasons) == (there < needed)


def test_a_batch_that_needs_more_nodes_waits_for_them() -> None:
    pools = ex.pools(ex.spot("n0"))
    placed = choose_placement(ex.run_of(*SPOT, "train.globalBatchSize=6144"), pools, ex.CATALOGUE).placed
    assert placed is not None and placed.nodes == 2 and "has 16 GiB" in placed.reasons[-1]


def test_what_no_number_of_nodes_mends_is_final() -> None:
    run = ex.run_of(*SPOT, "budget.deadline=1h", "hardware.maxNodes=4")
    choice = choose_placement(run, ex.pools(ex.spot("n0")), ex.CATALOGUE)
    assert choice.placed is None and choice.over_budget and "on 4 x n1-standard-64" in choice.message


@pytest.mark.parametrize("there", [0, 1])
def test_an_autoscaler_is_asked_for_as_many_nodes_as_the_plan_wants(there: int) -> None:
    """What is there, or the one node that stands for a pool to come, does not bound the plan."""
    run = ex.run_of(*SPOT, "hardware.perNode=8", "cluster.addNodes=true", "budget.deadline=6h")
    pools = ex.pools(*(ex.spot(f"n{i}") for i in range(there)))
    choice = choose_placement(run, [*pools, *scale_from_zero_pools(run, pools)], ex.CATALOGUE)
    best = plan(run, ex.CATALOGUE.prices, ex.CATALOGUE.measurements, ex.CATALOGUE.as_of).chosen
    assert choice.placed is not None and best is not None and best.nodes > 1
    assert (choice.placed.nodes, choice.placed.estimate_usd) == (best.nodes, best.usd)


def test_without_a_price_it_is_planned_in_hours_but_not_with_a_budget() -> None:
    raw = [ex.node("n0", "X", labels={"node.kubernetes.io/instance-type": "own-box"})]
    run = ex.run_of(*V100, "hardware.count=8")
    placed = choose_placement(run, ex.pools(*raw), ex.CATALOGUE).placed
    assert placed is not None and placed.estimate_usd is None and placed.estimate_seconds
    assert any("accelerator hours are counted" in reason for reason in placed.reasons)
    limited = choose_placement(ex.run_of(*V100, "hardware.count=8", "budget.maxUsd=10"), ex.pools(*raw), ex.CATALOGUE)
    assert limited.placed is None and "none,europe-west4,vm,own-box" in limited.message and not limited.over_budget


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 8), st.integers(1, 4), st.sampled_from([64, 96, 30, 7]))
def test_fewer_nodes_keep_the_global_batch(free: int, least: int, batch: int) -> None:
    run = ex.run_of(*V100, "hardware.count=64", f"recovery.elastic.minNodes={least}", f"train.batchPerReplica={batch}")
    raw = [ex.node(f"n{i}", "X") for i in range(8)]
    placed = choose_placement(run, ex.pools(*raw), ex.CATALOGUE).placed
    assert placed is not None
    busy = tuple(Use(f"n{i}", 8, 1.0, 1.0) for i in range(free, 8))
    smaller = shrink(run, placed, ex.pools(*raw, uses=busy))
    possible = [n for n in range(least, min(free, 7) + 1) if placed.global_batch % (n * 8) == 0]
    if not possible:
        assert smaller is None
        return
    assert smaller is not None and smaller.nodes == max(possible) and smaller.planned_nodes == 8
    replicas = smaller.nodes * smaller.per_node
    assert replicas * smaller.batch_per_replica * smaller.accumulate == placed.global_batch
    assert smaller.batch_per_replica <= placed.batch_per_replica
    assert worker_configuration({}, smaller) == worker_configuration({}, placed)
    grown = resize(run, smaller, 8)
    assert grown is not None and (grown.nodes, grown.workers, grown.accumulate) == (8, 8, 1)
    assert grown.batch_per_replica == placed.batch_per_replica


def test_the_trainer_divides_as_the_operator_says() -> None:
    """The micro-batches that the status announces are those of `Train.micro_batches`."""
    run = ex.run_of(*V100, "hardware.count=64", "train.batchPerReplica=96")
    raw = [ex.node(f"n{i}", "X") for i in range(8)]
    placed = choose_placement(run, ex.pools(*raw), ex.CATALOGUE).placed
    assert placed is not None
    for nodes in (4, 2, 1):
        smaller = resize(run, placed, nodes)
        assert smaller is not None
        train = build_run(worker_configuration(run.model_dump(mode="json", by_alias=True), smaller)).train
        share = train.replica_batch(nodes * 8 * load_accelerators()["nvidia-tesla-v100"].replicas)
        assert train.micro_batches(share) == smaller.accumulate


def test_slices_do_not_shrink() -> None:
    raw = [ex.tpu_node(f"t{i}", "v3", "4x4", "tpu-v3-slice", "ct3p-hightpu-4t") for i in range(4)]
    run = ex.run_of("hardware.accelerator=tpu-v3", "hardware.topology=4x4")
    placed = choose_placement(run, ex.pools(*raw), ex.CATALOGUE).placed
    assert placed is not None and placed.workers == 4 and shrink(run, placed, ex.pools(*raw[:2])) is None


def test_a_topology_that_is_none_is_no_slice() -> None:
    """The label of a node may say anything, and other pools are looked at all the same."""
    odd = ex.tpu_node("t0", "odd", "4x4-x", "tpu-v3-slice", "ct3p-hightpu-4t")
    placed = choose_placement(ex.run_of("hardware.accelerator=tpu-v3"), ex.pools(odd, ex.TPU_HOST), ex.CATALOGUE).placed
    assert placed is not None and placed.pool == "v3-8"


@pytest.mark.parametrize(
    ("hardware", "pool"),
    [([], "v100-8"), (["topology=4x4"], "v3"), (["accelerator=tpu-v3", "count=16"], "v3"), (["accelerator=v3"], None)],
)
def test_a_slice_of_several_hosts_is_taken_only_where_it_is_named(hardware: list[str], pool: str | None) -> None:
    """As `caloscale plan` chooses: TensorFlow drives one host, and the others would be paid for nothing."""
    run = ex.run_of(*(f"hardware.{field}" for field in hardware))
    choice = choose_placement(run, ex.pools(*ex.TPU_V3, *ex.TWO_NODES), ex.CATALOGUE)
    assert (choice.placed.pool if choice.placed is not None else None) == pool
    assert (
        choice.placed is not None or "pool v3 is a slice of 4 hosts, of which TensorFlow drives one" in choice.message
    )


def test_the_actual_placement_is_compared() -> None:
    run = ex.run_of(*V100, "hardware.count=16")
    placed = choose_placement(run, ex.pools(ex.node("n0"), ex.node("n1")), ex.CATALOGUE).placed
    assert placed is not None
    assert verify_placement(placed, [("w0", "n0", 8), ("w1", "n1", 8)]) == []
    assert verify_placement(placed, [("w0", "n0", 8), ("w1", "n0", 8)]) == ["w0 and w1 share node n0"]
    assert "has 4 accelerators" in verify_placement(placed, [("w0", "n0", 8), ("w1", "n1", 4)])[0]
    assert "1 workers run" in verify_placement(placed, [("w0", "n0", 8)])[0]


def test_a_solver_run_fills_whole_nodes_with_ranks_and_has_no_estimate() -> None:
    v100 = ("hardware.accelerator=nvidia-tesla-v100", "solver.ranks=16")
    there = ex.pools(*(ex.node(f"n{i}", "X") for i in range(3)), ex.cpu_node("c0"))
    placed = choose_placement(ex.solver_of(*v100), there, ex.CATALOGUE).placed
    assert placed is not None and (placed.backend, placed.pool) == ("MPIJob", "X")
    assert (placed.nodes, placed.workers, placed.slots, placed.accelerators_per_worker) == (2, 2, 8, 8)
    assert placed.usd_per_hour is not None and placed.estimate_usd is placed.estimate_seconds is None
    assert "not measured" in placed.reasons[0]
    limited = choose_placement(ex.solver_of(*v100, "solver.maxMinutes=90"), there, ex.CATALOGUE).placed
    assert limited is not None and limited.estimate_seconds == 5400
    assert limited.estimate_usd == pytest.approx(1.5 * placed.usd_per_hour) and "limit" in limited.reasons[0]
    assert resize(ex.solver_of(*v100), placed, 1) is None  # the number of ranks stays
    assert worker_configuration({"solver": {"ranks": 16}, "cluster": {"suspend": True}}, placed) == {
        "solver": {"ranks": 16},
        "cluster": {"suspend": False},
    }


@pytest.mark.parametrize(("ranks", "count", "slots"), [(5, 2, 3), (4, 1, 4), (3, 3, 1)])
def test_a_solver_run_without_accelerators_divides_its_ranks_among_nodes(ranks: int, count: int, slots: int) -> None:
    there = ex.pools(*(ex.cpu_node(f"c{i}") for i in range(3)), ex.node("n0", "X"))
    placed = choose_placement(ex.solver_of(f"solver.ranks={ranks}", f"hardware.count={count}"), there, ex.CATALOGUE)
    assert (placed.placed.nodes, placed.placed.slots, placed.placed.accelerators_per_worker) == (count, slots, 0)


def test_ranks_are_not_placed_on_the_processors_of_tpu_hosts() -> None:
    choice = choose_placement(ex.solver_of("hardware.accelerator=tpu-v3", "solver.ranks=4"), ex.pools(ex.TPU_HOST),
                              ex.CATALOGUE)  # fmt: skip
    assert choice.placed is None and "pool v3-8 has TPUs" in choice.message and "name a GPU" in choice.message


def test_ranks_that_do_not_fill_nodes_are_named() -> None:
    there = ex.pools(*(ex.node(f"n{i}", "X") for i in range(3)))
    run = ex.solver_of("hardware.accelerator=nvidia-tesla-v100", "solver.ranks=12")
    choice = choose_placement(run, there, ex.CATALOGUE)
    assert choice.placed is None
    assert choice.message.startswith("solver.ranks 12 do not fill whole nodes of pool X with 8 each; remedy")
    divided = ex.solver_of("solver.ranks=5", "hardware.count=4")  # two on each of the first two, one on the third
    choice = choose_placement(divided, ex.pools(*(ex.cpu_node(f"c{i}") for i in range(4))), ex.CATALOGUE)
    assert choice.placed is None and "5 do not fill 4 nodes" in choice.message


def test_of_plans_those_that_were_asked_for_last_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """More waiting runs of different specs than are kept do not have everything planned anew."""
    monkeypatch.setattr(pool_plan, "MOST_KNOWN", 3)
    planned: list[int] = []
    make = pool_plan._planned

    def count(run: Any, *rest: Any) -> Any:
        planned.append(run.hardware.count)
        return make(run, *rest)

    monkeypatch.setattr(pool_plan, "_planned", count)
    catalogue, pools = replace(ex.CATALOGUE, known={}), ex.pools(*(ex.node(f"n{i}") for i in range(8)))
    for number in (1, 2, 3, 1, 4, 1, 3, 4, 2):
        choose_placement(ex.run_of(f"hardware.count={8 * number}"), pools, catalogue)
    assert planned == [8, 16, 24, 32, 16] and len(catalogue.known) == 3
