"""Threads and oneDNN of a training: what TensorFlow makes of the variables, in a process of its own."""

import subprocess
import sys

import pytest

from caloscale.errors import ConfigurationError
from caloscale.spec import load_run
from caloscale.training.processor import processor_variables, set_processor, set_suitable_threads

COUNT = """
import os
from pathlib import Path

from caloscale.spec import load_run
from caloscale.tensorflow_import import load_tensorflow_quietly
from caloscale.training.processor import set_processor

run = load_run(preset="compact", overrides=["train.threads.inter=3", "train.threads.intra=5"])
set_processor(run, os.environ)
load_tensorflow_quietly()
import tensorflow as tf

tf.function(tf.matmul)(tf.ones((9, 9)), tf.ones((9, 9)))
print(*(file.read_text().strip() for file in Path("/proc/self/task").glob("*/comm")))
"""


@pytest.mark.integration
@pytest.mark.skipif(sys.platform != "linux", reason="the names of threads are in /proc")
def test_tensorflow_has_the_threads_of_the_run_configuration():
    output = subprocess.run([sys.executable, "-c", COUNT], check=True, capture_output=True, text=True).stdout.split()
    assert output.count("tf_Compute") == 3


def train_with(*overrides):
    return load_run(preset="compact", overrides=overrides).train


def test_only_what_is_set_becomes_a_variable():
    assert processor_variables(train_with()) == {}
    assert processor_variables(train_with("train.threads.intra=5", "train.oneDnn=false")) == {
        "TF_NUM_INTRAOP_THREADS": "5", "TF_ENABLE_ONEDNN_OPTS": "0",
    }  # fmt: skip


def test_settings_that_come_too_late_are_refused():
    run = load_run(preset="variable-angle", overrides=["train.threads.inter=2"])
    environment = {"A": "1"}
    with pytest.raises(ConfigurationError, match=r"train\.threads"):
        set_processor(run, environment, {"tensorflow": object()})
    assert environment == {"A": "1"}
    set_processor(run, environment, {})
    assert environment == {"A": "1", "TF_NUM_INTEROP_THREADS": "2"}
    set_processor(run, environment, {"tensorflow": object()})
    set_processor(load_run(preset="compact"), {}, {"tensorflow": object()})


@pytest.mark.parametrize(
    ("preset", "cores", "before", "after"),
    [
        ("compact", 2, {}, "1"),
        ("par04", 2, {}, "1"),
        ("compact", 2, {"TF_NUM_INTRAOP_THREADS": "2"}, "2"),
        ("compact", 1, {}, None),
        ("compact", 4, {}, None),
        ("variable-angle", 2, {}, None),
    ],
)
def test_threads_that_nobody_set(preset, cores, before, after):
    environment = dict(before)
    set_suitable_threads(load_run(preset=preset), environment, cores)
    assert environment.get("TF_NUM_INTRAOP_THREADS") == after
