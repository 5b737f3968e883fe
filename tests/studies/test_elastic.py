"""A training that loses a worker: real processes, a real SIGKILL; its result is that of an undisturbed one."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

from caloscale.errors import ConfigurationError
from caloscale.studies.digits import train_digits
from caloscale.studies.elastic import train_elastic

SMALL = {"hidden": 16, "epochs": 4, "batch": 60, "learningRate": 0.2, "momentum": 0.5, "workers": 2, "saveEvery": 20}
ALONE = {"hidden": 16, "epochs": 4, "batch": 60, "learningRate": 0.2, "momentum": 0.5}


@pytest.mark.parametrize(
    ("inputs", "repeated", "workers"),
    [
        ({"returnsAt": None}, 0, 1),
        pytest.param({"lostAt": None, "returnsAt": None}, 0, 2, marks=pytest.mark.integration),
        # 88 steps: lost in step 29, saved before step 20
        pytest.param({"recovery": "restart", "returnsAt": None}, 9, 1, marks=pytest.mark.integration),
        pytest.param({"recovery": "restart"}, 9, 2, marks=pytest.mark.integration),
    ],
)
def test_a_lost_worker_changes_the_speed_and_not_the_training(inputs, repeated, workers):
    found, alone = train_elastic({**SMALL, **inputs}), train_digits(ALONE)
    assert found["steps"] == 88 and found["repeatedSteps"] == repeated and found["workers"] == workers
    assert found["lostAtStep"] == (None if inputs.get("lostAt", 1) is None else 29)
    assert found["joinedAtStep"] == (59 if inputs == {"recovery": "restart"} else None)
    assert found["loss"] == pytest.approx(alone["loss"], rel=1e-9) and found["accuracy"] == alone["accuracy"]
    assert (found["imagesPerSecond"]["fewer"] is None) == (found["lostAtStep"] is None)
    assert not [one for one in psutil.Process().children() if "elastic_worker" in " ".join(one.cmdline())]


@pytest.mark.integration
def test_a_worker_that_comes_later_is_admitted_while_the_others_go_on():
    found = train_elastic({**SMALL, "hidden": 32, "epochs": 800, "returnsAt": 0.34})
    assert found["repeatedSteps"] == 0 and found["workers"] == 2
    assert found["lostAtStep"] < round(0.34 * found["steps"]) < found["joinedAtStep"] < found["steps"]
    assert np.isfinite(list(found["imagesPerSecond"].values())).all()


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"workers": 1}, "workers"),
        ({"workers": 4, "batch": 3}, "less than an image"),
        ({"lostAt": None}, "returnsAt"),
        ({"lostAt": 0.5, "returnsAt": 0.4}, "returnsAt"),
        ({"recovery": "hope"}, "recovery"),
    ],
)
def test_inputs_that_cannot_be(inputs, says):
    with pytest.raises(ConfigurationError, match=says) as error:
        train_elastic(inputs)
    assert error.value.exit_code == 2
