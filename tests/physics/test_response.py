import numpy as np
import pytest
from scipy.optimize import curve_fit

from caloscale.physics.response import (
    bin_of_energy,
    binned_moments,
    fit_line,
    fit_resolution,
    gamma_maximum,
    range_edges,
    relative_widths,
    widths,
)

EDGES = np.linspace(5, 40, 7)


def test_every_energy_is_in_one_range():
    energy = np.array([4.99999, 5.0, 10.9, 39.9, 40.0, 40.00001])
    member = bin_of_energy(energy, EDGES)
    assert (member.sum(axis=1) == 1).all()
    assert member.argmax(axis=1).tolist() == [0, 0, 1, 5, 5, 5]
    assert range_edges((5, 35), 3).tolist() == [5, 15, 25, 35]
    assert bin_of_energy(np.array([20.0]), range_edges((20, 20), 3)).tolist() == [[1.0]]


def test_moments_are_those_of_the_drawn_showers():
    rng = np.random.default_rng(0)
    values, energy = rng.normal(26, 2, 300), rng.uniform(5, 40, 300)
    bins = bin_of_energy(energy, EDGES)
    draws = rng.integers(0, 300, 300)
    weights = np.stack([np.ones(300), np.bincount(draws, minlength=300)])
    found = binned_moments(weights, values, bins)
    for row, chosen in enumerate((np.arange(300), draws)):
        for k in range(6):
            inside = values[chosen][bins[chosen, k] > 0]
            assert found.mean[row, k] == pytest.approx(inside.mean())
            assert found.sigma[row, k] == pytest.approx(inside.std(ddof=1))


def test_widths_are_mean_absolute_deviations():
    """Against plain numpy, of drawn showers too, whose weights are counts."""
    rng = np.random.default_rng(3)
    values, energy = rng.normal(26, 2, 3000), rng.uniform(5, 40, 3000)
    bins = bin_of_energy(energy, EDGES)
    draws = rng.integers(0, 3000, 3000)
    weights = np.stack([np.ones(3000), np.bincount(draws, minlength=3000)])
    found = widths(weights, values, bins)
    for row, chosen in enumerate((np.arange(3000), draws)):
        for k in range(6):
            inside = values[chosen][bins[chosen, k] > 0]
            deviation = np.abs(inside - inside.mean()).mean() * np.sqrt(len(inside) / (len(inside) - 1))
            assert found[row, k] == pytest.approx(np.sqrt(np.pi / 2) * deviation)
    assert widths(np.ones((1, 3000)), values, np.ones((3000, 1))) == pytest.approx(2, rel=0.05)
    mean = values[bins[:, 2] > 0].mean()
    assert relative_widths(weights, values, bins)[0, 2] == pytest.approx(found[0, 2] / mean)


def test_a_bin_of_few_showers_has_no_width_and_no_mean():
    values = np.r_[np.linspace(-1, 1, 100), 1e6]
    few = np.zeros((101, 2))
    few[:7, 0], few[7:15, 1] = 1, 1
    weights = np.stack([np.ones(101), np.zeros(101)])
    for found in (widths(weights, values, few), binned_moments(weights, values, few).mean):
        assert np.isnan(found[:, 0]).all() and np.isfinite(found[0, 1]) and np.isnan(found[1, 1])


def test_the_line_is_that_of_polyfit_with_the_same_weights():
    rng = np.random.default_rng(1)
    energy = rng.uniform(5, 40, 500)
    sums = 3 + 26 * energy + rng.normal(0, np.sqrt(energy))
    offset, slope, _ = fit_line(np.ones((1, 500)), energy, sums, bin_of_energy(energy, EDGES))
    assert (slope[0], offset[0]) == pytest.approx(np.polyfit(energy, sums, 1, w=1 / np.sqrt(energy)))


def test_linearity_finds_the_bin_that_is_off():
    energy = np.repeat((EDGES[1:] + EDGES[:-1]) / 2, 50)
    bins = bin_of_energy(energy, EDGES)
    *_, straight = fit_line(np.ones((1, 300)), energy, 2 + 26 * energy, bins)
    assert straight[0] == pytest.approx(0, abs=1e-9)
    *_, bent = fit_line(np.ones((1, 300)), energy, 26 * energy * (1 + 0.05 * bins[:, 3]), bins)
    assert 0.03 < bent[0] < 0.05


def test_no_line_through_one_energy():
    energy = np.full(50, 20.0)
    *_, deviation = fit_line(np.ones((1, 50)), energy, energy, bin_of_energy(energy, EDGES))
    assert np.isnan(deviation[0])


@pytest.mark.parametrize(("a", "c"), [(0.17, 0.02), (0.17, 0.0), (0.0, 0.03)])
def test_resolution_fit_recovers_its_terms(a, c):
    inverse = 1 / np.array([8.0, 14.0, 20.0, 26.0, 32.0, 38.0])
    relative = np.sqrt(a**2 * inverse + c**2)[None]
    found = fit_resolution(relative, inverse, np.full(6, 50.0))
    assert (found[0][0], found[1][0]) == pytest.approx((a, c), abs=1e-6)


def test_resolution_fit_keeps_terms_real():
    inverse = 1 / np.array([8.0, 20.0, 38.0])
    falling_faster = np.sqrt(0.2 * inverse**2)[None]
    a, c = fit_resolution(falling_faster, inverse, np.full(3, 50.0))
    assert c[0] == 0 and a[0] > 0
    rising = np.array([[0.02, 0.03, 0.04]])
    a, c = fit_resolution(rising, inverse, np.full(3, 50.0))
    assert a[0] == 0 and c[0] > 0


DEPTH = np.linspace(0.7, 24, 25)


def gamma(t, scale, a, b):
    return scale * t ** (a - 1) * np.exp(-b * t)


def test_maximum_of_an_exact_gamma_profile():
    profiles = np.stack([gamma(DEPTH, 2.0, 4.2, 0.5), gamma(DEPTH, 7.0, 3.0, 0.6)])
    assert gamma_maximum(profiles, DEPTH) == pytest.approx([3.2 / 0.5, 2.0 / 0.6])


def test_the_maximum_has_no_unit():
    """Beside a profile of GeV there is one of so little energy that its square is none."""
    profile = gamma(DEPTH, 2.0, 4.2, 0.5)
    assert gamma_maximum(np.stack([profile, 1e-170 * profile]), DEPTH) == pytest.approx([3.2 / 0.5] * 2)


def test_maximum_agrees_with_least_squares_of_scipy():
    rng = np.random.default_rng(2)
    profile = gamma(DEPTH, 2.0, 4.2, 0.5) * rng.normal(1, 0.03, 25)
    (_, a, b), _ = curve_fit(gamma, DEPTH, profile, p0=(1.0, 4.0, 0.5))
    assert gamma_maximum(profile, DEPTH) == pytest.approx((a - 1) / b, abs=0.05)


def test_no_maximum_without_a_shower():
    single = np.zeros(25)
    single[3] = 1.0
    assert np.isnan(gamma_maximum(np.stack([np.zeros(25), single, np.exp(DEPTH)]), DEPTH)).all()
