"""Keras 3 or tf_keras: chosen before TensorFlow is there, refused clearly afterwards."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from packaging.requirements import Requirement

from caloscale.errors import ConfigurationError
from caloscale.installation import install_command
from caloscale.models import build, legacy_keras
from caloscale.models.legacy_keras import choose_keras, loaded_keras
from caloscale.spec import load_run
from tests.models import needs_bfloat16

from .conftest import small_run
from .test_strategy import tf_config

ROOT = Path(__file__).parents[2]
BUILTIN = small_run("train.loop=builtin")


@pytest.mark.parametrize(
    ("run", "environment", "expected"),
    [
        (BUILTIN, tf_config(2), "tf_keras"),
        (BUILTIN, tf_config(1), "keras"),
        (BUILTIN, {}, "keras"),
        (small_run(), tf_config(2), "keras"),
        (small_run(), {"TF_USE_LEGACY_KERAS": "1"}, "tf_keras"),
    ],
)
def test_before_tensorflow_is_loaded(run, environment, expected):
    environment = dict(environment)
    assert choose_keras(run, environment, modules={}) == expected
    assert environment.get("TF_USE_LEGACY_KERAS") == ("1" if expected == "tf_keras" else None)


def test_the_wrong_keras_is_refused():
    environment = tf_config(2)
    with pytest.raises(ConfigurationError, match=r"train.loop.*loaded TensorFlow with Keras 3") as error:
        choose_keras(BUILTIN, environment, modules={"tensorflow": tf, "keras": tf.keras})
    assert error.value.exit_code == 2
    assert "process of its own" in error.value.remedy
    assert "TF_USE_LEGACY_KERAS" not in environment
    assert choose_keras(BUILTIN, environment, modules={"tensorflow": tf, "tf_keras": tf}) == "tf_keras"


def test_without_the_extra_the_error_says_how_it_is_installed(monkeypatch):
    monkeypatch.setattr(legacy_keras.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"train.loop.*not installed") as error:
        choose_keras(BUILTIN, tf_config(2), modules={})
    assert install_command("tf-keras") in error.value.remedy
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [Requirement(text).name for text in extras["tf-keras"]] == ["tf_keras"]


def test_one_module_depends_on_tf_keras():
    source = ROOT / "src" / "caloscale"
    named = {path for path in source.rglob("*.py") if re.search(r"tf_keras|TF_USE_LEGACY_KERAS", path.read_text())}
    # The description of a field, and the list of software whose versions a bench states.
    texts = {"spec/train.py", "bench/results.py"}
    assert {str(path.relative_to(source)) for path in named} - texts == {"models/legacy_keras.py", "cli/main.py"}


def test_what_is_loaded_here():
    assert loaded_keras({}) is None
    assert loaded_keras(sys.modules) in tf.keras.Model.__module__


def test_choosing_loads_no_tensorflow():
    code = (
        "import os, sys; from caloscale.spec import load_run; from caloscale import stages;"
        "from caloscale.models.legacy_keras import choose_keras; stages.train;"
        "print(choose_keras(load_run(preset='compact', overrides=['train.loop=builtin']), os.environ),"
        "'tensorflow' in sys.modules)"
    )
    environment = {**os.environ, **tf_config(2)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tf_keras", "False"]
    assert "train.loop builtin on several workers: training with tf_keras" in done.stderr


LEGACY = """
import json, sys
from pathlib import Path
import numpy as np, tensorflow as tf
from caloscale.spec import load_run
from caloscale.models.network_files import NetworkFile, save_networks
from caloscale.training.state import TrainingState
folder, overrides = Path(sys.argv[1]), json.loads(sys.argv[2])
run = load_run(preset="fixed-angle", overrides=overrides)
state = TrainingState(run)
rng = np.random.default_rng(2)
for network in state.networks.values():
    network.set_weights([rng.uniform(0.01, 0.1, w.shape).astype(w.dtype) for w in network.get_weights()])
save_networks(run, [NetworkFile(folder / f"{n}.keras", n, state.networks[n].get_weights())
                    for n in ("generator", "discriminator")])
print(tf.keras.Model.__module__, state.networks["generator"].layers[3].dtype_policy.name)
np.savez(folder / "weights.npz", *state.networks["generator"].get_weights())
"""


@needs_bfloat16
@pytest.mark.long
def test_what_tf_keras_trained_in_bfloat16_is_saved_as_a_plain_network_of_keras_3(tmp_path):
    overrides = ["train.precision=bfloat16", "train.synchronizedBatchNorm=true"]
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", **tf_config(1)}
    command = [sys.executable, "-c", LEGACY, str(tmp_path), json.dumps(overrides)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("tf_keras")
    assert "mixed_bfloat16" in done.stdout
    generator = tf.keras.models.load_model(str(tmp_path / "generator.keras"))
    with np.load(tmp_path / "weights.npz") as saved:
        for weight, name in zip(generator.get_weights(), saved.files, strict=True):
            np.testing.assert_array_equal(weight, saved[name])
    run = load_run(preset="fixed-angle")
    plain = build(run.model, run.data)
    assert [layer.name for layer in generator.layers] == [layer.name for layer in plain["generator"].layers]
    assert {layer.compute_dtype for layer in generator.layers} == {"float32"}
    assert tf.keras.models.load_model(str(tmp_path / "discriminator.keras")).count_params() > 0
