"""Operating characteristics with parametrised showers: what is wrong is rejected, what is right never."""

import numpy as np
import pytest

from caloscale import spec
from caloscale.physics import Evaluation, compare, evaluate
from caloscale.showers.arrays import Showers
from caloscale.spec import Gate
from tests.physics.conftest import DATA, make_showers
from tests.physics.deformations import deformations

GATES = tuple(
    gate if gate.showers is None else Gate(quantity=gate.quantity, tolerance=gate.tolerance, showers=300)
    for gate in spec.load_run(preset="compact").validation.gates
)
VALIDATION = spec.Validation(bootstraps=50, gates=GATES)
TRAINING = make_showers(500, 2)
FEW = TRAINING[:90]
"""Too few for the classifier, whose gate would reject all that is wrong."""
WRONG = deformations(FEW)


def judge(generated: Showers, seed: int = 1, training: Showers = TRAINING) -> Evaluation:
    reference = make_showers(400, 1000 + seed)
    validation = VALIDATION.model_copy(update={"seed": seed})
    return evaluate(compare(reference, generated, training=training, untrained=None, data=DATA, validation=validation))


@pytest.mark.integration
@pytest.mark.parametrize("name", WRONG)
def test_each_deformation_of_monte_carlo_is_rejected(name: str) -> None:
    found = judge(WRONG[name](make_showers(1500, 3)), training=FEW)
    assert found.decision == "rejected", [gate.statement for gate in found.gates]
    gates = {gate.quantity: gate.decision for gate in found.gates}
    assert gates["classifierAuc"] == "undecided"
    expected = {
        "mean shower": "responseSpread",
        "5% more energy": "response",
        "one dead layer": "longitudinalProfileSeparation",
        "resolution halved": "responseSpread",
        "100 showers repeated": "diversity",
        "training showers repeated": "copying",
        "layers exchanged": "depthSpread",
        "cells of a layer exchanged": "hits",
    }
    assert gates[expected[name]] == "rejected"


@pytest.mark.long
def test_a_second_sample_of_monte_carlo_is_never_rejected() -> None:
    """And accepted or undecided by each gate: the difference is zero, so a rejection has a probability far below 5%."""
    for seed in range(20):
        found = judge(make_showers(1500, 5000 + seed), seed)
        assert found.decision in ("accepted", "undecided"), found.reasons


def test_deformations_do_what_they_say() -> None:
    showers = make_showers(300, 3)
    made = {name: change(showers) for name, change in WRONG.items()}
    sums = {name: sample.ecal_sum_gev for name, sample in made.items()}
    np.testing.assert_allclose(sums["5% more energy"], 1.05 * showers.ecal_sum_gev, rtol=1e-5)
    assert (made["one dead layer"].cells_gev[..., 6] == 0).all() and (
        made["one dead layer"].cells_gev[..., 5] > 0
    ).any()
    energy = np.log(showers.energy_gev)
    spreads = []
    for sample in (showers, made["resolution halved"]):
        response = sample.ecal_sum_gev / sample.energy_gev
        spreads.append((response - np.polyval(np.polyfit(energy, response, 3), energy)).std())
    assert spreads[1] == pytest.approx(spreads[0] / 2, rel=0.02)
    assert len(np.unique(sums["100 showers repeated"])) == 100
    layers = {name: sample.cells_gev.sum(axis=(1, 2)) for name, sample in made.items()}
    own = showers.cells_gev.sum(axis=(1, 2))
    np.testing.assert_allclose(np.sort(layers["layers exchanged"], axis=0), np.sort(own, axis=0), rtol=1e-5)
    assert (layers["layers exchanged"] == own).mean() < 0.2
    filled = layers["cells of a layer exchanged"] > 0
    np.testing.assert_allclose(layers["cells of a layer exchanged"][filled], own[filled], rtol=1e-4)
    assert (sums["mean shower"] / showers.energy_gev).std() < 1e-6
