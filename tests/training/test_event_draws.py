import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from caloscale.models.layers.dropout import EventDropout, drawing_from
from caloscale.random import CHANCES, EventDraws

SHAPES = [(1,), (3,), (62,), (2, 5, 7)]


def draws(kind, first, count, shape, step=3, section=1, seed=5, before=0):
    random = EventDraws(seed, step, section, first, count)
    for _ in range(before):
        random.uniform((9,))
    return getattr(random, kind)(shape).numpy()


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("shape", SHAPES)
def test_numbers_belong_to_the_shower(kind, shape):
    """Those of some showers are the same whoever computes them, with or without the others."""
    whole = draws(kind, 0, 8, shape)
    assert whole.shape == (8, *shape)
    for first, last in ((0, 4), (4, 8), (3, 5), (7, 8)):
        np.testing.assert_array_equal(draws(kind, first, last - first, shape), whole[first:last])


@pytest.mark.parametrize("by_xla", [False, True])
def test_a_replica_may_not_know_its_place_before_the_step(by_xla):
    """Nor where XLA compiles it, as for a TPU: other numbers of the same bits, which belong to the shower, too."""

    def compiled(kind, first, count):
        draw = tf.function(lambda at: getattr(EventDraws(5, 3, 1, at, count), kind)((6,)), jit_compile=by_xla)
        return draw(tf.constant(first, tf.int64)).numpy()

    for kind in ("uniform", "normal"):
        whole = compiled(kind, 0, 8)
        assert by_xla != np.array_equal(whole, draws(kind, 0, 8, (6,)))
        np.testing.assert_array_equal(compiled(kind, 2, 4), whole[2:6])


def test_everything_else_gives_other_numbers():
    kept = draws("uniform", 0, 50, (4,))
    others = [
        draws("uniform", 0, 50, (4,), step=4),
        draws("uniform", 0, 50, (4,), section=2),
        draws("uniform", 0, 50, (4,), seed=6),
        draws("uniform", 0, 50, (4,), before=1),
        draws("uniform", 50, 50, (4,)),
    ]
    for one in others:
        assert not np.isin(one, kept).all()
        assert np.isin(one, kept).mean() < 0.01
        assert abs(np.corrcoef(one.ravel(), kept.ravel())[0, 1]) < 0.3


def test_their_distributions():
    assert stats.kstest(draws("uniform", 0, 4000, (5,)).ravel(), "uniform").pvalue > 0.001
    assert stats.kstest(draws("normal", 0, 4000, (5,)).ravel(), "norm").pvalue > 0.001


def test_choices_belong_to_the_shower_and_have_their_probability():
    def chosen(first, count, chances=CHANCES // 5, shape=(41, 25)):
        return EventDraws(5, 3, 1, first, count).chosen(chances, shape).numpy()

    whole = chosen(0, 60)
    assert whole.shape == (60, 41, 25) and whole.dtype == bool
    np.testing.assert_array_equal(np.concatenate([chosen(0, 7), chosen(7, 53)]), whole)
    assert stats.binomtest(int(whole.sum()), whole.size, 0.2).pvalue > 0.001
    neighbours = np.corrcoef(whole[:, :, 0:24:2].ravel(), whole[:, :, 1:24:2].ravel())  # halves of the same 32 bits
    assert abs(neighbours[0, 1]) < 0.03
    assert chosen(0, 60, 1).mean() < 1e-3 and chosen(0, 60, CHANCES - 1).mean() > 1 - 1e-3
    compiled = tf.function(lambda first: EventDraws(5, 3, 1, first, 4).chosen(9000, (7,)), jit_compile=True)
    np.testing.assert_array_equal(compiled(tf.constant(2, tf.int64)), chosen(2, 4, 9000, (7,)))


def test_too_many_draws_and_sections_are_refused():
    with pytest.raises(ValueError, match="section 256"):
        EventDraws(1, 0, 256, 0, 1)
    with pytest.raises(ValueError, match="more than 256 draws"):
        draws("uniform", 0, 1, (1,), before=257)


def test_dropout_masks_belong_to_the_shower():
    layer = EventDropout(0.25)
    values = tf.ones((8, 40, 5))

    def dropped(first, part):
        with drawing_from(EventDraws(5, 3, 1, first, len(part))):
            return layer(part, training=True).numpy()

    whole = dropped(0, values)
    np.testing.assert_array_equal(np.concatenate([dropped(0, values[:3]), dropped(3, values[3:])]), whole)
    assert set(np.unique(whole)) == {0, np.float32(1 / 0.75)}
    assert np.mean(whole == 0) == pytest.approx(0.25, abs=0.05)
    assert not np.array_equal(whole[0], whole[1])
    with drawing_from(EventDraws(5, 3, 1, 0, 8)):
        np.testing.assert_array_equal(layer(values, training=False), values)


def test_dropout_outside_of_a_step_is_keras_own():
    layer = EventDropout(0.25, seed=1)
    first, second = (layer(tf.ones((4, 500)), training=True).numpy() for _ in range(2))
    assert not np.array_equal(first, second)
    assert np.mean(first == 0) == pytest.approx(0.25, abs=0.06)
