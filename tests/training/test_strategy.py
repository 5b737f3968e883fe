"""Who trains, from the document, the environment and the devices; what is refused, and with which exit code."""

import json

import pytest
import tensorflow as tf

from caloscale.errors import ConfigurationError, DeviceError
from caloscale.models.layers import convolution
from caloscale.models.optimizers import Schedule
from caloscale.training.state import TrainingState, replica_step
from caloscale.training.strategy import Devices, Placement, divide, open_context, resolve, worker_of
from tests.models import needs_bfloat16
from tests.models.families.gan.test_step import a_batch

from .conftest import small_run
from .worker import normalised


def tf_config(workers, index=0, **more):
    cluster = {"worker": [f"host-{n}:2222" for n in range(workers)], **more.pop("cluster", {})}
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index, **more}})}


@pytest.mark.parametrize(
    ("strategy", "environment", "devices", "expected"),
    [
        ("auto", {}, Devices(), ("one-device", "CPU", 0, 1, 1)),
        ("auto", {}, Devices(gpus=1), ("one-device", "GPU", 0, 1, 1)),
        ("auto", {}, Devices(gpus=8), ("mirrored", "GPU", 0, 1, 8)),
        ("auto", tf_config(1), Devices(), ("one-device", "CPU", 0, 1, 1)),
        ("auto", tf_config(4, 2), Devices(), ("multi-worker", "CPU", 2, 4, 1)),
        ("auto", tf_config(4, 3), Devices(gpus=8), ("multi-worker", "GPU", 3, 4, 8)),
        ("auto", {"TPU_WORKER_HOSTNAMES": "here", "TPU_WORKER_ID": "0"}, Devices(tpus=8), ("tpu", "TPU", 0, 1, 8)),
        ("auto", {}, Devices(tpus=4), ("tpu", "TPU", 0, 1, 4)),
        # An image for GPUs says so itself, whatever the node has.
        ("auto", {"NVIDIA_VISIBLE_DEVICES": "all"}, Devices(), ("one-device", "CPU", 0, 1, 1)),
        ("one-device", {}, Devices(gpus=8), ("one-device", "GPU", 0, 1, 1)),
        ("mirrored", {}, Devices(cpus=2), ("mirrored", "CPU", 0, 1, 2)),
        ("multi-worker", tf_config(1), Devices(), ("multi-worker", "CPU", 0, 1, 1)),
    ],
)
def test_placement(strategy, environment, devices, expected):
    found = resolve(small_run(f"train.strategy={strategy}"), environment, devices)
    assert (found.strategy, found.device, found.worker, found.workers, found.replicas_per_worker) == expected
    assert found.replicas == found.workers * found.replicas_per_worker
    assert found.is_chief == (found.worker == 0)
    assert found.reason


@pytest.mark.parametrize(
    ("strategy", "environment", "devices", "words"),
    [
        ("mirrored", tf_config(2), Devices(), "TF_CONFIG names 2 workers"),
        ("multi-worker", {}, Devices(), "TF_CONFIG is not set"),
        ("tpu", {}, Devices(gpus=1), "TensorFlow sees no TPU"),
        ("auto", {"TPU_WORKER_HOSTNAMES": "a,b"}, Devices(tpus=4), "the slice has 2 hosts"),
        # As the operator starts the hosts of a slice: not on their processors.
        ("auto", {**tf_config(2), "TPU_WORKER_HOSTNAMES": "a,b"}, Devices(tpus=4), "the slice has 2 hosts"),
        ("multi-worker", tf_config(2), Devices(tpus=4), "the slice has 2 hosts"),
    ],
)
def test_what_is_impossible_is_refused(strategy, environment, devices, words):
    with pytest.raises(ConfigurationError, match=words) as error:
        resolve(small_run(f"train.strategy={strategy}"), environment, devices)
    assert error.value.exit_code == 2
    assert error.value.remedy


@pytest.mark.parametrize(
    "environment",
    [
        {"TF_CONFIG": "no json"},
        {"TF_CONFIG": json.dumps({"cluster": {"worker": ["a:1"]}, "task": {"type": "worker"}})},
        tf_config(2, 2),
        tf_config(2, 0, cluster={"chief": ["c:1"]}),
        tf_config(2, 0, type="evaluator"),
    ],
)
def test_a_tf_config_that_makes_no_sense(environment):
    with pytest.raises(ConfigurationError, match="TF_CONFIG"):
        worker_of(environment)


PLACED = ("hardware.accelerator=nvidia-tesla-v100", "hardware.count=16", "hardware.perNode=8")


@pytest.mark.parametrize(
    ("overrides", "environment", "devices", "missing"),
    [
        (PLACED, tf_config(2), Devices(gpus=8), False),
        (PLACED, tf_config(2), Devices(gpus=7), True),
        (PLACED, tf_config(2), Devices(), True),
        (("hardware.accelerator=nvidia-l4",), tf_config(2), Devices(), True),
        (("hardware.accelerator=nvidia-l4", "hardware.count=4"), tf_config(2), Devices(gpus=1), True),
        ((*PLACED, "hardware.advertised=true"), tf_config(2), Devices(), False),
        # A document with machines, tried on one's own: nothing was given to this process.
        (PLACED, {}, Devices(), False),
        (("train.gpus=2",), {}, Devices(gpus=2), False),
        (("train.gpus=2",), {"NVIDIA_VISIBLE_DEVICES": "GPU-1"}, Devices(gpus=1), True),
        ((), {"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2"}, Devices(gpus=1), True),
        ((), {"NVIDIA_VISIBLE_DEVICES": "void"}, Devices(), False),
        ((), {"TPU_WORKER_HOSTNAMES": "here"}, Devices(), True),
    ],
)
def test_accelerators_that_were_given_must_be_there(overrides, environment, devices, missing):
    run = small_run(*overrides)
    if not missing:
        resolve(run, environment, devices)
        return
    with pytest.raises(DeviceError, match="TensorFlow sees") as error:
        resolve(run, environment, devices)
    assert error.value.exit_code == 140


def test_a_tpu_that_does_not_start_is_a_missing_accelerator(monkeypatch):
    def connect(_):
        raise tf.errors.NotFoundError(None, None, "no TPU\n  here")

    monkeypatch.setattr(tf.config, "experimental_connect_to_cluster", connect)
    with pytest.raises(DeviceError, match="the TPU cannot be used: no TPU here"):
        open_context(small_run("hardware.advertised=true"), {"TPU_NAME": "local"})


def test_a_global_batch_is_divided_or_refused_with_what_is_possible():
    four = Placement("mirrored", "GPU", replicas_per_worker=4)
    assert divide(small_run("train.batchPerReplica=3"), four) == 12
    with pytest.raises(ConfigurationError, match="not a multiple of 4 replicas") as error:
        divide(small_run("train.globalBatchSize=6"), four)
    assert "1, 2, 3 or 6 replicas" in error.value.remedy
    with pytest.raises(ConfigurationError, match="accumulate 4 does not divide the 3 showers"):
        divide(small_run("train.globalBatchSize=12", "train.accumulate=4"), four)


@needs_bfloat16
def test_the_step_is_made_of_what_a_tpu_can_do(monkeypatch):
    """Every shape is known, nothing is done by the host, and XLA compiles all of it: what a TPU asks of a step.

    Run on no TPU: XLA's own compiler for this processor says what it does not support. Nothing is chosen for this
    processor, as where there is a TPU.
    """
    monkeypatch.setattr(convolution, "has_wide_registers", lambda: False)
    run = small_run("train.decay=cosine", "train.generatorUpdates=1", "train.precision=bfloat16")
    state = TrainingState(run, None, normalised)
    step = tf.function(replica_step(state, Schedule(3, "cosine")), autograph=False, jit_compile=True)
    batch = a_batch(run)
    operations = step.get_concrete_function(batch).graph.get_operations()
    of_the_host = {"PyFunc", "EagerPyFunc", "Print", "PrintV2", "WriteSummary", "IteratorGetNext", "RandomUniform"}
    assert not of_the_host & {operation.type for operation in operations}
    outputs = [output for operation in operations for output in operation.outputs if output.dtype != tf.resource]
    assert len(outputs) > 500
    assert all(output.shape.is_fully_defined() for output in outputs)
    hlo = step.experimental_get_compiler_ir(batch)(stage="hlo")
    assert "HloModule" in hlo and "convolution" in hlo
