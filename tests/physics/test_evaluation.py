import json
from dataclasses import replace
from functools import partial
from typing import get_args

import numpy as np
import pytest

from caloscale.detector.axes import axes_of
from caloscale.errors import InputError
from caloscale.physics import Evaluation, compare
from caloscale.physics.comparison import mean_shower, observe_baseline
from caloscale.physics.multivariate import compare_layers
from caloscale.physics.observables import choose_cuts
from caloscale.report.physics_sections import verdict_markdown
from caloscale.showers.arrays import Showers
from caloscale.spec import Gate, LayerGroup, Validation
from caloscale.spec.validation import Quantity
from tests.physics import conftest
from tests.physics.conftest import DATA, make_showers

QUICK = Validation(showers=100, bootstraps=10)
judge = partial(conftest.judge, validation=QUICK)


def with_cells(showers: Showers, cells: np.ndarray) -> Showers:
    """Generated showers of the same primaries."""
    return Showers(cells, showers.energy_gev, showers.angle_rad, source="generated")


def test_every_observable_of_the_configuration_is_computed(undistorted):
    limited = {f"{name}Separation" for name in undistorted.evaluation.observables}
    assert limited == {name for name in get_args(Quantity) if name.endswith("Separation")}
    for result in undistorted.evaluation.observables.values():
        assert result.expected_null > 0 and result.uncertainty > 0 and len(result.ranges) == 3


def test_monte_carlo_as_generator_has_no_excess(undistorted):
    """No excess: none of 13 observables is four standard deviations off, and in the mean they are where they belong."""
    results = undistorted.evaluation.observables
    for name, result in results.items():
        assert abs(result.excess) < 4 * result.excess_uncertainty, name
    assert abs(np.mean([r.excess / r.excess_uncertainty for r in results.values()])) < 1
    found = undistorted.evaluation
    assert abs(found.classifier.value - 0.5) < 4 * found.classifier.uncertainty
    assert (found.decision, found.warnings, found.ungated) == ("not assessed", (), tuple(found.quantities))
    assert found.linearity.deviation.generated.value < 0.03
    assert all(abs(r.ratio.value - 1) < 4 * r.ratio.uncertainty for r in found.response)
    assert found.largest_maximum_difference <= 0.5
    assert abs(found.regression.bias.generated.value) < 0.03
    assert found.correlation.mean_difference < found.correlation.self_difference


def test_showers_that_are_deeper_are_seen_in_layers():
    """A gamma profile that is stretched has its maximum deeper by as much: here by about a layer of 1.375 X0."""
    geometry = DATA.geometry.model_copy(
        update={"layers": (LayerGroup(count=24, absorber_mm=4.8),), "depth_mm": 200.0, "cells": (18, 18, 24)}
    )
    data = DATA.model_copy(update={"geometry": geometry})
    reference, few, deeper = (  # too few for a classifier
        make_showers(count, seed, data=data, stretch=stretch)
        for count, seed, stretch in ((900, 1, 1), (90, 2, 1), (900, 3, 1.2))
    )
    found = judge(reference, deeper, few, data=data)
    deepest = max(m.depth_x0.reference.value for m in found.shower_maximum)
    assert found.largest_maximum_difference == pytest.approx(0.2 * deepest / 1.375, abs=0.15)


def test_what_no_sample_can_show_is_not_measurable():
    """A detector that ends before the shower maximum, and one energy: gates that any generator would meet."""
    geometry = DATA.geometry.model_copy(
        update={"layers": (LayerGroup(count=6, absorber_mm=1.6),), "depth_mm": 40.0, "cells": (18, 18, 6)}
    )
    data = DATA.model_copy(update={"geometry": geometry, "energy_gev": (20.0, 20.0)})
    gates = (Gate(quantity="showerMaximum", tolerance=1), Gate(quantity="linearity", tolerance=5))
    reference, training, generated = (make_showers(100, seed, data=data) for seed in (1, 2, 3))
    generated.cells_gev[..., -1] *= 1.5
    found = judge(reference, generated, training, data=data, gates=gates)
    maximum, linearity = found.gates
    assert (maximum.decision, maximum.value, linearity.decision, linearity.value) == ("undecided", None) * 2
    assert "not measurable here: the fitted maximum" in maximum.statement
    assert "not measurable here: there is one range of energy" in linearity.statement
    assert found.largest_maximum_difference is None


def test_layers_that_belong_to_other_showers_are_found_by_the_layers_alone(undistorted):
    """Layers of different showers put together: each observable of one layer stays, their correlation is lost."""
    generated = make_showers(600, 21)
    order = np.argsort(generated.energy_gev)
    shuffled = generated.cells_gev.copy()
    for layer in range(0, DATA.shape[2], 2):  # with those of the next higher energies
        shuffled[order[:-5], :, :, layer] = generated.cells_gev[order[5:], :, :, layer]
    broken = with_cells(generated, shuffled)
    options = {"training": undistorted.training, "untrained": None, "data": DATA, "validation": QUICK}
    right, wrong = (compare_layers(compare(undistorted.reference, sample, **options)) for sample in (generated, broken))
    assert abs(right.value - 0.5) < 3 * right.uncertainty
    assert wrong.value - 0.5 > 4 * wrong.uncertainty


def test_it_beats_the_untrained_network_and_the_baseline(undistorted):
    found = undistorted.evaluation
    for name in ("longitudinalProfile", "transverseProfileX", "transverseProfileY", "cellSpectrum"):
        assert found.observables[name].untrained > 20 * found.observables[name].separation
    assert found.observables["cellSpectrum"].improvement_sigmas > 3
    assert found.resolution.improvement_sigmas > 3
    assert found.resolution.baseline.value == pytest.approx(1)
    assert found.classifier.baseline > 0.95 and found.classifier.untrained > 0.95


def test_a_distorted_generator_is_found(distorted):
    assert all(r.ratio.value == pytest.approx(1.1, abs=0.03) for r in distorted.response)
    for name in ("transverseProfileX", "transverseProfileY", "samplingFraction", "radius90"):
        assert distorted.observables[name].excess_sigmas > 5, name
    assert distorted.classifier.value > 0.8
    # Brighter, not bent: the linearity does not see it.
    assert distorted.linearity.deviation.generated.value < 0.03


def test_gates_decide(distorted):
    failed, met = distorted.gates
    assert (failed.quantity, failed.decision, met.decision) == ("response", "rejected", "accepted")
    assert 3 < failed.low < failed.value < failed.high and met.high < 0.05
    assert distorted.decision == "rejected"
    assert distorted.reasons == (failed.statement,) and "Mean response" in failed.statement


@pytest.mark.integration
def test_a_generator_that_does_not_know_its_particle_is_rejected(blurred):
    """Its response is right in each range of energy, and 10% and 12.5% off for the particles."""
    electrons, photons = blurred.particles
    assert (electrons.particle, photons.particle) == ("e-", "gamma")
    assert (electrons.reference, photons.generated) == (200, 400)
    assert electrons.response.ratio.value == pytest.approx(0.9, abs=0.02)
    assert photons.response.ratio.value == pytest.approx(0.9 / 0.8, abs=0.02)
    found = {d.where: d.value for d in blurred.quantities["response"].differences}
    assert found["e-"] == pytest.approx(-10, abs=2) and found["gamma"] == pytest.approx(12.5, abs=2)
    assert all(abs(value) < 5 for where, value in found.items() if where not in ("e-", "gamma"))
    assert blurred.decision == "rejected" and blurred.gates[0].where in ("e-", "gamma")
    assert {d.where for d in blurred.quantities["showerMaximum"].differences} >= {"e-", "gamma"}


def test_what_learnt_nothing_is_called_worse(undistorted):
    """Noise is farther from Monte Carlo than the mean shower and than Monte Carlo in the place of the untrained."""
    known = undistorted.training[:100]
    noise = with_cells(known, np.random.default_rng(1).uniform(0, 1e-3, known.cells_gev.shape).astype(np.float32))
    found = judge(undistorted.reference, noise, undistorted.training, untrained=known)
    assert found.warnings == ("worse than the untrained network", "worse than the mean shower")
    assert verdict_markdown(found).startswith(
        "**Not assessed: the generator is worse than the untrained network and worse than the mean shower; "
    )


def test_nothing_generated_is_said_not_raised(degenerate):
    assert degenerate.showers.empty == 20
    assert degenerate.observables["longitudinalProfile"].separation == 1
    assert degenerate.gates[0].decision == "rejected"
    for distance in (degenerate.classifier, degenerate.fpd, degenerate.kpd):
        assert distance.value is None and "needs" in distance.reason
    assert degenerate.regression.reason and degenerate.correlation.reason and degenerate.linearity.reason
    assert degenerate.largest_maximum_difference is None
    assert degenerate.decision == "rejected" and "all generated showers are empty" in degenerate.reasons
    assert any("20 of 20" in note for note in degenerate.notes)
    assert any("parametrised" in note for note in degenerate.notes)


def test_a_gate_without_a_value_is_undecided(undistorted):
    few = undistorted.reference[:5]
    gates = (Gate(quantity="hitsSeparation", tolerance=0.9), Gate(quantity="response", tolerance=90))
    found = judge(few, few, undistorted.training[:20], gates=gates)
    assert found.decision == "not assessed" and {gate.decision for gate in found.gates} == {"undecided"}
    statements = [gate.statement for gate in found.gates]
    assert "Hits: undecided: needs 8 showers of each kind, there are 5" in statements[0]
    assert "showers, fewer than 8: there are 5 and 5" in statements[1]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_cells_that_are_no_energies_reject_the_model(undistorted, bad):
    known = undistorted.training[:100]
    cells = known.cells_gev.copy()
    cells[3, 2, 2, 2] = bad
    generated = with_cells(known, cells)
    found = judge(undistorted.reference, generated, undistorted.training, untrained=generated)
    assert found.showers.unusable == 1 and found.showers.empty == 1
    assert found.decision == "rejected" and "1 generated showers" in found.reasons[0]
    with pytest.raises(InputError, match="not finite or negative") as error:
        judge(generated, undistorted.reference, undistorted.training)
    assert error.value.field == "reference" and error.value.remedy


@pytest.mark.parametrize("field", ["reference", "generated", "training", "untrained"])
def test_empty_samples_and_other_shapes_are_refused(undistorted, field):
    samples = dict.fromkeys(("reference", "generated", "training", "untrained"), undistorted.training[:20])
    with pytest.raises(InputError, match="no showers") as error:
        judge(**(samples | {field: undistorted.training[:0]}))
    assert error.value.field == field
    wrong = with_cells(undistorted.training[:20], undistorted.training.cells_gev[:20, :-1])
    with pytest.raises(InputError, match="another shape") as error:
        judge(**(samples | {field: wrong}))
    assert (error.value.field, error.value.value) == (field, [8, 9, 12]) and "[9, 9, 12]" in error.value.remedy


def test_columns_of_primaries_are_known_by_their_names():
    """In another order than the run's, and with a column of zeros that the run has no range of."""
    data = DATA.model_copy(update={"particle": ("e-", "gamma"), "entry_mm": (-2.0, 2.0)})
    samples = []
    for seed in (1, 3, 5):
        showers = conftest.make_two_particles(30, seed, electrons=1, photons=0.8, source="geant4")
        zeros = np.zeros(60, np.float32)
        further = {**showers.further, "azimuth_rad": zeros, "entry_y_mm": zeros, "entry_x_mm": zeros + seed / 5}
        samples.append(replace(showers, further=further))
    compared = compare(*samples[:2], training=samples[2], untrained=None, data=data, validation=QUICK)
    assert compared.observed["generated"].further[0] == pytest.approx([0.6, 0, 11])
    assert [len(s.particles["e-"]) - s.particles["e-"].sum() for s in compared.weighted.values()] == [30, 30, 30]


def test_the_baseline_repeats_the_mean_shower_times_the_energy(undistorted):
    training = undistorted.training[:50]
    mean = mean_shower(training)
    expected = (training.cells_gev / training.energy_gev[:, None, None, None]).mean(axis=0)
    np.testing.assert_allclose(mean, expected, rtol=1e-5)
    cuts = choose_cuts([training], hits_gev=3e-4, threshold_gev=2e-5)
    found = observe_baseline(training, undistorted.reference, axes_of(DATA), cuts)
    assert found.ecal_sum_gev == pytest.approx(mean.sum() * undistorted.reference.energy_gev, rel=1e-4)
    assert found.fractions.std(axis=0) == pytest.approx([0, 0, 0], abs=1e-6)


def test_the_same_showers_give_the_same_result(undistorted):
    samples = undistorted.reference, make_showers(100, 9), undistorted.training
    first, second = (judge(*samples) for _ in range(2))
    assert first == second
    other = judge(*samples, validation=QUICK.model_copy(update={"seed": 2}))
    assert other.observables["hits"].separation == first.observables["hits"].separation
    assert other.observables["hits"].expected_null != first.observables["hits"].expected_null


def test_the_result_is_json_that_can_be_read_back(undistorted, degenerate):
    for result in (undistorted.evaluation, degenerate):
        text = result.model_dump_json(by_alias=True)
        assert Evaluation.model_validate_json(text) == result
        content = json.loads(text)
        assert "excess" in content["observables"]["hits"] and "NaN" not in text
    assert len(undistorted.evaluation.model_dump_json(by_alias=True)) < 200_000


def test_numbers_for_other_pages(undistorted, degenerate):
    metrics = undistorted.evaluation.metrics()
    assert metrics["hitsSeparation"] == undistorted.evaluation.observables["hits"].separation
    assert metrics["accepted"] == 0.0 and all(np.isfinite(v) for v in metrics.values())
    assert "classifierAuc" not in degenerate.metrics()
    false_positives, true_positives, thresholds = undistorted.evaluation.roc_curve()
    assert len(false_positives) == len(true_positives) == len(thresholds) > 10
    assert degenerate.roc_curve() is None
