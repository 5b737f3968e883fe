"""The search for hyper-parameters: ranges, seeds, what is selected."""

from __future__ import annotations

import sys

import pytest

from caloscale.errors import ConfigurationError, TrainingError
from caloscale.installation import install_command
from caloscale.studies.search import search_digits

SMALL = {
    "trials": 4,
    "epochs": 2,
    "hidden": [8, 16],
    "batch": [16, 32],
    "learningRate": [0.05, 0.2],
    "momentum": [0, 0.9],
}


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_trials_are_within_the_ranges_and_follow_the_seed(sampler):
    found, again = search_digits({**SMALL, "sampler": sampler}), search_digits({**SMALL, "sampler": sampler})
    assert {**found, "seconds": 0} == {**again, "seconds": 0}
    assert 8 <= found["best"]["hidden"] <= 16 and 16 <= found["best"]["batch"] <= 32
    assert 0.05 <= found["best"]["learningRate"] <= 0.2 and 0 <= found["best"]["momentum"] <= 0.9
    assert 1 <= found["bestTrial"] <= 4 and found["failed"] == 0
    assert found["accuracySelected"] > 0.5 and found["accuracyAveraged"] > 0.5
    assert search_digits({**SMALL, "sampler": sampler, "seed": 2})["best"] != found["best"]


def test_more_trials_select_a_network_that_is_at_least_as_good():
    few, many = (search_digits({**SMALL, "trials": trials, "sampler": "random"}) for trials in (3, 6))
    assert many["validationLoss"] <= few["validationLoss"]


def test_trials_that_diverge_are_counted_and_all_of_them_are_an_error():
    with pytest.raises(TrainingError, match="diverged"):
        search_digits({**SMALL, "learningRate": [1e200, 1e250]})


@pytest.mark.parametrize("inputs", [{"trials": 2}, {"hidden": [16, 8]}, {"learningRate": [0, 1]}, {"sampler": "grid"}])
def test_inputs_of_a_search_that_cannot_be(inputs):
    with pytest.raises(ConfigurationError) as error:
        search_digits(inputs)
    assert error.value.exit_code == 2


def test_without_optuna_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(TrainingError) as error:
        search_digits(SMALL)
    assert error.value.remedy == install_command("studies")
