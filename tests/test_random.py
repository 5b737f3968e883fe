"""Numbers that belong to a shower: numpy's Philox, addressed by hand, is the reference."""

import numpy as np
import pytest
from scipy import stats

from caloscale.errors import InputError
from caloscale.random import latent_noise, primary_numbers


def of_shower(seed, purpose, shower):
    """The same generator addressed by one whole number of 256 bits."""
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    return np.random.Generator(np.random.Philox(counter=(shower << 192) + (purpose << 128), key=key))


@pytest.mark.parametrize("shower", [0, 7, 10**9, 2**63])
def test_the_counter_is_the_number_of_the_shower(shower):
    expected = of_shower(5, 0, shower).standard_normal(20, np.float32)
    np.testing.assert_array_equal(latent_noise(5, shower, 1, 20)[0], expected)
    np.testing.assert_array_equal(primary_numbers(5, shower, 1)[0], of_shower(5, 1, shower).random(2))


def test_batches_are_slices_of_the_whole():
    whole = latent_noise(3, 0, 50, 9), primary_numbers(3, 0, 50)
    pieces = [(latent_noise(3, a, b - a, 9), primary_numbers(3, a, b - a)) for a, b in ((0, 1), (1, 33), (33, 50))]
    for part, of_pieces in zip(whole, zip(*pieces)):
        np.testing.assert_array_equal(part, np.concatenate(of_pieces))


def test_distributions_and_independence():
    noise = latent_noise(1, 0, 4000, 16)
    assert stats.kstest(noise.ravel(), "norm").pvalue > 1e-3
    assert stats.kstest(primary_numbers(1, 0, 4000).ravel(), "uniform").pvalue > 1e-3
    # Numbers of neighbouring showers, and of one place in equal showers of neighbouring seeds: no correlation.
    limit = 5 / np.sqrt(noise.size)
    assert abs(np.corrcoef(noise[:-1].ravel(), noise[1:].ravel())[0, 1]) < limit
    assert abs(np.corrcoef(noise.ravel(), latent_noise(2, 0, 4000, 16).ravel())[0, 1]) < limit


@pytest.mark.parametrize("seed", [-1, 1.5])
def test_a_seed_that_is_none_is_refused(seed):
    with pytest.raises(InputError, match="seed: must be an integer that is not negative"):
        latent_noise(seed, 0, 1, 2)
