"""Nodes, pools and runs for the tests, as the API server would give them."""

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from caloscale.cluster.capacity.nodes import Capacity, Node, Pool, PoolGroup, Use, node_of
from caloscale.cluster.capacity.placement import choose_placement
from caloscale.cluster.capacity.pool_plan import Catalogue
from caloscale.cluster.capacity.resizing import worker_configuration
from caloscale.cluster.names import RunKey
from caloscale.cluster.workload.backends import render, render_progress
from caloscale.cluster.workload.launch import Launch
from caloscale.planning.catalogue.measurements import load_measurements
from caloscale.planning.catalogue.prices import load_prices
from caloscale.spec import AnyRun, Run, SolverRun, load_run, load_solver_run

CATALOGUE = Catalogue(load_prices(), load_measurements(), dt.date(2026, 11, 21))
PRICES_HEADER = (
    "provider,region,sku_kind,sku,unit,capacity_type,usd_per_unit_hour,includes_host,effective_from,effective_to,"
    "observed_on,source,confidence,retired,waiver,note"
)
BESIDE = f"""\
{PRICES_HEADER}
gcp,europe-west4,disk_gib,boot,gib,on-demand,0.0002,no,2026-01-01,,2026-01-01,test,list,no,,
gcp,europe-west4,control_plane,cluster,cluster,on-demand,0.25,no,2026-01-01,,2026-01-01,test,list,no,,
"""
"""A price file with what is billed beside the nodes."""
PLACED = {
    "backend": "TFJob",
    "pool": "v100-8",
    "accelerator": "nvidia-tesla-v100",
    "machineType": "n1-standard-64",
    "capacityType": "on-demand",
    "nodes": 2,
    "workers": 2,
    "perNode": 8,
    "acceleratorsPerWorker": 8,
    "plannedNodes": 2,
    "globalBatch": 1024,
    "batchPerReplica": 64,
}
"""A placement of two nodes, as a status has it."""
V100 = {"cloud.google.com/gke-accelerator": "nvidia-tesla-v100"}
IMAGE = "registry.example/caloscale/trainer:1.0"
SOLVER_IMAGE = "registry.example/caloscale/solver:1.0.0"
OWNER = RunKey("physics", "gan", "0d9f3f0c-1111-4222-8333-444455556666")


def node(name: str, pool: str = "v100-8", gpus: int = 8, **changes: Any) -> dict[str, Any]:
    """A GPU node of GKE."""
    labels = {
        "cloud.google.com/gke-nodepool": pool,
        "node.kubernetes.io/instance-type": "n1-standard-64",
        "topology.kubernetes.io/region": "europe-west4",
        "kubernetes.io/hostname": name,
        **V100,
        **changes.get("labels", {}),
    }
    allocatable = {"cpu": "63770m", "memory": "236Gi", "nvidia.com/gpu": str(gpus), **changes.get("allocatable", {})}
    return {
        "metadata": {"name": name, "labels": {key: value for key, value in labels.items() if value}},
        "spec": {"taints": [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]}
        | changes.get("spec", {}),
        "status": {
            "allocatable": {key: value for key, value in allocatable.items() if value},
            "conditions": [{"type": "Ready", "status": changes.get("ready", "True")}],
        },
    }


def spot(name: str, pool: str = "v100-8", **changes: Any) -> dict[str, Any]:
    """A spot node."""
    taints = [{"key": k, "value": "true", "effect": "NoSchedule"} for k in ("cloud.google.com/gke-spot",)]
    return node(
        name,
        pool,
        labels={"cloud.google.com/gke-spot": "true", **changes.pop("labels", {})},
        spec={"taints": [*taints, {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]},
        **changes,
    )


def tpu_node(name: str, pool: str, topology: str, label: str, machine: str) -> dict[str, Any]:
    """A host of a TPU slice."""
    made = node(
        name,
        pool,
        labels={
            "cloud.google.com/gke-accelerator": "",
            "cloud.google.com/gke-tpu-accelerator": label,
            "cloud.google.com/gke-tpu-topology": topology,
            "node.kubernetes.io/instance-type": machine,
        },
        allocatable={"nvidia.com/gpu": "", "google.com/tpu": "4"},
    )
    made["spec"]["taints"] = [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]
    return made


def cpu_node(name: str, pool: str = "default") -> dict[str, Any]:
    """A node without accelerators."""
    made = node(
        name,
        pool,
        labels={"cloud.google.com/gke-accelerator": "", "node.kubernetes.io/instance-type": "n1-standard-4"},
        allocatable={"nvidia.com/gpu": "", "cpu": "4", "memory": "15Gi"},
    )
    made["spec"]["taints"] = []
    return made


def nodes(*raw: dict[str, Any]) -> list[Node]:
    return [node_of(one) for one in raw]


def pools_of(
    nodes: Iterable[Node], uses: Iterable[Use] = (), coming: Mapping[PoolGroup, int] | None = None
) -> tuple[list[Pool], list[str]]:
    """The pools of a cluster with these nodes and bound pods, and why others were refused."""
    capacity = Capacity()
    for node in nodes:
        capacity.put(node)
    for use in uses:
        capacity.add(use, 1)
    return capacity.pools(coming=coming)


def pools(*raw: dict[str, Any], uses: tuple[Use, ...] = (), coming: dict[PoolGroup, int] | None = None) -> list[Pool]:
    return pools_of(nodes(*raw), uses, coming)[0]


def solver_of(*overrides: str) -> SolverRun:
    """A solver run on a cluster, with a claim."""
    return load_solver_run(preset="proxy", overrides=["hardware={}", "cluster.volumeClaim=shared", *overrides])


def run_of(*overrides: str, preset: str = "variable-angle") -> Run:
    return load_run(preset=preset, overrides=["hardware={}", *overrides])


def launch_of(run: AnyRun, *raw: dict[str, Any], attempt: int = 1) -> Launch:
    """The launch of a run on a cluster of these nodes."""
    choice = choose_placement(run, pools(*raw), CATALOGUE)
    assert choice.placed is not None, choice.message
    configuration = worker_configuration(run.model_dump(mode="json", by_alias=True), choice.placed)
    return Launch(OWNER, attempt, run, configuration, choice.placed, IMAGE, run.hardware and run.hardware.queue)


def _foreign(labels: dict[str, str], gpus: int = 8, *taints: tuple[str, str]) -> Callable[[str], dict[str, Any]]:
    def made(name: str) -> dict[str, Any]:
        return {
            "metadata": {
                "name": name,
                "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", **labels},
            },
            "spec": {"taints": [{"key": key, "value": value, "effect": "NoSchedule"} for key, value in taints]},
            "status": {
                "allocatable": {"cpu": "63770m", "memory": "236Gi", "nvidia.com/gpu": str(gpus)},
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }

    return made


DISCOVERED = {
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.family": "volta",
    "nvidia.com/gpu.memory": "16384",
    "nvidia.com/gpu.present": "true",
    "nvidia.com/gpu.product": "Tesla-V100-SXM2-16GB",
    "nvidia.com/gpu.replicas": "1",
    "nvidia.com/gpu.sharing-strategy": "none",
    "nvidia.com/mig.capable": "false",
    "nvidia.com/mig.strategy": "single",
}
"""Labels of GPU feature discovery, as the GPU Operator sets them up."""
AWS = {
    "node.kubernetes.io/instance-type": "p3.16xlarge",
    "topology.kubernetes.io/region": "eu-central-1",
    "topology.kubernetes.io/zone": "eu-central-1a",
}
VENDORS: dict[str, Callable[[str], dict[str, Any]]] = {
    "gke": spot,
    "eks": _foreign(
        {**AWS, "eks.amazonaws.com/nodegroup": "v100", "eks.amazonaws.com/capacityType": "SPOT"},
        8,
        ("nvidia.com/gpu", "true"),
    ),
    "karpenter": _foreign(
        {
            **AWS,
            "karpenter.sh/nodepool": "gpu",
            "karpenter.sh/capacity-type": "spot",
            "karpenter.k8s.aws/instance-gpu-name": "v100",
            "karpenter.k8s.aws/instance-gpu-manufacturer": "nvidia",
            "karpenter.k8s.aws/instance-gpu-count": "8",
            "karpenter.k8s.aws/instance-gpu-memory": "16384",
        },
        8,
        ("nvidia.com/gpu", "true"),
    ),
    "aks": _foreign(
        {
            "agentpool": "v100",
            "kubernetes.azure.com/agentpool": "v100",
            "kubernetes.azure.com/scalesetpriority": "spot",
            "accelerator": "nvidia",
            "node.kubernetes.io/instance-type": "Standard_NC24s_v3",
            "topology.kubernetes.io/region": "westeurope",
            "topology.kubernetes.io/zone": "westeurope-1",
        },
        4,
        ("kubernetes.azure.com/scalesetpriority", "spot"),
        ("sku", "gpu"),
    ),
    "openshift": _foreign(
        {
            **AWS,
            **DISCOVERED,
            "nvidia.com/gpu.machine": "HVM-domU",
            "node-role.kubernetes.io/worker": "",
            "node.openshift.io/os_id": "rhcos",
            "machine.openshift.io/interruptible-instance": "",
        },
        8,
        ("nvidia.com/gpu", ""),
    ),
    "bare-metal": _foreign({**DISCOVERED, "nvidia.com/gpu.machine": "PowerEdge-XE8545"}),
}
"""A node with eight V100 (AKS: four) by vendor, with its labels and taints; a spot node where there are such."""


ON_V100 = ("hardware.accelerator=nvidia-tesla-v100", "hardware.perNode=8")
EIGHT_NODES = [spot(f"s{i}") for i in range(8)]
TWO_NODES = [node(f"n{i}") for i in range(2)]
CPU_NODES = [cpu_node(f"c{i}") for i in range(3)]
TPU_V3 = [tpu_node(f"t{i}", "v3", "4x4", "tpu-v3-slice", "ct3p-hightpu-4t") for i in range(4)]
TPU_HOST = tpu_node("t0", "v3-8", "2x2", "tpu-v3-device", "ct3-hightpu-4t")
SIXTEEN = (*ON_V100, "hardware.count=16")
CLAIM = ("cluster.volumeClaim=showers", "cluster.dataset=/workspace/dataset", "cluster.credentialsSecret=bucket-key")
BUCKET = ("cluster.workspace=gs://physics/gan", "cluster.serviceAccount=trainer")
FREE = ("hardware.placement=Free", "hardware.acceleratorsPerWorker=4")
SLICE = ("hardware.accelerator=tpu-v3", "hardware.topology=4x4", "train.batchPerReplica=128")
LAUNCHES = {
    "tfjob-gpu-spot": lambda: launch_of(
        run_of(*ON_V100, "hardware.count=32", "hardware.capacityType=spot"), *EIGHT_NODES
    ),
    "tfjob-cpu": lambda: launch_of(
        run_of("hardware.accelerator=cpu", "hardware.count=2", preset="compact"), *CPU_NODES
    ),
    "tfjob-free": lambda: launch_of(run_of(*SIXTEEN, *FREE), *TWO_NODES),
    "tfjob-kueue": lambda: launch_of(run_of(*SIXTEEN, "hardware.queue=physics"), *TWO_NODES),
    "jobset-gpu": lambda: launch_of(run_of(*SIXTEEN, "cluster.backend=JobSet"), *TWO_NODES),
    "trainjob-gpu": lambda: launch_of(run_of(*SIXTEEN, "cluster.backend=TrainJob"), *TWO_NODES),
    "mpijob-gpu": lambda: launch_of(solver_of(*ON_V100, "solver.ranks=16"), *(node(f"n{i}") for i in range(3))),
    "mpijob-cpu": lambda: launch_of(solver_of("hardware.count=2", "solver.ranks=5"), *CPU_NODES),
    "jobset-tpu-slice": lambda: launch_of(run_of(*SLICE), *TPU_V3),
    "jobset-tpu-host": lambda: launch_of(run_of("hardware.accelerator=tpu-v3", "hardware.topology=2x2"), TPU_HOST),
    "tfjob-one": lambda: launch_of(run_of(*ON_V100, "hardware.count=8", *BUCKET), node("n0")),
    "tfjob-claim": lambda: launch_of(run_of(*ON_V100, "hardware.count=8", *CLAIM), node("n0")),
}
"""What the operator renders, by the name of its golden file."""


def rendered(name: str) -> list[dict[str, Any]]:
    """Progress and job of a launch, as the operator creates them."""
    launch = LAUNCHES[name]()
    return [render_progress(launch.owner), render(launch)]
