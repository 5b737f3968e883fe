"""The devices of a training and their strategy: decided without TensorFlow, then created with it."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from caloscale.errors import ConfigurationError, DeviceError, InvalidValueError
from caloscale.spec import Run

if TYPE_CHECKING:
    import tensorflow as tf

    from caloscale.models.families.step import Batch

log = logging.getLogger(__name__)

_ADDRESS = re.compile(r"(\[[0-9a-fA-F:.%]+\]|[^\s:/\[\]]+):([1-9]\d{0,4})")
_PORTS = 65536
Name = Literal["one-device", "mirrored", "multi-worker", "tpu"]
Kind = Literal["CPU", "GPU", "TPU"]


@dataclass(frozen=True)
class Devices:
    """What TensorFlow sees in this process."""

    cpus: int = 1
    """Logical CPU devices; more than one only where a test or a user has split the processor."""
    gpus: int = 0
    tpus: int = 0
    """Cores."""


@dataclass(frozen=True)
class Placement:
    """Strategy, number of this worker, replicas."""

    strategy: Name
    device: Kind
    worker: int = 0
    workers: int = 1
    """Processes that train together."""
    replicas_per_worker: int = 1
    reason: str = ""
    """Why it is so, for the log."""

    @property
    def replicas(self) -> int:
        """Replicas of all workers."""
        return self.workers * self.replicas_per_worker

    @property
    def is_chief(self) -> bool:
        """Whether this worker writes checkpoints, curves and the model."""
        return self.worker == 0


@dataclass(frozen=True)
class DistributionContext:
    """A placement and its tf.distribute strategy."""

    placement: Placement
    strategy: tf.distribute.Strategy

    def distribute(self, dataset: tf.data.Dataset) -> Iterable[Batch]:
        """The input of a step. dataset: batches of one replica; each replica of this worker takes the next."""
        if self.placement.replicas == 1:
            return dataset
        return self.strategy.distribute_datasets_from_function(lambda _: dataset)


def resolve(run: Run, environment: Mapping[str, str], devices: Devices) -> Placement:
    """Decide the placement of a worker.

    environment: TF_CONFIG (several workers), TPU_NAME and TPU_WORKER_HOSTNAMES (TPU), NVIDIA_VISIBLE_DEVICES
    (accelerators that a container was given). Raises ConfigurationError (a strategy that is impossible here) and
    DeviceError (accelerators that were given and that TensorFlow does not see).
    """
    worker, cluster = worker_of(environment)
    workers = max(1, len(cluster))
    _check_accelerators(run, environment, devices, workers)
    setting = run.train.strategy
    name, reason = (setting, "set by train.strategy") if setting != "auto" else _choose(environment, devices, workers)
    if workers > 1 and (devices.tpus or _tpu_is_announced(environment)):
        raise _slice_of_several(workers)  # a strategy of several workers would take the processors of its hosts
    if name != "multi-worker" and workers > 1:
        raise _impossible(name, f"TF_CONFIG names {workers} workers", "use auto or multi-worker, or unset TF_CONFIG")
    if name == "tpu":
        hosts = [host for host in environment.get("TPU_WORKER_HOSTNAMES", "").split(",") if host]
        if len(hosts) > 1:
            raise _slice_of_several(len(hosts))
        if not devices.tpus and not _tpu_is_announced(environment):
            raise _impossible(name, "TensorFlow sees no TPU", "set train.strategy: auto")
        return Placement(name, "TPU", replicas_per_worker=max(1, devices.tpus), reason=reason)
    kind: Kind = "GPU" if devices.gpus else "CPU"
    here = devices.gpus or devices.cpus
    if name == "one-device":
        return Placement(name, kind, reason=reason)
    if name == "multi-worker":
        if "TF_CONFIG" not in environment:
            raise _impossible(name, "TF_CONFIG is not set", "start the workers by a TFJob or JobSet, or use auto")
        # A worker of TensorFlow's strategy has one replica on the processor, however it is split.
        return Placement(name, kind, worker, workers, max(1, devices.gpus), reason)
    return Placement("mirrored", kind, replicas_per_worker=here, reason=reason)


def divide(run: Run, placement: Placement) -> int:
    """Showers of the global batch. Raises ConfigurationError with the possible numbers when it cannot be divided."""
    train, replicas = run.train, placement.replicas
    try:
        share = train.replica_batch(replicas)
        train.micro_batches(share)
    except InvalidValueError as error:
        raise ConfigurationError(error.problem, field="train", remedy=error.remedy) from error
    return share * replicas


def worker_of(environment: Mapping[str, str]) -> tuple[int, list[str]]:
    """Number of this worker and addresses of all, by TF_CONFIG. Raises ConfigurationError when that makes no sense."""
    text = environment.get("TF_CONFIG", "")
    try:
        return _worker_of(text) if text else (0, [])
    except ValueError as error:
        remedy = (
            'write {"cluster": {"worker": ["host:port", ...]}, "task": {"type": "worker", "index": 0}}, or '
            "unset it to train with one worker; docs/training.md"
        )
        raise ConfigurationError(str(error), field="TF_CONFIG", value=text[:200], remedy=remedy) from error


def _worker_of(text: str) -> tuple[int, list[str]]:
    """Number and addresses from the text of TF_CONFIG. ValueError with the problem when it makes no sense."""
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    cluster = config.get("cluster", {}) if isinstance(config, dict) else None
    if not isinstance(cluster, dict):
        raise ValueError("is no object with the objects cluster and task")
    if set(cluster) - {"worker"}:
        raise ValueError("must name workers only (no chief, evaluator or parameter server)")
    hosts = cluster.get("worker", [])
    addresses = [_ADDRESS.fullmatch(str(host)) for host in hosts] if isinstance(hosts, list) else [None]
    if not all(address and int(address[2]) < _PORTS for address in addresses):
        raise ValueError("does not have a list of addresses host:port as cluster.worker")
    if len({host.lower() for host in hosts}) < len(hosts):
        raise ValueError("names one address for two workers")
    task = config.get("task", None if cluster else {"type": "worker", "index": 0})
    index = task.get("index") if isinstance(task, dict) else None
    if not isinstance(task, dict) or task.get("type") != "worker" or type(index) is not int:
        raise ValueError("has no task with the type worker and a whole number as index")
    if not 0 <= index < max(1, len(hosts)):
        raise ValueError(f"has the index {index} for {max(1, len(hosts))} workers, which are counted from 0")
    return index, hosts


def visible_devices() -> Devices:
    """What TensorFlow sees, without initialising it (several workers must be set up before that)."""
    import tensorflow as tf

    cpus = tf.config.list_physical_devices("CPU")
    split = tf.config.get_logical_device_configuration(cpus[0]) if cpus else None
    gpus = len(tf.config.list_physical_devices("GPU"))
    return Devices(cpus=len(split or ()) or 1, gpus=gpus, tpus=len(tf.config.list_physical_devices("TPU")))


def open_context(run: Run, environment: Mapping[str, str]) -> DistributionContext:
    """Create the strategy of this worker; with several it waits for all, and must be the first call of TensorFlow."""
    placement = resolve(run, environment, visible_devices())
    strategy = _create(placement)
    if placement.strategy == "tpu":
        placement = replace(placement, replicas_per_worker=strategy.num_replicas_in_sync)
    elif strategy.num_replicas_in_sync != placement.replicas:
        problem = f"TensorFlow made {strategy.num_replicas_in_sync} replicas of {placement.replicas}"
        raise DeviceError(problem, remedy="give every worker equally many accelerators")
    each = f"{placement.replicas_per_worker} x {placement.device} each ({placement.reason})"
    log.info("strategy %s: worker %d of %d, %s", placement.strategy, placement.worker, placement.workers, each)
    return DistributionContext(placement, strategy)


def one_replica() -> DistributionContext:
    """A context of one replica, on the device that TensorFlow chooses."""
    import tensorflow as tf

    return DistributionContext(Placement("one-device", "CPU", reason="default"), tf.distribute.get_strategy())


def _choose(environment: Mapping[str, str], devices: Devices, workers: int) -> tuple[Name, str]:
    if workers > 1:
        return "multi-worker", f"TF_CONFIG names {workers} workers"
    if devices.tpus or _tpu_is_announced(environment):
        return "tpu", "a TPU is present"
    if devices.gpus > 1:
        return "mirrored", f"{devices.gpus} GPUs are visible"
    return "one-device", "one GPU is visible" if devices.gpus else "no accelerator is visible"


def _tpu_is_announced(environment: Mapping[str, str]) -> bool:
    return bool(environment.get("TPU_NAME") or environment.get("TPU_WORKER_HOSTNAMES"))


def _check_accelerators(run: Run, environment: Mapping[str, str], devices: Devices, workers: int) -> None:
    """DeviceError when accelerators were given to this process that TensorFlow does not see."""
    hardware = run.hardware
    if hardware is not None and hardware.advertised:
        return
    expected, source = _expected(run, environment, workers)
    seen = devices.gpus + devices.tpus
    if seen >= expected or (seen and not math.isfinite(expected)):
        return
    number = "accelerators" if not math.isfinite(expected) else f"{expected:.0f} accelerators"
    raise DeviceError(
        f"this worker should have {number} ({source}), TensorFlow sees {seen}",
        remedy="check that the node's driver is ready and that the image has TensorFlow for it; to train on the "
        + ("processor, leave out train.gpus" if source == "train.gpus" else "processor, set hardware.advertised: true"),
    )


def _expected(run: Run, environment: Mapping[str, str], workers: int) -> tuple[float, str]:
    """Accelerators that this process should see (infinity: at least one), and the source of that number."""
    if run.train.gpus is not None:
        return run.train.gpus, "train.gpus"
    hardware = run.hardware
    placed = "TF_CONFIG" in environment or "CALOSCALE_PLACED" in environment or _tpu_is_announced(environment)
    if hardware is not None and placed:
        each = hardware.accelerators_per_worker or hardware.per_node
        if each is None and hardware.count is not None and hardware.count % workers == 0:
            each = hardware.count // workers
        if each is not None:
            return each, "hardware"
        if hardware.accelerator is not None:
            return math.inf, "hardware.accelerator"
    visible = environment.get("NVIDIA_VISIBLE_DEVICES", "")
    if visible not in ("", "none", "void"):
        # Images for GPUs set "all" themselves, so it says nothing about this node.
        return (0.0 if visible == "all" else float(len(visible.split(",")))), "NVIDIA_VISIBLE_DEVICES"
    if _tpu_is_announced(environment):
        return math.inf, "TPU_NAME, TPU_WORKER_HOSTNAMES"
    return 0.0, ""


def _slice_of_several(hosts: int) -> ConfigurationError:
    why = f"the slice has {hosts} hosts; TensorFlow on GKE drives one"
    return _impossible("tpu", why, "use a slice of one host (v4 2x2x1, v5e or v6e 1x1, 2x2, 2x4 on an 8t machine)")


def _impossible(name: str, why: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"strategy {name} is impossible here: {why}", field="train.strategy", remedy=remedy)


def _create(placement: Placement) -> tf.distribute.Strategy:
    import tensorflow as tf

    kind = placement.device.lower()
    if placement.strategy == "one-device":
        return tf.distribute.OneDeviceStrategy("/gpu:0") if kind == "gpu" else tf.distribute.get_strategy()
    if placement.strategy == "mirrored":
        return tf.distribute.MirroredStrategy([f"/{kind}:{index}" for index in range(placement.replicas_per_worker)])
    if placement.strategy == "tpu":
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
        try:
            tf.config.experimental_connect_to_cluster(resolver)
            tf.tpu.experimental.initialize_tpu_system(resolver)
        except tf.errors.OpError as error:
            problem = f"the TPU cannot be used: {' '.join(str(error.message).split())[:200]}"
            raise DeviceError(problem, remedy="check that the node has one, and TensorFlow for it") from error
        return tf.distribute.TPUStrategy(resolver)
    communication = tf.distribute.experimental.CommunicationImplementation
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=communication.NCCL if kind == "gpu" else communication.RING
    )
    strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
    # Every worker makes equally many steps, so none needs to ask the others before each whether they have a batch.
    strategy.extended.experimental_enable_get_next_as_optional = False
    return strategy
