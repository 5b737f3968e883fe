import numpy as np
import pytest

from caloscale.physics.resampling import Sample, draw_resampling, excess_uncertainty, separate, sigmas, summarise


def uniform(count: int, seed: int, shift: float = 0.0) -> np.ndarray:
    """Showers with one number each, in ten bins: (N, 1, 10)."""
    values = np.random.default_rng(seed).uniform(0, 1, count) * (1 - shift) + shift
    return (np.floor(values * 10)[:, None] == np.arange(10)).astype(float)[:, None, :]


def draw(reference: int, generated: int, bootstraps: int, seed: int):
    """Weights of samples with primaries of their own, from random numbers that the samples were not made of."""
    random = np.random.default_rng([seed, 99])
    seed += 1_000_000
    primaries = {name: random.uniform(size=(n, 2)) for name, n in (("reference", reference), ("generated", generated))}
    return draw_resampling(primaries, bootstraps, seed)


def separated(reference, generated, bootstraps, seed, baseline=None):
    weights, halves = draw(len(reference), len(generated), bootstraps, seed)
    samples = {"generated": generated} | ({} if baseline is None else {"baseline": baseline})
    others = {name: Sample(sample, weights["generated"]) for name, sample in samples.items()}
    return separate(Sample(reference, weights["reference"]), halves, others)[0]


def test_draws_are_those_of_a_bootstrap():
    weights, halves = draw(101, 50, 20, seed=3)
    reference = weights["reference"]
    assert reference.shape == (21, 101) and weights["generated"].shape == (21, 50)
    assert (reference[0] == 1).all() and (reference[1:].sum(axis=1) == 101).all()
    assert (halves.sum(axis=1) == 51).all()
    assert (draw(101, 50, 20, seed=3)[0]["generated"] == weights["generated"]).all()
    assert (draw(101, 50, 20, seed=4)[0]["generated"] != weights["generated"]).any()


def test_showers_of_one_primary_are_drawn_together():
    primaries = np.random.default_rng(1).uniform(size=(30, 2))
    drawn, _ = draw_resampling({"reference": primaries, "generated": np.repeat(primaries, 5, axis=0)}, 50, seed=1)
    np.testing.assert_array_equal(drawn["generated"], np.repeat(drawn["reference"], 5, axis=1))
    alone, _ = draw_resampling({"reference": primaries, "generated": np.repeat(primaries + 1, 5, axis=0)}, 50, seed=1)
    assert (alone["generated"] != np.repeat(alone["reference"], 5, axis=1)).any()
    np.testing.assert_array_equal(alone["generated"][:, ::5], alone["generated"][:, 4::5])


def test_showers_of_a_beam_of_few_energies_are_drawn_one_by_one():
    """Equal primaries of Monte Carlo showers are no pairs: drawn together, a mean at one energy would not fluctuate."""
    beam = np.repeat([[10.0, 1.5], [20.0, 1.5]], 50, axis=0)
    drawn, _ = draw_resampling({"reference": beam, "generated": beam[:60]}, 200, seed=1)
    values = np.random.default_rng(2).normal(size=100)
    means = drawn["reference"] @ values / 100
    assert means[1:].std() == pytest.approx(values.std() / 10, rel=0.15)
    assert abs(np.corrcoef(drawn["reference"][1:, 0], drawn["generated"][1:, 0])[0, 1]) < 0.2


@pytest.mark.parametrize("paired", [True, False])
def test_the_uncertainty_of_a_difference_is_its_scatter_with_and_without_common_primaries(paired):
    """Responses that follow the primary: the difference of the means has the variance sum of the noises only (in units
    of 1/n) where primaries are shared, and those of the primaries on top where they are not."""
    count, noise = 200, 0.5

    def experiment(seed):
        random = np.random.default_rng(seed)
        energies = random.normal(size=count)
        others = energies if paired else random.normal(size=count)
        real, fake = energies + noise * random.normal(size=count), others + noise * random.normal(size=count)
        primaries = {"reference": energies[:, None], "generated": others[:, None]}
        weights, _ = draw_resampling(primaries, 100, seed)
        means = [(weights[n] @ v) / weights[n].sum(axis=1) for n, v in zip(primaries, (real, fake))]
        return summarise(means[1] - means[0])

    found = np.array([experiment(seed) for seed in range(60)])
    expected = np.sqrt(2 * (noise**2 + (0 if paired else 1)) / count)
    assert found[:, 1].mean() == pytest.approx(expected, rel=0.05)
    assert found[:, 0].std() == pytest.approx(expected, rel=0.3)


def test_expected_null_is_what_monte_carlo_has_at_the_same_sizes():
    """Against an experiment: many pairs of samples of 100 and 900 of one distribution."""
    found, expected = [], []
    for seed in range(30):
        result = separated(uniform(100, seed), uniform(900, 1000 + seed), 10, seed)
        found.append(result.separation)
        expected.append(result.expected_null)
        assert result.self_separation > result.expected_null
    assert np.mean(found) == pytest.approx(np.mean(expected), rel=0.25)
    assert np.mean(found) == pytest.approx(9 / 4 * (1 / 100 + 1 / 900), rel=0.2)


@pytest.mark.parametrize(("shift", "expected"), [(0.0, 0.0), (0.5, 1 / 3)])
def test_excess_does_not_depend_on_the_number_of_showers(shift, expected):
    """Ten equal bins against five of them with twice the share: S = 1/2 (5 x .1 + 5 x .01 / .3) = 1/3."""
    for count in (60, 480):
        results = [separated(uniform(count, seed), uniform(count, 500 + seed, shift), 100, seed) for seed in range(40)]
        excess = np.array([r.excess for r in results])
        claimed = np.sqrt(np.mean([r.excess_uncertainty**2 for r in results]))
        assert abs(excess.mean() - expected) < 4 * excess.std() / np.sqrt(40), count
        assert claimed == pytest.approx(excess.std(), rel=0.35), count


@pytest.mark.parametrize("sizes", [(100, 900), (300, 300), (900, 100)])
@pytest.mark.parametrize(
    ("first", "second", "null_is_too_large"),
    [
        (np.arange(1, 11), np.arange(10, 0, -1), True),
        (np.ones(10), np.repeat([1, 0], 5), True),
        (np.repeat([1, 0], 5), np.ones(10), False),
        (np.ones(10), np.ones(10), False),
    ],
)
def test_fluctuations_of_different_distributions_do_not_move_the_excess(sizes, first, second, null_is_too_large):
    """Showers of known densities: their separation, less the terms that are linear in the fluctuations, whose mean is
    zero and whose scatter would hide the second order."""
    a, b = first / first.sum(), second / second.sum()
    true = ((a - b) ** 2 / (a + b)).sum() / 2
    slopes = [(1 - 4 * other**2 / (a + b) ** 2) / 2 for other in (b, a)]
    excess, over_null = [], []
    for seed in range(80):
        rng = np.random.default_rng(seed)
        samples = [np.eye(10)[rng.choice(10, n, p=p)][:, None] for n, p in zip(sizes, (a, b))]
        result = separated(*samples, 10, seed)
        linear = sum(float(slope @ (one.mean(axis=(0, 1)) - p)) for slope, one, p in zip(slopes, samples, (a, b)))
        excess.append(result.excess - linear - true)
        over_null.append(result.separation - result.expected_null - linear - true)
    error = np.std(excess) / np.sqrt(80)
    assert abs(np.mean(excess)) < 3.5 * error
    if null_is_too_large:
        assert np.mean(over_null) < -3.5 * error


def test_a_bootstrap_counts_the_null_three_times():
    assert excess_uncertainty(np.sqrt(3) * 0.1, 0.1) == pytest.approx(0.1)
    assert excess_uncertainty(np.sqrt(9 + 3) * 0.1, 0.1) == pytest.approx(np.sqrt(9 + 1) * 0.1)
    assert excess_uncertainty(0.05, 0.1) == pytest.approx(0.1)


def test_the_baseline_is_compared_in_standard_deviations():
    reference, good, bad = uniform(400, 1), uniform(400, 2), uniform(400, 3, shift=0.3)
    better, worse = (separated(reference, *pair[:1], 100, 1, pair[1]) for pair in ((good, bad), (bad, good)))
    assert better.improvement_sigmas > 3
    assert worse.improvement_sigmas == pytest.approx(-better.improvement_sigmas)
    assert better.baseline == worse.separation


def test_what_cannot_be_said_has_a_reason():
    few, enough = (separated(uniform(count, 1), uniform(count, 2), 10, 1) for count in (7, 8))
    assert few.separation is None and "needs 8 showers of each kind, there are 7" in few.reason
    assert enough.separation > 0 and enough.reason is None
    same, nothing = np.ones((20, 1, 1)), np.zeros((20, 1, 10))
    flat = separated(same, same, 10, 1)
    assert flat.separation == 0 and flat.excess_sigmas is None and "no expected null" in flat.reason
    null = separated(nothing, uniform(20, 1), 10, 1)
    assert null.separation == 1 and null.expected_null is None and null.null_uncertainty is None
    assert "no expected null" in null.reason
    empty = separated(uniform(20, 1), nothing, 10, 1)
    assert empty.separation == 1 and empty.uncertainty == 0


def test_bins_of_few_showers_are_taken_as_equal_and_evidence_is_against_equal_distributions():
    for repeated, few in ((1, True), (10, False)):  # 2 showers in each bin against 3 and 1
        first, second = (np.repeat(np.eye(10), np.tile(one, 5) * repeated, 0)[:, None] for one in ([2, 2], [3, 1]))
        found = separated(first, second, 10, 1)
        over_null = found.separation - found.expected_null
        assert (found.excess == pytest.approx(over_null, rel=1e-3)) == few
        assert found.excess_sigmas == pytest.approx(over_null / found.null_uncertainty, rel=1e-2)


def test_the_untrained_network_has_a_separation_of_its_own():
    drawn, halves = draw(400, 400, 50, 1)
    reference, generated, untrained = (
        Sample(showers, weights)
        for showers, weights in zip(
            (uniform(400, 1), uniform(400, 2), uniform(400, 3, shift=0.3)), (*drawn.values(),) * 2
        )
    )
    result, values = separate(reference, halves, {"generated": generated, "untrained": untrained})
    alone, _ = separate(reference, halves, {"generated": untrained})
    assert result.untrained == alone.separation
    assert result.untrained > 3 * result.separation and set(values) == {"generated", "untrained"}
    few = Sample(untrained.histograms[:7], untrained.weights[:, :7])
    assert separate(reference, halves, {"generated": generated, "untrained": few})[0].untrained is None


def test_numbers_of_bootstraps():
    values = np.array([2.0, 1.0, 3.0, np.nan])
    assert summarise(values) == pytest.approx((2.0, np.sqrt(2)))
    assert sigmas(values) == pytest.approx(2 / np.sqrt(2), rel=1e-4)
    assert sigmas(np.zeros(5)) is None and sigmas(None) is None
