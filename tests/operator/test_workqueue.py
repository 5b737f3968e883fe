"""The work queue against its contract: what client-go's queue promises, with a clock that only the test moves."""

import itertools
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caloscale.operator.workqueue import RETRY_SECONDS, Turns, WorkQueue


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(clock)


def test_what_can_wait_comes_after_what_cannot_and_is_not_lost(queue: WorkQueue[str], clock: Clock) -> None:
    for key in ("listed", "both", "other"):
        queue.add(key, can_wait=True)
    queue.add("both", 1.0)
    queue.add("event", 1.0)
    queue.add("later", 9.0)
    queue.add("later", 1.0, can_wait=True)
    clock.now += 1.0
    assert [queue.get(0.0) for _ in range(6)] == ["both", "event", "listed", "other", "later", None]
    for key in ("both", "event", "listed", "other", "later"):
        queue.done(key)
    queue.add("event")
    assert queue.get(0.0) == "event"
    queue.add("event", can_wait=True)
    assert queue.get(0.0) is None
    queue.done("event")
    assert queue.get(0.0) == "event"
    queue.done("event")
    clock.now += 10.0
    assert queue.get(0.0) is None


def test_what_has_been_due_for_long_is_put_off_behind_what_came_since(queue: WorkQueue[str], clock: Clock) -> None:
    queue.add("long", 1.0)
    queue.add("both", 1.5)
    queue.add("both", can_wait=True)
    clock.now += 10.0
    queue.add("listed", can_wait=True)
    queue.add("new")
    queue.add("later", 5.0)
    queue.put_off(8.0)
    assert [queue.get(0.0) for _ in range(4)] == ["new", "both", "long", "listed"]
    queue.done("long")
    clock.now += 10.0
    assert [queue.get(0.0) for _ in range(2)] == ["later", None]
    queue.add("long")
    assert queue.get(0.0) == "long"


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.integers(0, 3)), max_size=60))
def test_keys_that_come_when_they_are_told_to_have_a_turn_each_interval(asked: list[tuple[str, int]]) -> None:
    """In the order in which they asked first; who asks before its turn has it all the same, and no other."""
    clock = Clock()
    turns: Turns[str] = Turns(0.5, clock)
    promised: dict[str, float] = {}
    taken: list[float] = []

    def ask(key: str) -> None:
        at = clock.now + turns.take(key)
        assert promised.setdefault(key, at) == at
        if at == clock.now:
            taken.append(promised.pop(key))

    for key, seconds in asked:
        end = clock.now + seconds
        while (due := min(promised.items(), key=lambda each: each[1], default=("", end + 1)))[1] <= end:
            clock.now = due[1]
            ask(due[0])
        clock.now = end
        ask(key)
    times = [*taken, *sorted(promised.values())]
    assert all(second - first >= 2.0 for first, second in itertools.pairwise(times))


def test_a_key_that_needs_no_turn_any_more_takes_none_from_others(clock: Clock) -> None:
    turns: Turns[str] = Turns(1.0, clock)
    assert [turns.take(key) for key in "abc"] == [0.0, 1.0, 2.0]
    turns.forget("b")
    turns.forget("never")
    assert turns.take("b") == 3.0 and turns.take("c") == 2.0
    clock.now += 100.0
    assert turns.take("c") == 0.0 and turns.take("d") == 0.0 and turns.take("e") == 1.0


def test_pauses_grow_with_failures_in_a_row(queue: WorkQueue[str]) -> None:
    assert [queue.retry("a") for _ in range(8)] == [*RETRY_SECONDS, RETRY_SECONDS[-1], RETRY_SECONDS[-1]]
    assert queue.retry("b") == RETRY_SECONDS[0]
    queue.forget("a")
    assert queue.retry("a") == RETRY_SECONDS[0]


def test_who_waits_is_woken_by_an_addition() -> None:
    queue: WorkQueue[str] = WorkQueue()
    got: list[str | None] = []
    thread = threading.Thread(target=lambda: got.append(queue.get(600.0)))
    thread.start()
    queue.add("late", 500.0)
    queue.add("a")
    thread.join(600.0)
    assert got == ["a"]


STEP = st.one_of(
    st.tuples(st.just("add"), st.sampled_from("abc"), st.integers(0, 4)),
    st.tuples(st.just("done"), st.sampled_from("abc"), st.just(0)),
    st.tuples(st.just("pass"), st.just(""), st.integers(0, 4)),
)


@given(st.lists(STEP, max_size=40))
def test_it_is_a_set_of_keys_with_their_earliest_times(steps: list[tuple[str, str, int]]) -> None:
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock)
    due: dict[str, float] = {}
    processed: set[str] = set()
    for step, key, seconds in steps:
        if step == "add":
            queue.add(key, seconds)
            due[key] = min(due.get(key, float("inf")), clock.now + seconds)
        elif step == "done":
            queue.done(key)
            processed.discard(key)
        else:
            clock.now += seconds
        ready = sorted((at, key) for key, at in due.items() if at <= clock.now and key not in processed)
        for _, expected in ready:
            assert queue.get(0.0) == expected
            del due[expected]
            processed.add(expected)
        assert queue.get(0.0) is None
