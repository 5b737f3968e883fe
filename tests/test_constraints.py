"""The pins for a TPU are those of everything else, but for what belongs to TensorFlow's version."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
OF_TENSORFLOW = {"tensorboard"}


def pins(name):
    lines = (ROOT / name).read_text().splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def test_pins_for_a_tpu_differ_only_in_tensorflow():
    usual, tpu = pins("constraints.txt"), pins("constraints-tpu.txt")
    assert usual.keys() - tpu.keys() == {"tensorflow_cpu"}
    assert tpu.keys() - usual.keys() == {"tensorflow_tpu", "libtpu"}
    assert {name for name in usual.keys() & tpu.keys() if usual[name] != tpu[name]} == OF_TENSORFLOW
    assert {tpu[name].rpartition(".")[0] for name in (*OF_TENSORFLOW, "tensorflow_tpu")} == {"2.20"}
