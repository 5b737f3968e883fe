"""The file of a checkpoint: what is written is read, and any change is found."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from caloscale.training.checkpoint.file import DamagedError, decode, encode

WEIGHTS = {"generator/000": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.array(7)}
CONTENT = encode(WEIGHTS, '{"a": 1}')


# Any bits are a number here; drawing floats is not repeatable where TensorFlow has switched off the smallest ones.
BITS = hnp.arrays(np.uint32, hnp.array_shapes(min_dims=0)).map(lambda bits: bits.view(np.float32))


@given(st.dictionaries(st.text("ab/0", min_size=1), BITS), st.text())
def test_what_is_written_is_read(arrays, state):
    found, said = decode(encode(arrays, state))
    assert said == state
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        assert found[name].tobytes() == array.tobytes()


def test_numpy_opens_it():
    with np.load(io.BytesIO(CONTENT)) as archive:
        np.testing.assert_array_equal(archive["generator/000"], WEIGHTS["generator/000"])


def test_equal_values_give_equal_files():
    assert encode(WEIGHTS, '{"a": 1}') == CONTENT


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_a_changed_byte_is_found(place, change):
    damaged = bytearray(CONTENT)
    damaged[place] ^= change
    with pytest.raises(DamagedError, match="checksum"):
        decode(bytes(damaged))


@given(st.integers(0, len(CONTENT) - 1))
def test_a_missing_end_is_found(length):
    with pytest.raises(DamagedError):
        decode(CONTENT[:length])
