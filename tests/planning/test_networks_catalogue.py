"""The planner imports no TensorFlow, so what it knows of the networks is data: held here against the networks."""

import math

import pytest

from caloscale.errors import ConfigurationError
from caloscale.models import build
from caloscale.models.arithmetic import flops
from caloscale.models.families.family import family_of
from caloscale.planning.catalogue.hardware import load_networks, network_of
from caloscale.spec import PRESETS, load_run
from caloscale.spec.model import family_of_preset


@pytest.mark.parametrize("preset", [preset for preset in PRESETS if family_of_preset(preset) != "flow"])
def test_arithmetic_and_gradients_are_those_of_the_networks(preset):
    run = load_run(preset=preset)
    networks = build(run.model, run.data)
    row = network_of(run)
    forward = 7 * flops(networks["generator"]) + 10 * flops(networks["discriminator"])
    assert row.gflop_per_shower == pytest.approx(forward / 1e9, rel=0.05)
    both = (networks["generator"], networks["discriminator"])
    parameters = [sum(math.prod(weight.shape) for weight in network.trainable_weights) for network in both]
    assert row.reduced_mb == pytest.approx(2 * 4 * sum(parameters) / 1e6, rel=0.01)  # twice a step, 4 bytes each
    more = run.model_copy(update={"train": run.train.model_copy(update={"generator_updates": 9})})
    assert network_of(more).gflop_per_shower == pytest.approx(
        family_of(run.model).step_flops(more, networks, folded=False) / 1e9, rel=0.05
    )
    assert network_of(more).reduced_mb == pytest.approx(4 * (9 * parameters[0] + 2 * parameters[1]) / 1e6, rel=0.01)
    outputs = sum(
        math.prod(layer.output.shape[1:])
        for network in both
        for layer in network.layers
        if layer.trainable_weights and "norm" not in layer.name
    )
    assert row.activation_mib <= 1.3 * 4 * outputs / 2**20  # a lower bound; 1.3: inputs of folded convolutions, too


@pytest.mark.parametrize(
    ("preset", "overrides"),
    [
        ("flow", ()),
        ("flow", ("data.preprocessing.rebin=[1, 3, 1]",)),
        ("flow-51x51x25", ()),
        ("flow-par04", ()),
        ("flow-par04", ("data.geometry.cells=[18, 50, 45]",)),
    ],
)
def test_arithmetic_of_the_flow_is_that_of_its_network(preset, overrides):
    run = load_run(preset=preset, overrides=overrides)
    family, networks = family_of(run.model), build(run.model, run.data)
    stated = family.arithmetic(run.model, run.data)
    assert stated.gflop_per_shower == pytest.approx(family.step_flops(run, networks) / 1e9, rel=0.005)
    parameters = sum(math.prod(weight.shape) for weight in networks["generator"].trainable_weights)
    assert sum(stated.reduced_megabytes) == pytest.approx(4 * parameters / 1e6, rel=0.005)


def test_a_flow_of_other_settings_is_not_planned():
    run = load_run(preset="flow", overrides=["model.settings.width=256"])
    assert family_of(run.model).arithmetic(run.model, run.data) is None


def test_networks_of_other_filters_are_not_planned():
    with pytest.raises(ConfigurationError, match=r"model\.filters out"):
        network_of(load_run(preset="variable-angle", overrides=["model.filters=multiples-of-16"]))


@pytest.mark.parametrize("rebin", ["[1, 3, 1]", "[1, 1, 1]"])
def test_arithmetic_of_the_compact_network_grows_with_the_cells(rebin):
    run = load_run(preset="compact", overrides=[f"data.preprocessing.rebin={rebin}"])
    networks = build(run.model, run.data)
    forward = 7 * flops(networks["generator"]) + 10 * flops(networks["discriminator"])
    row = load_networks()["compact"].on(math.prod(run.data.shape))
    assert row.gflop_per_shower == pytest.approx(forward / 1e9, rel=0.1)
