"""A small detector, a small folder of shards, and documents for both."""

import warnings
from functools import partial

import numpy as np
import pytest
import tensorflow as tf

from caloscale.models import family_of
from caloscale.models.families.step import Step
from caloscale.profiling.peak import measure_peak
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.tfrecord.shards import preprocess_showers
from caloscale.spec import load_run
from caloscale.training.checkpoint.store import CheckpointFolder

from . import forked
from .detector import DETECTOR
from .quick_networks import quick_networks


def pytest_sessionfinish():
    forked.stop()


def small_run(*overrides):
    """A run of the compact preset on 7 x 6 x 4 cells, 40 training showers in 5 batches."""
    return load_run(preset="compact", overrides=[*DETECTOR, *overrides])


def train_step(run, networks, optimizers, batch, context, schedule):
    """The step of the run's family."""
    family = family_of(run.model)
    return family.train_step(Step(family, run, networks, optimizers, batch, context, schedule))


def random_showers(count, seed, shape=(7, 6, 4)):
    rng = np.random.default_rng(seed)
    energy = rng.uniform(5, 40, count).astype(np.float32)
    cells = rng.gamma(0.3, 1.0, (count, *shape)).astype(np.float32)
    cells *= (0.03 * energy / cells.sum(axis=(1, 2, 3)))[:, None, None, None]
    angle = np.deg2rad(rng.uniform(60, 120, count)).astype(np.float32)
    return Showers(cells, energy, angle, "geant4")


@pytest.fixture(scope="session")
def shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("showers")
    for number in range(5):
        write_showers(folder / f"showers-{number}.h5", random_showers(10, number), attributes={})
    preprocess_showers(small_run().data, folder, folder / "shards")
    return folder / "shards"


@pytest.fixture
def eagerly():
    """Few steps are quicker without compiling."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Even though the `tf.config")
        tf.config.run_functions_eagerly(True)
        yield
        tf.config.run_functions_eagerly(False)


@pytest.fixture(scope="module")
def quickly():
    """The preset compact makes small networks, see `quick_networks`; the profile's peak is that of small matrices."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("caloscale.profiling.profile.measure_peak", partial(measure_peak, size=128))
        patch.setattr("caloscale.models.families.compact.network.build_compact", quick_networks)
        yield


@pytest.fixture
def behind_checkpoint(monkeypatch):
    """Call it with a step and an action: the action is done by the thread that has just written the checkpoint of this
    step, or of the first later one."""
    write = CheckpointFolder.write

    def arm(step, action):
        waiting = [action]

        def write_and_act(folder, arrays, progress, **options):
            path = write(folder, arrays, progress, **options)
            if progress.step >= step and waiting:
                waiting.pop()()
            return path

        monkeypatch.setattr(CheckpointFolder, "write", write_and_act)

    return arm
