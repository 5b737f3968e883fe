"""The classifier of digits: its gradient, its exchanges with real processes, ensembles."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import check_grad

from caloscale.errors import ConfigurationError
from caloscale.studies.digits import DigitsInputs, Network, batches, shares_of, train_digits

SMALL = {"epochs": 2, "learningRate": 0.2, "hidden": 16}


def test_the_gradient_is_that_of_the_loss():
    rng = np.random.default_rng(3)
    network = Network(5, seed=2)
    images, labels = rng.random((7, 64)), rng.integers(0, 10, 7)

    def loss(weights):
        network.weights = weights
        return network.loss(images, labels)

    def gradient(weights):
        network.weights = weights
        return network.gradient(images, labels)

    assert check_grad(loss, gradient, network.weights.copy(), epsilon=1e-7) < 1e-5


def test_a_step_of_many_workers_has_the_images_of_one_with_the_whole_batch():
    many, one = DigitsInputs(workers=4, batch=4, epochs=2), DigitsInputs(workers=1, batch=16, epochs=2)
    images = one.train_images
    for of_many, of_one in zip(batches(many, images), batches(one, images), strict=True):
        assert of_many.tolist() == of_one.tolist() and len(set(of_one.tolist())) == 16


@pytest.mark.parametrize(
    ("speeds", "total", "shares"),
    [([1, 1, 1, 1], 16, [4, 4, 4, 4]), ([3, 1], 10, [7, 3]), ([1, 1, 1], 10, [4, 3, 3]), ([1e6, 1, 1], 6, [4, 1, 1])],
)
def test_shares_follow_the_speeds(speeds, total, shares):
    assert shares_of(speeds, total) == shares and sum(shares) == total


@pytest.mark.integration
def test_workers_with_other_shares_make_the_same_training():
    """The slow worker gets fewer images; the weights are those of one worker with the whole batch but for rounding."""
    alone = train_digits({**SMALL, "batch": 24, "momentum": 0.5})
    slow = {"workers": 2, "batch": 12, "slowImageMilliseconds": 0.5, "rebalanceEvery": 5}
    together = train_digits({**SMALL, **slow, "momentum": 0.5})
    assert sum(together["shares"]) == 24 and together["shares"][1] < 8
    assert together["agree"] and together["loss"] == pytest.approx(alone["loss"], rel=1e-9)


@pytest.mark.integration
@pytest.mark.parametrize(("method", "workers"), [("ring", 3), ("hierarchical", 3), ("synchronous", 2)])
def test_synchronous_workers_compute_what_one_with_the_whole_batch_does(method, workers):
    alone = train_digits({**SMALL, "batch": 24, "momentum": 0.5})
    together = train_digits({**SMALL, "batch": 24 // workers, "momentum": 0.5, "workers": workers, "method": method})
    assert together["agree"] and together["globalBatch"] == 24
    assert together["loss"] == pytest.approx(alone["loss"], rel=1e-9)
    assert together["accuracy"] == alone["accuracy"] > 0.6
    assert together["staleness"]["max"] == 0


@pytest.mark.integration
@pytest.mark.parametrize(("method", "bound"), [("bounded", 0), ("lazy", 2)])
def test_asynchronous_workers_learn_and_a_bound_is_kept(method, bound):
    found = train_digits(
        {**SMALL, "batch": 8, "workers": 2, "method": method, "bound": bound, "pushEvery": 3, "slowMilliseconds": 0.5}
    )
    assert found["accuracy"] > 0.6 and found["loss"] < 1.2
    if method == "bounded":
        assert found["lead"] <= bound
    if bound == 0:
        assert found["staleness"]["max"] <= 1  # of two workers one at most is between pull and push


def test_an_ensemble_is_the_mean_of_the_probabilities_of_its_members():
    members = [train_digits({**SMALL, "seed": seed}) for seed in (1, 2, 3)]
    together = train_digits({**SMALL, "members": 3})
    accuracies = [member["accuracy"] for member in members]
    assert together["accuracyOfMembers"] == pytest.approx(np.mean(accuracies))
    assert together["accuracySelected"] == min(members, key=lambda member: member["loss"])["accuracy"]
    assert together["accuracyAveraged"] >= min(accuracies)


def test_the_linear_rule_and_the_warm_up():
    asked = DigitsInputs(workers=4, batch=16, scaling="linear", warmup_epochs=2, learning_rate=0.1)
    warm = 2 * asked.steps_per_epoch
    assert asked.rate(0) == pytest.approx(0.4 / warm) and asked.rate(warm - 1) == pytest.approx(0.4)
    assert asked.rate(10**6) == pytest.approx(0.4)
    assert DigitsInputs(workers=4, batch=16, learning_rate=0.1).rate(0) == 0.1


@pytest.mark.parametrize(
    ("inputs", "says"),
    [({"method": "star"}, "method"), ({"workers": 2, "members": 3}, "members"), ({"batch": 2000}, "2000 images")],
)
def test_inputs_of_the_classifier_that_cannot_be(inputs, says):
    with pytest.raises(ConfigurationError, match=says) as error:
        train_digits(inputs)
    assert error.value.exit_code == 2
