from __future__ import annotations

import json

import numpy as np
import pytest

from caloscale.detector.axes import axes_of
from caloscale.errors import InputError
from caloscale.physics import Evaluation, compare, evaluate
from caloscale.physics.observables import choose_cuts
from caloscale.physics.samples import mean_shower, observe_baseline
from caloscale.showers.arrays import Showers
from caloscale.spec import Gate, LayerGroup, Validation
from caloscale.spec.validation import Observable
from tests.physics.conftest import DATA, make_showers

QUICK = Validation(showers=100, bootstraps=10)


def test_every_observable_of_the_document_is_computed(perfect):
    assert set(Observable.__args__) == set(perfect.evaluation.observables)
    for result in perfect.evaluation.observables.values():
        assert result.floor > 0 and result.uncertainty > 0 and len(result.ranges) == 3


def test_monte_carlo_as_generator_is_as_good_as_perfect(perfect):
    """Thirteen observables near their scaled floor: none six standard deviations off, most far below one floor."""
    for name, result in perfect.evaluation.observables.items():
        assert result.separation < result.perfect + 6 * result.uncertainty, name
        assert result.in_floors < 2, name
    assert np.mean([r.in_floors for r in perfect.evaluation.observables.values()]) < 0.8
    found = perfect.evaluation
    assert abs(found.classifier.value - 0.5) < 4 * found.classifier.uncertainty
    assert found.released and found.reasons == ()
    assert found.linearity_deviation < 0.03
    assert all(abs(r.ratio.value - 1) < 4 * r.ratio.uncertainty for r in found.response)
    assert found.largest_maximum_difference <= 0.5
    assert abs(found.regression.bias.generated.value) < 0.03
    assert found.correlation.mean_difference < found.correlation.floor


def test_showers_that_are_deeper_are_seen_in_layers():
    """A gamma profile that is stretched has its maximum deeper by as much: here by about a layer of 1.375 X0."""
    geometry = DATA.geometry.model_copy(
        update={"layers": (LayerGroup(count=24, absorber_mm=4.8),), "depth_mm": 200.0, "cells": (18, 18, 24)}
    )
    data = DATA.model_copy(update={"geometry": geometry})
    reference, training, deeper = (
        make_showers(900, seed, data=data, stretch=stretch) for seed, stretch in ((1, 1), (2, 1), (3, 1.2))
    )
    found = evaluate(compare(reference, deeper, training=training, untrained=None, data=data, validation=QUICK))
    deepest = max(m.depth_x0.reference.value for m in found.shower_maximum)
    assert found.largest_maximum_difference == pytest.approx(0.2 * deepest / 1.375, abs=0.15)


def test_it_beats_the_untrained_network_and_the_baseline(perfect):
    found = perfect.evaluation
    for name in ("longitudinalProfile", "transverseProfileX", "transverseProfileY", "cellSpectrum"):
        assert found.observables[name].untrained > 20 * found.observables[name].separation
    assert found.observables["cellSpectrum"].sigmas_better_than_baseline > 3
    assert found.resolution.sigmas_better_than_baseline > 3
    assert found.resolution.baseline.value == pytest.approx(1)
    assert found.classifier.baseline > 0.95 and found.classifier.untrained > 0.95


def test_a_distorted_generator_is_found(distorted):
    assert all(r.ratio.value == pytest.approx(1.1, abs=0.03) for r in distorted.response)
    for name in ("transverseProfileX", "transverseProfileY", "samplingFraction", "radius90"):
        assert distorted.observables[name].in_floors > 2, name
    assert distorted.classifier.value > 0.8
    # Brighter, not bent: the linearity does not see it.
    assert distorted.linearity_deviation < 0.03


def test_gates_decide(distorted):
    failed, kept = distorted.gates
    assert (failed.observable, failed.passed) == ("samplingFraction", False)
    assert failed.in_floors > failed.limit == 2 and kept.passed
    assert not distorted.released
    assert distorted.reasons == (failed.reason,) and "samplingFraction" in failed.reason


def test_nothing_generated_is_said_not_raised(degenerate):
    assert degenerate.showers.empty == 20
    assert degenerate.observables["longitudinalProfile"].separation == 1
    # So few showers have so high a floor that nothing keeps the gate: this alone must not release it.
    assert degenerate.gates[0].passed
    for distance in (degenerate.classifier, degenerate.fpd, degenerate.kpd):
        assert distance.value is None and "needs" in distance.reason
    assert degenerate.regression.reason and degenerate.correlation.reason and degenerate.linearity.reason
    assert degenerate.largest_maximum_difference is None
    assert not degenerate.released and "all generated showers are empty" in degenerate.reasons
    assert any("20 of 20" in note for note in degenerate.notes)
    assert any("parametrised" in note for note in degenerate.notes)


def test_a_gate_without_a_value_holds_back(perfect):
    few = perfect.reference[:5]
    validation = QUICK.model_copy(update={"gates": (Gate(observable="hits", max_floors=100),)})
    found = evaluate(
        compare(few, few, training=perfect.training[:20], untrained=None, data=DATA, validation=validation)
    )
    assert not found.released
    assert "hits: no value to judge: needs 8 showers of each kind" in found.reasons[0]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1.0])
def test_cells_that_are_no_energies_hold_the_model_back(perfect, bad):
    cells = perfect.training.cells_gev[:100].copy()
    cells[3, 2, 2, 2] = bad
    generated = Showers(cells, perfect.training.energy_gev[:100], perfect.training.angle_rad[:100], source="generated")
    options = {"training": perfect.training, "untrained": generated, "data": DATA, "validation": QUICK}
    found = evaluate(compare(perfect.reference, generated, **options))
    assert found.showers.unusable == 1 and found.showers.empty == 1
    assert not found.released and "1 generated showers" in found.reasons[0]
    with pytest.raises(InputError, match="not finite or negative") as error:
        evaluate(compare(generated, perfect.reference, **options))
    assert error.value.field == "reference" and error.value.remedy


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"reference": slice(0)}, "reference"),
        ({"generated": slice(0)}, "generated"),
        ({"training": slice(0)}, "training"),
    ],
)
def test_empty_samples_are_refused(perfect, change, field):
    samples = dict.fromkeys(("reference", "generated", "training"), perfect.training[:20])
    samples |= {name: perfect.training[index] for name, index in change.items()}
    with pytest.raises(InputError, match="no showers") as error:
        evaluate(compare(**samples, untrained=None, data=DATA, validation=QUICK))
    assert error.value.field == field


def test_another_shape_is_refused(perfect):
    wrong = Showers(
        perfect.training.cells_gev[:10, :-1], perfect.training.energy_gev[:10], perfect.training.angle_rad[:10]
    )
    with pytest.raises(InputError, match="another shape") as error:
        evaluate(
            compare(perfect.reference, wrong, training=perfect.training, untrained=None, data=DATA, validation=QUICK)
        )
    assert error.value.value == [8, 9, 12] and "[9, 9, 12]" in error.value.remedy


def test_the_baseline_repeats_the_mean_shower_times_the_energy(perfect):
    training = perfect.training[:50]
    mean = mean_shower(training)
    expected = (training.cells_gev / training.energy_gev[:, None, None, None]).mean(axis=0)
    np.testing.assert_allclose(mean, expected, rtol=1e-5)
    cuts = choose_cuts([training], hits_gev=3e-4, threshold_gev=2e-5)
    found = observe_baseline(training, perfect.reference, axes_of(DATA), cuts)
    assert found.ecal_sum_gev == pytest.approx(mean.sum() * perfect.reference.energy_gev, rel=1e-4)
    assert found.fractions.std(axis=0) == pytest.approx([0, 0, 0], abs=1e-6)


def test_the_same_showers_give_the_same_result(perfect):
    samples = {"training": perfect.training, "untrained": None, "data": DATA, "validation": QUICK}
    generated = make_showers(100, 9)
    first, second = (evaluate(compare(perfect.reference, generated, **samples)) for _ in range(2))
    assert first == second
    other = evaluate(
        compare(perfect.reference, generated, **(samples | {"validation": QUICK.model_copy(update={"seed": 2})}))
    )
    assert other.observables["hits"].separation == first.observables["hits"].separation
    assert other.observables["hits"].floor != first.observables["hits"].floor


def test_the_result_is_json_that_can_be_read_back(perfect, degenerate):
    for result in (perfect.evaluation, degenerate):
        text = result.model_dump_json(by_alias=True)
        assert Evaluation.model_validate_json(text) == result
        content = json.loads(text)
        assert "inFloors" in content["observables"]["hits"] and "NaN" not in text
    assert len(perfect.evaluation.model_dump_json(by_alias=True)) < 200_000


def test_numbers_for_other_pages(perfect, degenerate):
    metrics = perfect.evaluation.metrics()
    assert metrics["hitsSeparation"] == perfect.evaluation.observables["hits"].separation
    assert metrics["released"] == 1.0 and all(np.isfinite(v) for v in metrics.values())
    assert "classifierAuc" not in degenerate.metrics()
    false_positives, true_positives, thresholds = perfect.evaluation.roc_curve()
    assert len(false_positives) == len(true_positives) == len(thresholds) > 10
    assert degenerate.roc_curve() is None
