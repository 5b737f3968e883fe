"""What measures bring one after the other: medians of repetitions by hand."""

import pytest

from caloscale.studies.conclusions import SWEEP, waterfall_statements
from caloscale.studies.points import Point


def test_each_measure_is_compared_with_the_one_before_and_with_the_first():
    rates = {"none": [9, 10, 50], "one": [20, 20, 20], "two": [29, 30, 31]}
    points = [Point({"label": k}, {"showersPerSecond": v[i]}, i) for i in range(3) for k, v in rates.items()]
    first, second = waterfall_statements({SWEEP: points})
    assert first.claim == "one after none" and first.figures == {"step": 2.0, "together": 2.0}
    assert second.figures == pytest.approx({"step": 1.5, "together": 3.0})
    assert "3.00 times as many as none" in second.finding
    with pytest.raises(KeyError):
        waterfall_statements({"other": points})
