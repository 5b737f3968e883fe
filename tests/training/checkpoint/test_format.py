"""The file of a checkpoint: what is written is read, and any change is found."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors import safe_open
from safetensors.numpy import load, save

from caloscale.training.checkpoint.format import DamagedError, decode, encode

WEIGHTS = {"generator/000": np.arange(6, dtype=np.float32).reshape(2, 3), "step": np.array(7)}
CONTENT = encode(WEIGHTS, '{"a": 1}')


# Any bits are a number here; drawing floats is not repeatable where TensorFlow has switched off the smallest ones.
BITS = hnp.arrays(np.uint32, hnp.array_shapes(min_dims=0)).map(lambda bits: bits.view(np.float32))


@given(st.dictionaries(st.text("ab/0", min_size=1), BITS), st.dictionaries(st.text(), st.floats(allow_nan=False)))
def test_what_is_written_is_read(arrays, description):
    found, said = decode(encode(arrays, json.dumps(description)))
    assert json.loads(said) == description
    assert found.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype)
        assert found[name].tobytes() == array.tobytes()


def test_arrays_that_are_not_contiguous():
    turned = np.arange(6.0).reshape(2, 3).T
    np.testing.assert_array_equal(decode(encode({"a": turned}, "{}"))[0]["a"], turned)


def test_the_library_opens_it(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    with safe_open(tmp_path / "file", "numpy") as opened:
        assert json.loads(opened.metadata()["caloscale"])["description"] == {"a": 1}
        np.testing.assert_array_equal(opened.get_tensor("generator/000"), WEIGHTS["generator/000"])
    assert load(CONTENT)["step"] == 7


def test_equal_values_give_equal_files_in_every_process():
    code = (
        "import sys, numpy as np; from tests.training.checkpoint.test_format import CONTENT; "
        "sys.stdout.buffer.write(CONTENT)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout == CONTENT


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_a_changed_byte_is_found(place, change):
    damaged = bytearray(CONTENT)
    damaged[place] ^= change
    with pytest.raises(DamagedError, match="checksum"):
        decode(bytes(damaged))


@given(st.integers(0, len(CONTENT) - 1).map(lambda length: CONTENT[:length]))
@example(save({"a": np.zeros(100, np.float32)}))
def test_a_missing_end_and_a_file_of_somebody_else_are_found(content):
    with pytest.raises(DamagedError):
        decode(content)
