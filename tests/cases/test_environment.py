"""Environments of a user, and paths that would be taken for folders: each in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from caloscale import api, spec
from caloscale.cli import measure
from caloscale.errors import ConfigurationError, InputError, StorageError
from caloscale.models import build
from caloscale.stages.solving import new_solver_folder
from caloscale.storage.atomic import write_text
from caloscale.storage.objects import is_remote


def run(arguments: list[str], cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=os.environ | environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(("setting", "value"), [("floatx", "float16"), ("image_data_format", "channels_first")])
def test_networks_are_not_built_where_the_process_has_set_keras_otherwise(
    monkeypatch: pytest.MonkeyPatch, setting: str, value: str
) -> None:
    """In a notebook, before a training."""
    import tensorflow as tf

    run = spec.load_run(preset="compact")
    before = getattr(tf.keras.config, setting)()
    getattr(tf.keras.config, f"set_{setting}")(value)
    try:
        with pytest.raises(InputError, match=rf"keras\.config\.{setting}"):
            build(run.model, run.data)
    finally:
        getattr(tf.keras.config, f"set_{setting}")(before)


def test_a_training_is_refused_where_the_process_has_set_another_precision() -> None:
    """The files of the networks that it releases would be in half precision."""
    import tensorflow as tf

    from caloscale.training.state import TrainingState

    tf.keras.config.set_dtype_policy("mixed_float16")
    try:
        with pytest.raises(InputError, match=r"keras\.config\.dtype_policy.*mixed_float16"):
            TrainingState(spec.load_run(preset="compact", overrides=["train.precision=float32"]))
    finally:
        tf.keras.config.set_dtype_policy("float32")


def test_another_keras_that_was_imported_before_is_refused(tmp_path: Path) -> None:
    """No other backend is installed: a module stands for a Keras that has loaded one."""
    text = (
        "import sys, types; keras = sys.modules['keras'] = types.ModuleType('keras'); "
        "keras.config = types.SimpleNamespace(backend=lambda: '{}'); import caloscale"
    )
    done = run(["-c", text.format("jax")], tmp_path)
    assert done.returncode != 0
    assert "keras was imported with jax" in done.stderr and "import caloscale before keras" in done.stderr
    assert run(["-c", text.format("tensorflow")], tmp_path).returncode == 0


def test_the_keras_json_of_the_user_is_reported(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is ignored, unless it says the same."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(measure, "OVERRIDDEN", ())
    (tmp_path / ".keras").mkdir()
    ours = Path(spec.__file__).parent.parent / "keras_home" / "keras.json"
    for text, reported in (('{"floatx": "float16"}', True), ("{", True), (ours.read_text(), False)):
        (tmp_path / ".keras" / "keras.json").write_text(text)
        done = command("doctor")
        assert ("keras.json: Keras 3 with" in " ".join(done.out.split())) == reported, done.out


def test_a_name_that_the_terminal_does_not_have_is_printed_with_a_replacement(tmp_path: Path) -> None:
    done = run(["-m", "caloscale.cli.main", "inspect", "\u00b5.h5"], tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 2 and r"\xb5.h5" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.integration
def test_pictures_are_the_same_whatever_matplotlib_was_told(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matplotlibrc in the working directory, and a name of a drawing library that does not exist."""
    cells = np.random.default_rng(1).random((2, 4, 4, 3)).astype(np.float32)
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["ECAL"] = cells.swapaxes(1, 2) * 50
        file["energy"], file["theta"] = np.full(2, 10.0), np.full(2, np.pi / 2)
    monkeypatch.chdir(tmp_path)
    done = command("inspect", "own.h5", "--picture", "plain.png")
    assert done.code == 0, done.err
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nfont.size: 30\naxes.facecolor: black\n")
    told = run(
        ["-m", "caloscale.cli.main", "inspect", "own.h5", "--picture", "own.png"], tmp_path, MPLBACKEND="nonsense"
    )
    assert told.returncode == 0, told.stderr
    assert (tmp_path / "own.png").read_bytes() == (tmp_path / "plain.png").read_bytes()


def test_a_working_directory_that_is_gone_is_named(command: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> str:
        raise FileNotFoundError

    monkeypatch.setattr(os, "getcwd", gone)
    done = command("doctor")
    assert done.code == 2 and "working directory" in done.err


def test_a_path_that_is_too_long_is_named(command: Callable) -> None:
    done = command("inspect", "a" * 300)
    assert done.code == 2 and "File name too long" in done.err and "remedy" in done.err


@pytest.mark.parametrize(
    ("streams", "code"), [(">/dev/full", 2), (">&-", 0), ("2>&-", 0), ("<&- 2>&-", 0), ("<&- >&- 2>&-", 0)]
)
def test_streams_that_are_full_or_closed(streams: str, code: int, tmp_path: Path) -> None:
    """The file that is opened next does not get the number of a closed one."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["ECAL"], file["energy"], file["theta"] = np.ones((2, 5, 5, 5), "f4"), [20.0, 20.0], [1.5, 1.5]
    words = ["sh", "-c", f'exec "$0" -m caloscale.cli.main inspect "$1" {streams}', sys.executable, path]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == code and "Traceback" not in done.stderr
    assert ("variable-angle" in done.stdout) == (">" not in streams.replace("2>", ""))
    assert ("standard output: cannot be written: No space left" in done.stderr) == (code == 2)


@pytest.mark.parametrize(
    "place",
    [
        *(
            " gs://b/run",
            "GS://b/run",
            "gcs://b/run",
            "az://b/run",
            "file:///b",
            "gs://",
            "gs:/b",
            "gs:b/run",
            "minio:b/run",
            "hdfs:/b",
        ),
        *("~/run", "~", "$HOME/run", "${SCRATCH}/run"),
    ],
)
def test_addresses_that_would_be_folders_are_refused(
    place: str, command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError):
        is_remote(place)
    for field in ("data.source", "checkpoint.uri", "train.startFrom", "cluster.workspace"):
        with pytest.raises(ConfigurationError, match=r"gs://bucket/prefix"):
            spec.load_run(preset="compact", overrides=[f'{field}="{place}"'])
    for arguments in (
        ["train", "--preset", "compact", "-w", place],
        ["preprocess", "--preset", "compact", "-o", place],
        ["run", "--preset", "compact", "--runs", place],
        ["generate", "--model", place, "--count", "1", "-o", "x.h5"],
        ["bill", place],
        ["plan", "--preset", "compact", "--prices", place],
    ):
        done = command(*arguments)
        assert done.code == 2 and "write the path" in done.err, arguments
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["s3://b/run", "gs://b/run", "file:///b"])
def test_python_refuses_an_address_where_it_writes_a_folder(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = spec.load_run(preset="compact", overrides=["data.simulation.engine=parametrised", "data.showers=20"])
    solver = spec.load_solver_run(preset="proxy")
    for write in (
        lambda: api.run(run, name="a", runs=place),
        lambda: api.simulate(run, place),
        lambda: new_solver_folder(solver, Path(place), "a"),
        lambda: write_text(Path(place) / "a.txt", "text"),
    ):
        with pytest.raises(StorageError, match="is no address of a bucket that works here") as error:
            write()
        assert error.value.exit_code == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cache", ["file/cache", "s3://bucket/cache", "/proc/none"])
def test_a_cache_that_cannot_be_written_is_named(
    cache: str, command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CALOSCALE_CACHE", cache)
    small = ("data.simulation.engine=parametrised", "data.showers=20")
    done = command("run", "--preset", "compact", *(word for field in small for word in ("--set", field)))
    assert done.code == 2 and f"{Path(cache)}: CALOSCALE_CACHE: the cache " in done.err
    assert "remedy: let CALOSCALE_CACHE name a folder" in done.err
