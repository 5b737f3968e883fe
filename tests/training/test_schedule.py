import math

import pytest

from caloscale.models.optimizers import Schedule
from caloscale.training.schedule import progress


def factor(schedule, step, over=0.0):
    return float(schedule.factor(step, over))


def test_warm_up_is_linear_and_ends():
    schedule = Schedule(warmup_steps=4, decay="constant")
    assert [factor(schedule, step) for step in range(6)] == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


def test_without_warm_up_the_rate_is_constant():
    assert [factor(Schedule(0, "constant"), step, over) for step, over in ((0, 0.0), (9, 0.5), (99, 1.0))] == [1, 1, 1]


@pytest.mark.parametrize("over", [0.0, 0.25, 0.5, 0.8, 1.0])
def test_cosine_falls_to_a_hundredth(over):
    expected = 0.01 + 0.99 * (1 + math.cos(math.pi * over)) / 2
    assert factor(Schedule(0, "cosine"), 7, over) == pytest.approx(expected, rel=1e-6)


def test_cosine_ends_where_the_training_should_have():
    assert factor(Schedule(0, "cosine"), 7, 1.7) == pytest.approx(0.01)


def test_warm_up_and_decay_multiply():
    assert factor(Schedule(10, "cosine"), 4, 0.5) == pytest.approx(0.5 * 0.505)


def test_progress_is_of_steps_or_of_minutes_whichever_is_further():
    assert progress(30, 120, 6.0, None) == 0.25
    assert progress(30, 120, 6.0, 1.0) == 0.25
    assert progress(30, 120, 45.0, 1.0) == 0.75
