import math

import pytest

from caloscale.models.optimizers import Schedule
from caloscale.training.schedule import Calendar


@pytest.mark.parametrize(
    ("warm_up", "decay", "step", "over", "expected"),
    [
        *((4, "constant", step, 0.0, factor) for step, factor in enumerate((0.25, 0.5, 0.75, 1, 1, 1))),
        *((0, "constant", step, over, 1) for step, over in ((0, 0.0), (9, 0.5), (99, 1.0))),
        *((0, "cosine", 7, o, 0.01 + 0.99 * (1 + math.cos(math.pi * o)) / 2) for o in (0.0, 0.25, 0.5, 0.8, 1.0)),
        (0, "cosine", 7, 1.7, 0.01),
        (10, "cosine", 4, 0.5, 0.5 * 0.505),
    ],
)
def test_warm_up_is_linear_and_cosine_falls_to_a_hundredth(warm_up, decay, step, over, expected):
    assert float(Schedule(warm_up, decay).factor(step, over)) == pytest.approx(expected, rel=1e-6)


def test_progress_is_of_steps_or_of_minutes_whichever_is_further():
    calendar = Calendar(epochs=12, steps_per_epoch=10)
    minutes = ((6.0, None), (6.0, 1.0), (45.0, 1.0), (61.0, 1.0))
    assert [calendar.progress(30, seconds, most) for seconds, most in minutes] == [0.25, 0.25, 0.75, 1.0]
