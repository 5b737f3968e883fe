"""Ten thousand showers of full size in three runtimes: the same, at constant memory. Half an hour on two cores."""

import json
import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from .model_folders import make_model

SHOWERS = int(os.environ.get("CALOSCALE_TEST_SHOWERS", "10000"))
FEW = 96
"""Showers of the run that the memory is compared with: six batches."""
SHOWER_MIB = 51 * 51 * 25 * 4 / 2**20
RUNTIMES = ("tensorflow", "onnx", "openvino")


def generate(model: Path, runtime: str, count: int, output: Path) -> tuple[float, float]:
    """Milliseconds per shower and the most memory that the process held, MiB, as the kernel counted it."""
    options = ["--runtime", runtime, "--count", str(count), "-o", str(output), "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "caloscale.cli.main", "generate", "--model", str(model), *options],
        stdout=subprocess.PIPE,
        text=True,
    )
    with process.stdout as stdout:  # type: ignore[union-attr]
        record = json.loads(stdout.read())
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return record["millisecondsPerShower"], usage.ru_maxrss / 1024


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_ten_thousand_full_size_showers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_model(tmp_path / "model", "variable-angle", ())
    lines = ["runtime     ms per shower   peak MiB   peak MiB of few"]
    for runtime in RUNTIMES:
        generate(model, runtime, 1, tmp_path / "export.h5")
        _, before = generate(model, runtime, FEW, tmp_path / "few.h5")
        milliseconds, after = generate(model, runtime, SHOWERS, tmp_path / f"{runtime}.h5")
        lines.append(f"{runtime:<12}{milliseconds:13.2f}{after:11.0f}{before:18.0f}")
        # What grew with the showers would be all of them, 250 kB each.
        assert after - before < max(0.05 * (SHOWERS - FEW) * SHOWER_MIB, 50)
    with capsys.disabled():
        print("", f"{SHOWERS} showers of 51 x 51 x 25 cells", *lines, sep="\n")
    compare(*(tmp_path / f"{runtime}.h5" for runtime in RUNTIMES))


def compare(first: Path, *others: Path) -> None:
    """Cells agree within 1e-5 of the shower's largest."""
    with h5py.File(first) as truth:
        assert truth["ECAL"].shape == (SHOWERS, 51, 51, 25)
        for path in others:
            with h5py.File(path) as ours:
                for start in range(0, SHOWERS, 500):
                    part = slice(start, start + 500)
                    expected, found = truth["ECAL"][part], ours["ECAL"][part]
                    largest = expected.max(axis=(1, 2, 3), keepdims=True)
                    assert (largest > 0).all()
                    assert (np.abs(found - expected) <= 1e-5 * largest).all()
                    np.testing.assert_array_equal(ours["theta"][part], truth["theta"][part])
