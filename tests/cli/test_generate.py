"""The command generate: the files it leaves, read by h5py alone; processes that are stopped; bad input."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import h5py
import numpy as np
import pytest

from caloscale.inference.export.runtimes import exported
from caloscale.showers.hdf5.reader import read_showers
from caloscale.spec import Geometry, LayerGroup
from tests.inference.model_folders import COMPACT, shared_model
from tests.models import HAS_BFLOAT16
from tests.processes import running, wait_for

GEOMETRY = Geometry(cells=(5, 4, 3), layers=(LayerGroup(count=3, absorber_mm=4),), depth_mm=30)
CUBE = (
    "data.geometry.cells=[20, 20, 20]",
    "data.geometry.layers=[{count: 20, absorberMm: 2}]",
    "data.preprocessing.rebin=[1, 1, 1]",
    "model.latentSize=6",
)
CUBE_BYTES = 20 * 20 * 20 * 4
QUICK = ("--batch", "50", "--runtime", "openvino")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compact model of 5 x 4 x 3 cells, trained on 5 to 40 GeV."""
    return shared_model(tmp_path_factory, "compact", COMPACT)


@pytest.fixture(scope="session")
def cube(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compact model of 20 x 20 x 20 cells, of which a thousand showers take 32 MB."""
    folder = shared_model(tmp_path_factory, "compact", CUBE)
    exported(folder, "openvino")  # so that the processes below start without TensorFlow
    return folder


def read(path: Path) -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        return {name: file[name][...] for name in file}


@pytest.mark.integration
def test_all_runtimes_leave_the_same_file(command: Callable, model: Path, tmp_path: Path) -> None:
    files = []
    for number, runtime in enumerate(("tensorflow", "onnx", "openvino"), start=1):
        path = tmp_path / f"{runtime}.h5"
        done = command(
            "generate", "--model", model, "--count", 150, "--energies", "10..30", "--seed", 5, "-o", path,
            "--runtime", runtime, "--streams", number, "--batch", 16 * number,
        )  # fmt: skip
        assert done.code == 0, done.err
        assert "150 showers in" in done.out and "ms each" in done.out and "warning" not in done.err
        files.append(read(path))
    truth = files[0]
    assert truth["ECAL"].shape == (150, 4, 5, 3)
    assert 10 <= truth["energy"].min() < 11 and 29 < truth["energy"].max() <= 30
    assert np.radians(60) <= truth["theta"].min() and truth["theta"].max() <= np.radians(120)
    np.testing.assert_allclose(truth["sum"], truth["ECAL"].sum((1, 2, 3)), rtol=1e-5)
    for other in files[1:]:
        np.testing.assert_array_equal(other["energy"], truth["energy"])
        np.testing.assert_array_equal(other["theta"], truth["theta"])
        # 1e-3 is the threshold of 20 keV in units of 1/50 GeV: rounding may carry a cell below it.
        np.testing.assert_allclose(other["ECAL"], truth["ECAL"], rtol=1e-4, atol=1.0001e-3)
        assert (np.abs(other["ECAL"] - truth["ECAL"]) > 1e-4).sum() < 5
    ours = read_showers(tmp_path / "onnx.h5", geometry=GEOMETRY)
    assert ours.source == "generated"
    np.testing.assert_allclose(ours.ecal_sum_gev * 50, truth["sum"], rtol=1e-3)


@pytest.mark.integration
def test_divided_samples_other_layouts_and_the_primaries_of_a_file(
    command: Callable, model: Path, tmp_path: Path
) -> None:
    def generate(name: str, *options: object) -> dict[str, np.ndarray]:
        done = command("generate", "--model", model, "-o", tmp_path / name, "--runtime", "openvino", *options)
        assert done.code == 0, done.err
        return read(tmp_path / name)

    whole = generate("whole.h5", "--count", 40)
    first, second = generate("1.h5", "--count", 15), generate("2.h5", "--count", 25, "--first", 15)
    for name, values in whole.items():
        np.testing.assert_allclose(np.concatenate([first[name], second[name]]), values, rtol=1e-4, atol=1e-6)

    same = command("generate", "--model", model, "-o", tmp_path / "whole.h5", "--energies", tmp_path / "whole.h5")
    assert (
        same.code == 2
        and "is the file of the energies" in same.err
        and len(read(tmp_path / "whole.h5")["energy"]) == 40
    )
    like = generate("like.h5", "--energies", tmp_path / "whole.h5")
    np.testing.assert_array_equal(like["energy"], whole["energy"])
    np.testing.assert_allclose(like["ECAL"], whole["ECAL"], rtol=1e-4, atol=1e-6)
    assert not np.allclose(generate("other.h5", "--count", 40, "--seed", 2)["ECAL"], whole["ECAL"], rtol=0.1)

    mev = generate("mev.h5", "--energies", tmp_path / "whole.h5", "--layout", "calochallenge")
    np.testing.assert_allclose(mev["incident_energies"][:, 0], whole["energy"] * 1000, rtol=1e-6)
    np.testing.assert_allclose(mev["showers"].sum(1) / 1000, whole["sum"] / 50, rtol=1e-5)


def test_what_was_not_trained_on_is_refused_or_named(command: Callable, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    words = ("generate", "--model", model, "--count", 3, "--energies", "50,500", "--angles", "90", "-o", path, "--json")
    refused = command(*words)
    assert refused.code == 2 and not path.exists()
    assert "energies: go beyond the 5 to 40 GeV that the generator was trained on (got '50 to 500 GeV')" in refused.err
    assert "remedy: stay within them" in refused.err and "--extrapolate" in refused.err
    angles = command("generate", "--model", model, "--count", 3, "--angles", "30..90", "-o", path)
    assert angles.code == 2 and "angles: go beyond the 60 to 120 degrees" in angles.err
    done = command(*words, "--extrapolate")
    record = json.loads(done.out)
    assert (record["showers"], record["energyGev"], record["bytes"]) == (3, [50, 500], path.stat().st_size)
    assert record["millisecondsPerShower"] == pytest.approx(record["seconds"] / 3 * 1000, rel=0.01)
    assert "warning: energies 50 to 500 GeV go beyond the 5 to 40" in done.err
    np.testing.assert_array_equal(read(path)["energy"], [50, 500, 50])


@pytest.mark.integration
def test_the_precision_that_was_taken_is_said_and_recorded(command: Callable, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    words = ("generate", "--model", model, "--precision", "auto", "-o", path, "--json")
    few = command(*words, "--count", 3)
    record = json.loads(few.out)
    assert record["precision"] == "float32" and "too few" in record["precisionReason"]
    assert f"precision float32: {record['precisionReason']}" in few.err
    many = json.loads(command(*words, "--count", 128, "--batch", 1, "--streams", 2).out)
    if HAS_BFLOAT16:
        assert many["precision"] in ("float32", "bfloat16")
        assert "ms a shower in float32" in many["precisionReason"] and "in bfloat16" in many["precisionReason"]
    else:
        assert many["precision"] == "float32" and "adds up in bfloat16" in many["precisionReason"]
    with h5py.File(path) as file:
        assert file.attrs["precision"].decode() == many["precision"]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--energies", "500..10"], "energies: is no range or list of numbers above 0 GeV"),
        (["--energies", "absent.h5"], "absent.h5: cannot be read"),
        (["--first", str(2**63 - 1)], "--first"),
        (["--layout", "fixed-angle"], "'variable-angle', 'calochallenge'"),
        (["--runtime", "torch"], "runtime: is not known"),
        (["--precision", "int8"], "--runtime openvino, or --precision bfloat16"),
        (["--count", "0"], "count"),
        (["--batch", "0"], "batch"),
        (["--seed", "-1"], "seed"),
        (["--seed", str(2**63)], "seed"),
        (["--model", "absent"], "model.json: cannot be read"),
        (["--output", "."], "is a folder"),
        (["--output", "/proc/none/a.h5"], "cannot be written"),
        (["--output", "a.npz"], "would be HDF5 under the name of another kind of file"),
    ],
)
def test_bad_input(command: Callable, model: Path, tmp_path: Path, options: list[str], problem: str) -> None:
    given = {"--model": str(model), "--count": "5", "--output": str(tmp_path / "a.h5")}
    given.update(dict([options]))  # type: ignore[arg-type]
    done = command("generate", *[part for pair in given.items() for part in pair])
    assert done.code == 2
    assert problem in done.err and "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_no_number_of_showers(command: Callable, model: Path, tmp_path: Path) -> None:
    done = command("generate", "--model", model, "-o", tmp_path / "a.h5")
    assert done.code == 2 and "give --count" in done.err


def test_an_exported_model_needs_no_tensorflow(model: Path, tmp_path: Path) -> None:
    exported(model, "openvino")
    program = (
        "import sys; sys.modules['tensorflow'] = sys.modules['keras'] = None\n"
        "from caloscale.cli.main import main\n"
        f"sys.argv = ['caloscale', 'generate', '--model', {str(model)!r}, '--count', '3', '--runtime', 'openvino', "
        f"'-o', {str(tmp_path / 'a.h5')!r}]\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert read(tmp_path / "a.h5")["ECAL"].shape == (3, 4, 5, 3)


def generating(model: Path, output: Path, count: int) -> AbstractContextManager[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "caloscale.cli.main", "generate", "--model", str(model), "-o", str(output)]
    return running([*command, "--count", str(count), *QUICK], stderr=subprocess.PIPE)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_that_is_stopped_leaves_nothing(model: Path, tmp_path: Path, number: signal.Signals, code: int) -> None:
    exported(model, "openvino")
    (tmp_path / "a.h5").write_text("earlier")
    with generating(model, tmp_path / "a.h5", 10**7) as process:
        wait_for(lambda: any(path.stat().st_size > 10**5 for path in tmp_path.iterdir()), process)
        process.send_signal(number)
        _, err = process.communicate()
    assert process.returncode == code, err
    assert "no file was written" in err and "Traceback" not in err and "resumes" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]
    assert (tmp_path / "a.h5").read_text() == "earlier"


@pytest.mark.integration
def test_memory_does_not_grow_with_the_showers(cube: Path, tmp_path: Path) -> None:
    """900 more showers are 29 MB: the process holds less than a quarter of that more."""
    peaks = []
    for count in (100, 1000):
        with generating(cube, tmp_path / f"{count}.h5", count) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0
        peaks.append(usage.ru_maxrss * 1024)
        with h5py.File(tmp_path / f"{count}.h5") as file:
            assert file["ECAL"].shape == (count, 20, 20, 20)
    assert peaks[1] - peaks[0] < 0.25 * 900 * CUBE_BYTES
