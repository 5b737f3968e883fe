"""``train.convolutions: measured``: what is chosen from times, what is kept, and that layers compute the same."""

from __future__ import annotations

import json
import logging

import numpy as np
import pytest
import tensorflow as tf

from caloscale.errors import ConfigurationError
from caloscale.models.layers.convolution import PaddedConv3D, computed_by
from caloscale.models.layers.convolution_ways import Cells, Direct
from caloscale.profiling import convolution_choice
from caloscale.profiling.convolution_choice import (
    BLOCKS,
    DEPTHS,
    DIRECT,
    PASSES,
    candidates,
    choose_ways,
    convolution_layers,
    fastest,
    seconds_by_turns,
)
from caloscale.spec import load_run


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({DIRECT: 1.0, DEPTHS: 0.5}, DEPTHS),
        ({DIRECT: 1.0, DEPTHS: 0.95}, DEPTHS),
        ({DIRECT: 1.0, DEPTHS: 0.96}, DIRECT),
        ({DIRECT: 1.0, DEPTHS: 0.8, BLOCKS: 0.7}, BLOCKS),
        ({DIRECT: 1.0, DEPTHS: 1.5}, DIRECT),
    ],
)
def test_several_cells_must_gain_five_percent(seconds, chosen):
    assert fastest(seconds) == chosen


def network(table=None):
    """One channel, then six twice alike, then three."""
    inputs = y = tf.keras.Input((5, 4, 6, 1))
    with computed_by(table):
        for name, filters in (("first", 6), ("second", 6), ("third", 6), ("last", 3)):
            y = PaddedConv3D(filters, (3, 3, 3), (1, 1, 1), 0.3, name=name)(y)
    return tf.keras.Model(inputs, y)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "cache" / "convolutions.json"


@pytest.fixture
def calls(monkeypatch):
    """Measurements, with times made up: each way of several cells is twice as fast."""
    made = []

    def seconds(works, rounds, clock, budget):
        made.append(works)
        return {(which, cells): [2.0 if cells == DIRECT else 1.0, 3.0] for which, cells in works}

    monkeypatch.setattr(convolution_choice, "seconds_by_turns", seconds)
    monkeypatch.setattr(convolution_choice, "has_accelerator", lambda: False)
    return made


def ways_of(model):
    return {layer.name: layer.ways(layer.input.shape[-1]) for layer in model.layers[1:]}


def test_a_choice_computes_what_keras_layers_compute(file, calls):
    model, plain = network(), network()
    plain.set_weights(model.get_weights())
    chosen = choose_ways([model], "float32", 2, file=file)
    assert len(chosen) == len(calls) == 3, "two layers compute the same"
    ways = ways_of(model)
    assert all(way == Cells(DEPTHS) for name in ("second", "last") for way in vars(ways[name]).values())
    # Of a pass with one channel the blocks are as fast, and come later.
    assert ways["first"].input_gradient == Cells(DEPTHS)
    (first,) = [one for one in chosen if one.channels == 1]
    assert candidates(first, "input_gradient") == (DIRECT, DEPTHS, BLOCKS)
    assert candidates(first, "forward") == candidates(first, "kernel_gradient") == (DIRECT, DEPTHS)
    x = tf.constant(np.random.default_rng(1).normal(size=(2, 5, 4, 6, 1)), tf.float32)

    def results(model):
        @tf.function(autograph=False)
        def computed():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = model(x)
            return [y, *tape.gradient(y, [x, *model.trainable_variables], output_gradients=tf.sin(y))]

        return computed()

    for found, expected in zip(results(model), results(plain), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_what_was_measured_is_kept(file, calls, caplog):
    chosen = choose_ways([network()], "float32", 2, file=file)
    assert len(calls) == 3
    with caplog.at_level(logging.INFO):
        again = network()
        assert choose_ways([again], "float32", 2, file=file) == chosen
    assert len(calls) == 3 and "0 measured" in caplog.text and "3 known" in caplog.text
    assert ways_of(again)["second"].forward == Cells(DEPTHS)
    choose_ways([network()], "bfloat16", 2, file=file)
    assert len(calls) == 6, "the precision is another"
    choose_ways([network()], "float32", 2, file=file)
    assert len(calls) == 6, "what was kept before is still there"
    choose_ways([network()], "float32", 64, file=file)
    assert len(calls) == 9, "the batch is another"
    choose_ways([network()], "float32", 128, file=file)
    assert len(calls) == 9, "as many showers are measured as before"


DAMAGES = {
    "half a file": lambda text: text[: len(text) // 2],
    "another format": lambda text: json.dumps({**json.loads(text), "format": 0}),
    "unknown cells": lambda text: text.replace("2\n", "7\n"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_measured_again(damage, file, calls):
    chosen = choose_ways([network()], "float32", 2, file=file)
    text = file.read_text()
    file.write_text(DAMAGES[damage](text))
    assert file.read_text() != text
    assert choose_ways([network()], "float32", 2, file=file) == chosen
    assert len(calls) == 6 and file.read_text() == text


def test_a_folder_that_cannot_be_written(tmp_path, calls, caplog):
    (tmp_path / "file").touch()
    assert choose_ways([network()], "float32", 2, file=tmp_path / "file" / "convolutions.json")
    assert "not kept" in caplog.text


def test_without_time_left(file, calls):
    """A clock that passes the limit with the first measurement: the layer with most arithmetic has it."""
    times = iter([0.0, 1.0, 16.0, 17.0, 18.0])
    model = network()
    chosen = choose_ways([model], "float32", 2, file=file, clock=lambda: next(times))
    largest = max(convolution_layers(model), key=lambda one: one.flop)
    assert len(calls) == 1
    assert {one: set(cells.values()) for one, cells in chosen.items()} == {
        one: {DEPTHS} if one == largest else {DIRECT} for one in chosen
    }
    assert {type(way) for way in vars(ways_of(model)["last"]).values()} == {Direct}
    choose_ways([network()], "float32", 2, file=file)
    assert len(calls) == 3, "the others are measured at the next start"


def test_an_accelerator_is_not_measured(file, calls, monkeypatch):
    monkeypatch.setattr(convolution_choice, "has_accelerator", lambda: True)
    model = network()
    assert choose_ways([model], "float32", 2, file=file) == {} and calls == []
    assert not file.exists() and model.layers[1]._ways is None


def test_a_real_measurement(file, monkeypatch):
    monkeypatch.setattr(convolution_choice, "has_accelerator", lambda: False)
    chosen = choose_ways([network()], "bfloat16", 1, file=file)
    assert all(cells[which] in candidates(one, which) for one, cells in chosen.items() for which in PASSES)
    assert len(json.loads(file.read_text())["chosen"]) == 3


def test_rounds_end_with_the_time():
    now = iter(range(100))
    assert seconds_by_turns({"one": lambda: tf.zeros(1)}, 50, lambda: next(now), budget=6) == {"one": [1, 1]}


def test_a_deterministic_training_measures_nothing():
    overrides = ["train.convolutions=measured", "train.deterministic=true"]
    with pytest.raises(ConfigurationError, match=r"train\.convolutions measured") as refused:
        load_run(preset="variable-angle", overrides=overrides)
    assert refused.value.remedy == "set train.convolutions to auto or keras"
    assert load_run(preset="variable-angle", overrides=overrides[:1]).train.convolutions == "measured"
