import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from sklearn.metrics.pairwise import polynomial_kernel

from caloscale.physics.distances import fpd, frechet, kpd, mmd2, separation

HISTOGRAM = arrays(np.float64, 7, elements=st.floats(0, 1e3))


@pytest.mark.parametrize("shift", [0, 1, 4, 10])
def test_separation_of_shifted_uniform_is_the_part_that_does_not_overlap(shift):
    first, second = np.zeros(20), np.zeros(20)
    first[:10], second[shift : shift + 10] = 3.0, 5.0
    assert separation(first, second) == pytest.approx(shift / 10)


@given(HISTOGRAM, HISTOGRAM, st.floats(1e-3, 1e3))
def test_separation_is_symmetric_bounded_and_free_of_scale(first, second, scale):
    value = separation(first, second)
    if first.sum() <= 0 and second.sum() <= 0:
        assert np.isnan(value)
        return
    assert separation(first, np.zeros(7)) == 1 or first.sum() <= 0
    assert 0 <= value <= 1 + 1e-12
    assert separation(second, first) == pytest.approx(value)
    if first.sum() > 0 and second.sum() > 0:
        assert separation(scale * first, second) == pytest.approx(value, abs=1e-9)


def test_separation_of_one_distribution_has_the_mean_of_its_docstring():
    rng = np.random.default_rng(0)
    bins, n, m = 20, 400, 2000
    first, second = (rng.multinomial(k, np.full(bins, 1 / bins), size=500) for k in (n, m))
    expected = (bins - 1) / 4 * (1 / n + 1 / m)
    assert separation(first, second).mean() == pytest.approx(expected, rel=0.05)


def test_frechet_agrees_with_the_matrix_root_of_scipy():
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=(2, 5, 5))
    c1, c2 = a @ a.T, b @ b.T
    shift = np.arange(5.0)
    expected = shift @ shift + np.trace(c1 + c2 - 2 * scipy.linalg.sqrtm(c1 @ c2).real)
    assert frechet(np.zeros(5), c1, shift, c2) == pytest.approx(expected)
    flat = np.diag([1.0, 0.0])  # a singular covariance
    assert frechet(np.zeros(2), flat, np.zeros(2), flat) == pytest.approx(0, abs=1e-12)


def test_fpd_takes_no_more_showers_than_the_smaller_sample_has():
    """The bias of the distance in 1/N is taken off only if N is the number that was drawn."""
    rng = np.random.default_rng(5)
    few, many = rng.normal(5, 1, (1000, 12)), rng.normal(5, 1, (6000, 12))
    scale = np.abs(few).max(axis=0).mean()
    for pair in ((few, many), (many, few)):
        assert abs(fpd(*pair, seed=1).value) < 0.01 * 12 / scale**2


@pytest.mark.parametrize("distance", [fpd, kpd])
def test_fpd_and_kpd_refuse_too_few(distance):
    with pytest.raises(ValueError, match="200 showers of each kind, there are 100"):
        distance(np.zeros((100, 2)), np.zeros((100, 2)), seed=1)


def published_fpd(real, fake, smallest, largest, seed):
    """The recipe of jetnet 0.2.5 (`jetnet.evaluation.fpd`) from its formulas: batches with repetition, the matrix root
    of scipy, a fit that is bounded at 0."""
    fake, real = fake / np.abs(real).max(axis=0), real / np.abs(real).max(axis=0)
    sizes = (1 / np.linspace(1 / smallest, 1 / largest, 10)).astype(int)
    rng = np.random.default_rng(seed)
    means = []
    for size in sizes:
        values = []
        for _ in range(20):
            x, y = (sample[rng.choice(len(sample), size=size)] for sample in (real, fake))
            c1, c2 = np.cov(x, rowvar=False), np.cov(y, rowvar=False)
            shift = x.mean(axis=0) - y.mean(axis=0)
            values.append(shift @ shift + np.trace(c1 + c2 - 2 * scipy.linalg.sqrtm(c1 @ c2).real))
        means.append(np.mean(values))
    fitted, _ = scipy.optimize.curve_fit(lambda x, a, b: a + b * x, 1 / sizes, means, bounds=([0, 0], [np.inf, np.inf]))
    return fitted[0]


def published_kpd(real, fake, seed):
    """The recipe of jetnet 0.2.5 (`jetnet.evaluation.kpd`): 10 batches with repetition, their median."""
    fake, real = fake / np.abs(real).max(axis=0), real / np.abs(real).max(axis=0)
    rng = np.random.default_rng(seed)
    options = {"degree": 4, "gamma": 1 / real.shape[1], "coef0": 1}
    values = []
    for _ in range(10):
        x, y = (sample[rng.choice(len(sample), size=1000)] for sample in (real, fake))
        k11, k22, k12 = (polynomial_kernel(*pair, **options) for pair in ((x, x), (y, y), (x, y)))
        within = [(k.sum() - np.trace(k)) / (1000 * 999) for k in (k11, k22)]
        values.append(sum(within) - 2 * k12.mean())
    return float(np.median(values))


@pytest.mark.parametrize("shift", [0.3, pytest.param(0.8, marks=pytest.mark.long)])
def test_fpd_and_kpd_are_those_of_the_published_recipes(shift):
    """On correlated features, within the scatter that batches with repetition add."""
    rng = np.random.default_rng(8)
    mixing = rng.normal(size=(4, 4))
    first, second = (rng.normal(size=(5000, 4)) @ mixing + 3 for _ in range(2))
    second = 1.1 * second + shift
    assert fpd(first, second, seed=1).value == pytest.approx(published_fpd(first, second, 2000, 5000, 1), rel=0.1)
    assert kpd(first, second, seed=1).value == pytest.approx(published_kpd(first, second, 1), rel=0.15)


def test_few_showers_give_a_distance_too():
    """Without its uncertainty for the kernel distance, which is one batch then."""
    rng = np.random.default_rng(9)
    first, second = rng.normal(3, 1, (400, 3)), rng.normal(3.5, 1, (5000, 3))
    many = rng.normal(3, 1, (6000, 3))
    scale = np.abs(first).max(axis=0)
    found = kpd(first, second, seed=1)
    assert found.uncertainty == 0 and found.value == pytest.approx(mmd2(first / scale, second / scale))
    assert fpd(first, second, seed=1).value * scale[0] ** 2 == pytest.approx(0.75, rel=0.35)
    assert fpd(many, second, seed=1).value * np.abs(many).max(axis=0)[0] ** 2 == pytest.approx(0.75, rel=0.15)


def test_mmd_agrees_with_the_kernel_of_scikit_learn_beyond_one_block():
    rng = np.random.default_rng(5)
    first, second = rng.normal(size=(1500, 4)), rng.normal(0.2, 1, size=(1200, 4))
    options = {"degree": 4, "gamma": 1 / 4, "coef0": 1}
    k11, k22 = polynomial_kernel(first, **options), polynomial_kernel(second, **options)
    k12 = polynomial_kernel(first, second, **options)
    within = [(k.sum() - np.trace(k)) / (len(k) * (len(k) - 1)) for k in (k11, k22)]
    assert mmd2(first, second) == pytest.approx(sum(within) - 2 * k12.mean())
