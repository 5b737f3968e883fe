"""A training of the family flow: resumed bit for bit, released, and cells of a cylinder."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from caloscale.errors import Terminated
from caloscale.inference.generator import load_generator
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.tfrecord.shards import preprocess_showers
from caloscale.spec import load_run
from caloscale.training.loop import train

from .conftest import random_showers
from .detector import DETECTOR
from .processes import assert_equal, newest_step, weights

OVERRIDES = (
    *(override for override in DETECTOR if not override.startswith("model.latentSize")),
    "model.settings.width=16",
    "model.settings.layerSteps=2",
    "checkpoint.everySeconds=0.001",
    "train.decay=constant",
    "train.deterministic=true",
)


def flow_run():
    return load_run(preset="flow", overrides=OVERRIDES)


@pytest.fixture(scope="module")
def whole(shards, tmp_path_factory):
    output = tmp_path_factory.mktemp("flow")
    return train(flow_run(), shards, output), output


@pytest.mark.integration
def test_an_interrupted_training_equals_an_undisturbed_one(whole, shards, tmp_path, behind_checkpoint):
    behind_checkpoint(3, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Terminated):
        train(flow_run(), shards, tmp_path)
    assert 3 <= newest_step(tmp_path) < 10
    record = train(flow_run(), shards, tmp_path)
    assert record.resumed_from_step is not None and record.steps == whole[0].steps == 10
    assert_equal(weights(tmp_path), weights(whole[1]))
    models = (load_generator(output / "model").network.get_weights() for output in (tmp_path, whole[1]))
    for found, expected in zip(*models, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_the_released_generator_is_adapted_and_makes_showers(whole):
    """The checkpoint keeps what was measured before the first step, so a second release is not calibrated twice."""
    generator = load_generator(whole[1] / "model")
    whitening = generator.network.get_layer("flow").whitening
    assert (whitening.largest.numpy() > 1.5).all(), "the statistics of the training showers"
    mean = whitening.mean.numpy()
    assert not any(np.array_equal(value, mean) for value in weights(whole[1]).values())
    showers = generator.generate(20.0, 1.5, count=16, seed=3)
    assert showers.cells_gev.shape == (16, 7, 6, 4) and 0.1 < showers.ecal_sum_gev.mean() < 2


@pytest.mark.integration
def test_cells_of_a_cylinder_from_showers_to_showers(tmp_path):
    run = load_run(preset="flow-par04", overrides=[*OVERRIDES, "data.geometry.layersPerCell=1"])
    for number in range(5):
        some = random_showers(10, number)
        some = replace(some, angle_rad=np.full_like(some.angle_rad, np.pi / 2))
        write_showers(tmp_path / f"showers/{number}.h5", some, attributes={"cellShape": "cylinder"})
    preprocess_showers(run.data, tmp_path / "showers", tmp_path / "shards")
    assert train(run, tmp_path / "shards", tmp_path).steps == 10
    showers = load_generator(tmp_path / "model").generate(20.0, np.pi / 2, count=16, seed=3)
    assert showers.cells_gev.shape == (16, 7, 6, 4) and 0.1 < showers.ecal_sum_gev.mean() < 2
