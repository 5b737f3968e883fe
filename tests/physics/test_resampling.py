from __future__ import annotations

import numpy as np
import pytest

from caloscale.physics.resampling import Sample, draw_resampling, over_halves, separate, sigmas, summarise


def uniform(count: int, seed: int, shift: float = 0.0) -> np.ndarray:
    """Showers with one number each, in ten bins: (N, 1, 10)."""
    values = np.random.default_rng(seed).uniform(0, 1, count) * (1 - shift) + shift
    return (np.floor(values * 10)[:, None] == np.arange(10)).astype(float)[:, None, :]


def test_draws_are_those_of_a_bootstrap():
    drawn = draw_resampling(101, 50, 0, 20, seed=3)
    assert drawn.reference.shape == (21, 101) and drawn.untrained.shape == (21, 0)
    assert (drawn.reference[0] == 1).all() and (drawn.reference[1:].sum(axis=1) == 101).all()
    assert (drawn.halves.sum(axis=1) == 51).all()
    assert (draw_resampling(101, 50, 0, 20, seed=3).generated == drawn.generated).all()
    assert (draw_resampling(101, 50, 0, 20, seed=4).generated != drawn.generated).any()


def test_perfect_is_what_monte_carlo_gives_at_the_same_sizes():
    """The scaled floor against an experiment: many pairs of samples of 100 and 900 of one distribution."""
    found, expected = [], []
    for seed in range(30):
        reference, generated = uniform(100, seed), uniform(900, 1000 + seed)
        drawn = draw_resampling(100, 900, 0, 10, seed)
        result = separate(
            Sample(reference, drawn.reference), drawn.halves, Sample(generated, drawn.generated), None, None
        )
        found.append(result.separation)
        expected.append(result.perfect)
        assert result.floor > result.perfect
    assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.25)
    assert np.mean(found) == pytest.approx(9 / 4 * (1 / 100 + 1 / 900), rel=0.2)


def test_uncertainty_is_the_scatter_of_repeated_experiments():
    def experiment(seed):
        drawn = draw_resampling(300, 300, 0, 100, seed)
        return separate(
            Sample(uniform(300, seed), drawn.reference),
            drawn.halves,
            Sample(uniform(300, 500 + seed, shift=0.5), drawn.generated),
            None,
            None,
        )

    results = [experiment(seed) for seed in range(30)]
    scatter = np.std([r.separation for r in results])
    assert np.mean([r.uncertainty for r in results]) == pytest.approx(scatter, rel=0.3)


def test_baseline_is_compared_in_standard_deviations():
    reference, good, bad = uniform(400, 1), uniform(400, 2), uniform(400, 3, shift=0.3)
    drawn = draw_resampling(400, 400, 0, 100, 1)

    def judge(generated, baseline):
        samples = (Sample(h, w) for h, w in ((reference, drawn.reference), (generated, drawn.generated)))
        return separate(next(samples), drawn.halves, next(samples), None, Sample(baseline, drawn.generated))

    better, worse = judge(good, bad), judge(bad, good)
    assert better.sigmas_better_than_baseline > 3
    assert worse.sigmas_better_than_baseline == pytest.approx(-better.sigmas_better_than_baseline)
    assert better.baseline == worse.separation


def test_what_cannot_be_said_has_a_reason():
    drawn = draw_resampling(7, 7, 0, 10, 1)
    few = separate(
        Sample(uniform(7, 1), drawn.reference), drawn.halves, Sample(uniform(7, 2), drawn.generated), None, None
    )
    assert few.separation is None and "needs 8 showers of each kind, there are 7" in few.reason
    drawn = draw_resampling(20, 20, 0, 10, 1)
    same = np.ones((20, 1, 1))
    flat = separate(Sample(same, drawn.reference), drawn.halves, Sample(same, drawn.generated), None, None)
    assert flat.separation == 0 and flat.in_floors is None and "floor is zero" in flat.reason


def test_a_sample_without_entries_is_as_far_as_can_be():
    drawn = draw_resampling(20, 20, 0, 10, 1)
    result = separate(
        Sample(uniform(20, 1), drawn.reference),
        drawn.halves,
        Sample(np.zeros((20, 1, 10)), drawn.generated),
        None,
        None,
    )
    assert result.separation == 1 and result.uncertainty == 0


def test_numbers_of_bootstraps():
    values = np.array([2.0, 1.0, 3.0, np.nan])
    assert summarise(values) == pytest.approx((2.0, np.sqrt(2)))
    assert sigmas(values) == pytest.approx(2 / np.sqrt(2), rel=1e-4)
    assert sigmas(np.zeros(5)) is None and sigmas(None) is None
    assert over_halves(np.eye(2), lambda one, other: (one - other)[:, 0]) == (0.0, 1.0)
