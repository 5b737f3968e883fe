import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from caloscale.planning.search.candidates import choose, pareto_front

amount = st.floats(0.01, 1e6)
candidates = st.lists(st.tuples(amount, amount, st.booleans()), min_size=1, max_size=40)


def columns(rows):
    usd, seconds, eligible = zip(*rows)
    return np.array(usd), np.array(seconds), np.array(eligible)


@given(candidates)
def test_front_is_what_comparing_all_pairs_gives(rows):
    usd, seconds, eligible = columns(rows)
    undominated = {
        (u, s)
        for u, s, may in rows
        if may and not any(other and v <= u and t <= s and (v, t) != (u, s) for v, t, other in rows)
    }
    front = pareto_front(usd, seconds, eligible)
    assert {(usd[i], seconds[i]) for i in front} == undominated
    assert len(front) == len(undominated)
    assert eligible[front].all()


@given(candidates, amount, amount)
def test_the_choice_meets_its_limits_and_nothing_allowed_is_better(rows, max_usd, deadline):
    usd, seconds, eligible = columns(rows)
    for budget, limit in ((max_usd, None), (None, deadline), (max_usd, deadline)):
        best, binding = choose(usd, seconds, eligible, max_usd=budget, deadline_seconds=limit)
        allowed = eligible & (usd <= (budget or np.inf)) & (seconds <= (limit or np.inf))
        assert (best is not None and binding is None) == allowed.any()
        if allowed.any():
            value = seconds if limit is None else usd
            assert value[best] == value[allowed].min()
        elif eligible.any():
            excess = np.maximum(usd / (budget or np.inf), seconds / (limit or np.inf))
            assert eligible[best] and excess[best] == excess[eligible].min()


@given(candidates, amount, amount, amount)
def test_more_budget_is_never_slower_and_a_later_deadline_never_more_expensive(rows, low, more, deadline):
    usd, seconds, eligible = columns(rows)
    for limit in (None, deadline):
        poor, missed = choose(usd, seconds, eligible, max_usd=low, deadline_seconds=limit)
        rich, _ = choose(usd, seconds, eligible, max_usd=low + more, deadline_seconds=limit)
        if poor is not None and missed is None:
            assert seconds[rich] <= seconds[poor]
    for budget in (None, deadline):
        early, missed = choose(usd, seconds, eligible, max_usd=budget, deadline_seconds=low)
        late, _ = choose(usd, seconds, eligible, max_usd=budget, deadline_seconds=low + more)
        if early is not None and missed is None:
            assert usd[late] <= usd[early]


def test_which_limit_binds():
    usd, seconds = np.array([10.0, 20.0]), np.array([200.0, 100.0])
    every = np.array([True, True])
    assert choose(usd, seconds, every, max_usd=5) == (0, "maxUsd")
    assert choose(usd, seconds, every, deadline_seconds=50) == (1, "deadline")
    assert choose(usd, seconds, every, max_usd=15, deadline_seconds=150)[1] == "both"
    assert choose(usd, seconds, every, max_usd=5, deadline_seconds=150) == (0, "maxUsd")
    assert choose(usd, seconds, ~every) == (None, None)


def test_endless_candidates_are_never_chosen():
    front = pareto_front(np.array([np.inf, 3.0]), np.array([np.inf, 4.0]), np.array([True, True]))
    assert list(front) == [1]
