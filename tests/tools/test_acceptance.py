"""How often a gate accepts: one draw of toy showers."""

import pytest

from caloscale.spec import load_run
from tests.physics.conftest import DATA, make_showers
from tools.acceptance import ALL, CHANGED_BY_REPETITION, Kind, count, measured


@pytest.mark.parametrize("kind", ["differences", "equal"])
def test_each_gate_that_showers_drawn_twice_do_not_change_is_judged(kind: Kind) -> None:
    run = load_run(preset="compact").model_copy(update={"data": DATA})
    pool = measured(make_showers(400, 1), run)
    accepted = count(kind, pool, run, 200, 1)
    expected = {gate.quantity for gate in run.validation.judging} - {*CHANGED_BY_REPETITION} | {ALL}
    if kind == "differences":
        expected = {name for name in expected if not name.endswith("Separation")} - {ALL}
    assert {name for name, _ in accepted} == expected and {size for _, size in accepted} == {200}
