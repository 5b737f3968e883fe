"""Pools of equal nodes, labelled and tainted as Google Kubernetes Engine does it: fake machines and real ones."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Pool:
    """A pool of equal nodes."""

    name: str
    count: int
    accelerator: str = "nvidia-tesla-v100"
    """GPU as GKE labels it, or with `topology` the TPU; empty: a pool without accelerators."""
    per_node: int = 8
    """GPUs, or TPU chips, of a node."""
    topology: str = ""
    """TPU slice of the pool, such as 4x4."""
    spot: bool = False
    machine_type: str = "n1-standard-64"
    zone: str = "europe-west4-a"
    sharing: str = ""
    """GPU sharing strategy (time-sharing, mps): pods then get a part of a GPU."""
    cpu: str = "64"
    memory: str = "240Gi"
    labels: dict[str, str] = field(default_factory=dict)
    """Further labels."""

    @property
    def resource(self) -> str:
        """Name under which a node offers its accelerators."""
        return "google.com/tpu" if self.topology else "nvidia.com/gpu"

    def names(self, first: int = 0) -> list[str]:
        """Names of its nodes, counted from `first`."""
        return [f"{self.name}-{index:04d}" for index in range(first, first + self.count)]


def labels_of(pool: Pool, name: str) -> dict[str, str]:
    """Labels of the pool's node `name`."""
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "node.kubernetes.io/instance-type": pool.machine_type,
        "topology.kubernetes.io/region": pool.zone.rsplit("-", 1)[0],
        "topology.kubernetes.io/zone": pool.zone,
        "cloud.google.com/gke-nodepool": pool.name,
    }
    if pool.topology:
        labels["cloud.google.com/gke-tpu-accelerator"] = pool.accelerator
        labels["cloud.google.com/gke-tpu-topology"] = pool.topology
        labels["cloud.google.com/gke-accelerator-count"] = str(pool.per_node)
    elif pool.accelerator:
        labels["cloud.google.com/gke-accelerator"] = pool.accelerator
        labels["cloud.google.com/gke-accelerator-count"] = str(pool.per_node)
    if pool.spot:
        labels["cloud.google.com/gke-spot"] = "true"
        labels["cloud.google.com/gke-provisioning"] = "spot"
    if pool.sharing:
        labels["cloud.google.com/gke-gpu-sharing-strategy"] = pool.sharing
        labels["cloud.google.com/gke-max-shared-clients-per-gpu"] = "2"
    return labels | pool.labels


def taints_of(pool: Pool) -> list[dict[str, str]]:
    """Taints of the pool's nodes: who does not tolerate them runs elsewhere."""
    taints = []
    if pool.accelerator:
        taints.append({"key": pool.resource, "value": "present", "effect": "NoSchedule"})
    if pool.spot:
        taints.append({"key": "cloud.google.com/gke-spot", "value": "true", "effect": "NoSchedule"})
    return taints
