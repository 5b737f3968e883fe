"""Nodes of every vendor by the table of labels: read, planned on, aligned, and priced where there is a price."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from caloscale.cluster.capacity.labels import load_labels
from caloscale.cluster.capacity.nodes import node_of
from caloscale.cluster.capacity.placement import choose_placement
from caloscale.cluster.workload.backends import render
from caloscale.errors import ConfigurationError, InputError, PriceError
from caloscale.planning.catalogue.hardware import load_accelerators
from caloscale.planning.catalogue.prices import load_prices
from caloscale.planning.search.plan import Plan, plan
from caloscale.report.plan import in_words
from caloscale.spec import load_run
from tests.cluster import examples as ex
from tests.operator.world import World, ended

LABELS_HEADER = "vendor,label,concept,value,means,selects,source,observed_on,note"
SAMPLE: dict[str, Any] = {
    "model": {"preset": "variable-angle"},
    "hardware": {"accelerator": "nvidia-tesla-v100", "count": 16},
    "recovery": {"backoff": "5s", "waitForCapacity": "60s"},
}
READ = {
    "gke": ("v100-8", "n1-standard-64", "europe-west4", "spot"),
    "eks": ("v100", "p3.16xlarge", "eu-central-1", "spot"),
    "karpenter": ("gpu", "p3.16xlarge", "eu-central-1", "spot"),
    "aks": ("v100", "NC24s_v3", "westeurope", "spot"),
    "openshift": ("p3.16xlarge Tesla-V100-SXM2-16GB", "p3.16xlarge", "eu-central-1", "spot"),
    "bare-metal": ("PowerEdge-XE8545 Tesla-V100-SXM2-16GB", "PowerEdge-XE8545", "", "on-demand"),
}


def table(path: Path, header: str, *rows: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("vendor", ex.VENDORS)
def test_nodes_of_every_vendor_are_read(vendor: str) -> None:
    node = node_of(ex.VENDORS[vendor]("n0"))
    key = node.key
    assert (key.name, key.machine_type, key.region, key.capacity_type) == READ[vendor]
    assert (key.accelerator, key.per_node) == ("nvidia-tesla-v100", 4 if vendor == "aks" else 8)
    assert node.ready and node.open and node.refused is None


@pytest.mark.parametrize("vendor", ex.VENDORS)
def test_the_same_run_succeeds_aligned_on_nodes_of_every_vendor(vendor: str) -> None:
    nodes = 4 if vendor == "aks" else 2
    raw = [ex.VENDORS[vendor](f"n{i}") for i in range(nodes)]
    w = World(*raw, spec=SAMPLE)
    w.until(lambda w: bool(w.jobs))
    (job,) = w.jobs.values()
    pod = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    for node in raw:  # what the scheduler asks of a node
        labels, tolerated = node["metadata"]["labels"], pod["tolerations"]
        assert pod["nodeSelector"] and pod["nodeSelector"].items() <= labels.items()
        for taint in node["spec"]["taints"]:
            assert any(t["key"] == taint["key"] and t.get("value", taint["value"]) == taint["value"] for t in tolerated)
    w.until(ended)
    conditions = {c["type"]: c for c in w.status["conditions"]}
    assert w.phase == "Succeeded" and conditions["PlacementVerified"]["status"] == "True"
    placed, cost = w.status["placement"], w.status["cost"]
    assert placed["nodes"] == placed["workers"] == nodes and placed["estimateSeconds"] > 0
    assert cost["nodeHours"] == pytest.approx(w.node_seconds() / 3600, abs=1e-5)
    assert cost["acceleratorHours"] == pytest.approx(16 / nodes * cost["nodeHours"], abs=1e-5)
    assert conditions["Priced"]["reason"] == {"gke": "Priced", "aks": "NoPrice"}.get(vendor, "OwnMachines")
    assert ("usd" in cost) == (vendor == "gke")  # the catalogue's prices of NC24s_v3 end in 2025


@pytest.mark.parametrize("vendor", [vendor for vendor in ex.VENDORS if vendor != "gke"])
def test_pods_of_every_vendor_are_golden(vendor: str) -> None:
    """The node selector and the tolerations; the rest is that of GKE (test_backends)."""
    launch = ex.launch_of(
        ex.run_of(*(f"hardware.{k}={v}" for k, v in SAMPLE["hardware"].items())),
        *(ex.VENDORS[vendor](f"n{i}") for i in range(4)),
    )
    pod = render(launch)["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]
    golden = json.loads((Path(__file__).parent.parent / "golden" / "vendors.json").read_text(encoding="utf-8"))
    assert {"nodeSelector": pod["nodeSelector"], "tolerations": pod["tolerations"][:-2]} == golden[vendor]


@pytest.mark.parametrize(
    ("vendor", "labels", "says"),
    [
        ("bare-metal", {"nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB-SHARED"}, "shared GPUs"),
        ("bare-metal", {"nvidia.com/gpu.sharing-strategy": "time-slicing"}, "time-slicing"),
        ("openshift", {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}, "MIG partitions"),
        ("bare-metal", {"nvidia.com/gpu.count": "4"}, "nvidia.com/gpu.count is 4"),
        ("karpenter", {"karpenter.k8s.aws/instance-gpu-memory": "8192"}, "is 8192 MiB"),
        ("eks", {"node.kubernetes.io/instance-type": "x9.large"}, "caloscale-labels"),
        ("gke", {"cloud.google.com/gke-gpu-partition-size": "1g.5gb"}, "MIG partitions"),
    ],
)
def test_gpus_that_are_not_whole_or_not_known_are_refused(vendor: str, labels: dict[str, str], says: str) -> None:
    raw = ex.VENDORS[vendor]("n0")
    raw["metadata"]["labels"] |= labels
    pools, refused = ex.pools_of([node_of(raw)], ())
    assert pools == [] and len(refused) == 1 and says in refused[0]


def test_every_gpu_of_the_table_is_in_the_catalogue() -> None:
    named = {row.means for row in load_labels().rows if row.concept == "accelerator" and "\\" not in row.means}
    assert named <= set(load_accelerators())


def test_a_label_map_of_ones_own_goes_before_the_table(tmp_path: Path) -> None:
    """Labels of a laboratory: its own names of GPU, pool and machine, and a taint of its own."""
    own = table(
        tmp_path / "labels.csv",
        LABELS_HEADER,
        "lab,lab.example/gpu,accelerator,volta-(\\d+)g,nvidia-tesla-v100,yes,our administrators,2026-11-01,",
        "lab,lab.example/hall,pool,,,yes,our administrators,2026-11-01,",
        "lab,lab.example/reclaimed,capacityType,night,spot,no,our administrators,2026-11-01,",
        "lab,lab.example/only,taint,gpu,,no,our administrators,2026-11-01,",
    )
    raw = ex._foreign({"lab.example/gpu": "volta-16g", "lab.example/hall": "north"}, 8, ("lab.example/only", "gpu"))
    labels = load_labels([own])
    node = node_of(raw("n0"), labels)
    assert (node.key.name, node.key.accelerator, node.open) == ("north", "nvidia-tesla-v100", True)
    assert dict(node.selector) == {"lab.example/gpu": "volta-16g", "lab.example/hall": "north"}
    stranger = node_of(raw("n0"))
    assert stranger.refused is not None and not stranger.open
    w = World(*(raw(f"n{i}") for i in range(2)), spec=SAMPLE, catalogue=replace(ex.CATALOGUE, labels=labels, known={}))
    assert w.until(ended).phase == "Succeeded"


def test_a_job_is_admitted_on_gke_also_where_an_own_row_names_the_gpu(tmp_path: Path) -> None:
    """The policy caloscale-aligned-jobs compares the annotation with the node selector."""
    row = "lab,cloud.google.com/gke-accelerator,accelerator,nvidia-tesla-v100,our-gpu,yes,administrators,2026-11-01,"
    labels = load_labels([table(tmp_path / "labels.csv", LABELS_HEADER, row)])
    spec = {"model": {"preset": "variable-angle"}, "hardware": {"accelerator": "our-gpu", "count": 8}}
    w = World(ex.node("n0"), spec=spec, catalogue=replace(ex.CATALOGUE, labels=labels, known={}))
    w.reconcile()
    (job,) = w.jobs.values()
    selector = job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["spec"]["nodeSelector"]
    told = job["metadata"]["annotations"]["caloscale.dev/accelerator"]
    assert told == selector["cloud.google.com/gke-accelerator"] == "nvidia-tesla-v100"


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("lab,a/b,capacityType,night,cheap,no,ours,2026-11-01,", "spot or on-demand"),
        ("lab,a/b,pool,(,,no,ours,2026-11-01,", "not a regular expression"),
        ("lab,a/b,pool,x,\\1,no,ours,2026-11-01,", "group"),
        ("lab,a/b,colour,x,,no,ours,2026-11-01,", "concept"),
        ("lab,a/b,pool,x,,no,,2026-11-01,", "source"),
    ],
)
def test_a_wrong_row_is_named(row: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"labels\.csv:2.*") as caught:
        load_labels([table(tmp_path / "labels.csv", LABELS_HEADER, row)])
    assert says in str(caught.value) and caught.value.exit_code == 2


def plan_own(*overrides: str, prices: tuple[Path, ...] = ()) -> Plan:
    run = load_run(
        preset="variable-angle",
        overrides=[
            *("hardware.cloud=none", "hardware.accelerator=nvidia-tesla-v100", "hardware.perNode=8"),
            *("data.showers=124950", *overrides),
        ],
    )
    catalogue = ex.CATALOGUE
    return plan(run, load_prices(prices) if prices else catalogue.prices, catalogue.measurements, catalogue.as_of)


def test_machines_of_ones_own_are_planned_in_accelerator_hours() -> None:
    made = plan_own("budget.deadline=6h", "hardware.maxNodes=8")
    best = made.chosen
    assert best is not None and best.cloud == "none" and best.usd is best.usd_per_hour is best.usd_interval is None
    assert best.total_seconds <= 6 * 3600 and best.workers == best.nodes
    in_time = [c for c in made.candidates if c.total_seconds <= 6 * 3600]
    assert best.accelerator_hours == min(c.accelerator_hours for c in in_time)
    assert best.accelerator_hours == pytest.approx(best.count * best.total_seconds / 3600)
    assert "accelerator hours (no price)" in in_words(best)


@pytest.mark.parametrize(("kind", "sku", "usd"), [("vm", "box", 8.0), ("gpu", "nvidia-tesla-v100", 1.0)])
def test_machines_of_ones_own_are_priced_by_a_row(kind: str, sku: str, usd: float, tmp_path: Path) -> None:
    row = f"none,own,{kind},{sku},{kind},on-demand,{usd},yes,2026-01-01,,2026-11-01,electricity of 2025,list,no,,"
    made = plan_own(
        "hardware.machineType=box", "budget.maxUsd=500", prices=(table(tmp_path / "p", ex.PRICES_HEADER, row),)
    )
    best = made.chosen
    assert best is not None and best.usd == pytest.approx(best.accelerator_hours) and best.usd_per_hour == best.count


def test_nodes_of_no_region_do_not_have_the_price_of_a_region(tmp_path: Path) -> None:
    row = "none,{},gpu,nvidia-tesla-v100,gpu,on-demand,1,yes,2026-01-01,,2026-11-01,electricity,list,no,,".format
    run = ex.run_of("hardware.accelerator=nvidia-tesla-v100")
    for region, usd_per_node in (("mylab", None), ("own", 8)):
        prices = load_prices([table(tmp_path / region, ex.PRICES_HEADER, row(region))])
        pools = ex.pools(ex.VENDORS["bare-metal"]("b0"))
        placed = choose_placement(run, pools, replace(ex.CATALOGUE, prices=prices, known={})).placed
        assert placed is not None and (placed.region, placed.usd_per_hour) == ("own", usd_per_node)


def test_a_deadline_that_nothing_meets_is_said_without_a_price() -> None:
    run = ex.run_of("hardware.accelerator=nvidia-tesla-v100", "hardware.maxNodes=2", "budget.deadline=10m")
    choice = choose_placement(run, ex.pools(ex.VENDORS["bare-metal"]("b0")), ex.CATALOGUE)
    assert choice.over_budget and "accelerator hours" in choice.message


def test_a_budget_in_dollars_needs_a_price() -> None:
    with pytest.raises(PriceError, match=r"none,own,vm,own"):
        plan_own("budget.maxUsd=10")


def test_the_machines_have_to_be_described() -> None:
    run = load_run(preset="variable-angle", overrides=["hardware.cloud=none", "hardware.accelerator=nvidia-l4"])
    with pytest.raises(ConfigurationError, match=r"hardware\.perNode"):
        plan(run.model_copy(), ex.CATALOGUE.prices, ex.CATALOGUE.measurements, ex.CATALOGUE.as_of)


def test_own_machines_are_separate_from_those_of_a_cloud() -> None:
    raw = [*(ex.spot(f"s{i}") for i in range(2)), *(ex.VENDORS["bare-metal"](f"b{i}") for i in range(2))]
    for cloud, pool in (("none", READ["bare-metal"][0]), ("gcp", "v100-8")):
        run = ex.run_of("hardware.accelerator=nvidia-tesla-v100", "hardware.count=16", f"hardware.cloud={cloud}")
        placed = choose_placement(run, ex.pools(*raw), ex.CATALOGUE).placed
        assert placed is not None and placed.pool == pool
