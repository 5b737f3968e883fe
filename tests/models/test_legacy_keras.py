"""The networks under tf_keras (Keras 2), which TensorFlow's TPU and multi-worker strategies need."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from caloscale.models import build, count_parameters, flops
from caloscale.spec import load_run

pytestmark = pytest.mark.integration

SMALL = (
    "data.geometry.cells=[6, 5, 3]",
    "data.geometry.layers=[{count: 3, absorberMm: 4}]",
    "data.geometry.depthMm=30",
    "data.preprocessing.rebin=[1, 1, 1]",
    "model.latentSize=6",
)
PRESETS = {"variable-angle": (), "fixed-angle": (), "compact": SMALL}
"""Overrides by preset."""


def seeded_inputs(generator, discriminator):
    rng = np.random.default_rng(11)
    latent = rng.normal(size=(1, generator.input.shape[-1])).astype(np.float32)
    shower = rng.gamma(0.2, 0.05, (1, *discriminator.input.shape[1:])).astype(np.float32)
    return latent, shower


def describe(preset, folder: Path, *, copy_weights: bool):
    """Build both networks, save or copy their weights through `folder`, and describe what they do."""
    run = load_run(preset=preset, overrides=[*PRESETS[preset], "model.binCounts=true"])
    networks = build(run.model, run.data)
    facts = {}
    for name, network in networks.items():
        file = folder / f"{preset}-{name}.npz"
        if copy_weights:
            saved = np.load(file)
            for layer in network.layers:
                count = len(layer.get_weights())
                layer.set_weights([saved[f"{layer.name}/{index}"] for index in range(count)])
        else:
            weights = {f"{la.name}/{i}": w for la in network.layers for i, w in enumerate(la.get_weights())}
            np.savez(file, **weights)
        facts[name] = {"parameters": count_parameters(network), "flops": flops(network)}
    latent, shower = seeded_inputs(*networks.values())
    outputs = {name: np.asarray(value) for name, value in networks["discriminator"](shower, training=False).items()}
    return facts, {"shower": np.asarray(networks["generator"](latent, training=False)), **outputs}


def main(folder: Path) -> None:
    """What runs in the other process."""
    import tensorflow as tf

    facts = {"keras": tf.keras.Model.__module__}
    for preset in PRESETS:
        facts[preset], outputs = describe(preset, folder, copy_weights=True)
        np.savez(folder / f"{preset}-outputs.npz", **outputs)
    (folder / "facts.json").write_text(json.dumps(facts))


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keras")
    here = {preset: describe(preset, folder, copy_weights=False) for preset in PRESETS}
    environment = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    command = [sys.executable, __file__, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return here, json.loads((folder / "facts.json").read_text()), folder


@pytest.mark.skipif(bool(os.environ.get("TF_USE_LEGACY_KERAS")), reason="compares with Keras 3")
@pytest.mark.parametrize("preset", PRESETS)
def test_both_kerases_make_the_same_networks(both, preset):
    here, there, folder = both
    assert there["keras"].startswith("tf_keras")
    facts, outputs = here[preset]
    assert there[preset] == facts
    legacy = np.load(folder / f"{preset}-outputs.npz")
    published = {"shower", "real_fake", "energy", "angle", "ecal_sum", "bins"}
    assert set(legacy) == set(outputs)
    assert set(outputs) > published if preset == "compact" else set(outputs) == published
    assert outputs["shower"].max() > 0
    # The compact network has exponentials and logarithms, which carry rounding further.
    rounding = 10 if preset == "compact" else 1
    for name, value in outputs.items():
        tolerance = {"rtol": rounding * 1e-5, "atol": rounding * 1e-6 * np.abs(value).max()}
        np.testing.assert_allclose(legacy[name], value, **tolerance, err_msg=name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
