"""Simulating files: the same showers whatever happens on the way, and nothing half-written."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import psutil
import pytest

from caloscale.errors import ConfigurationError, HeldError, ShowerFileError, SimulationError, StorageError
from caloscale.processor import cores, processor_name
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.writer import write_showers
from caloscale.showers.inspection import describe_file
from caloscale.simulation import file_count, fingerprint, simulate
from caloscale.simulation.record import FileLog
from caloscale.simulation.tables import LOW_ENERGY_FOLDER, data_folder, elements_of
from caloscale.spec import Data
from tests.processes import UNTIL_STOPPED, running, wait_for
from tests.simulation.conftest import digests, read_folder

ROOT = Path(__file__).parents[2]


def document(engine: str = "geant4", showers: int = 12, per_file: int = 4, **fields: object) -> Data:
    """Low energies: a few seconds in all."""
    simulation = {"engine": engine, "showersPerFile": per_file, "processes": fields.pop("processes", None)}
    raw = {"showers": showers, "energyGev": [0.5, 2], "validationFraction": 0.25, "simulation": simulation, **fields}
    return Data.model_validate(raw)


@pytest.fixture(scope="module", params=["geant4", "parametrised"])
def complete(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, cache: Path
) -> tuple[Data, Path]:
    """An uninterrupted simulation by one process."""
    data = document(request.param, processes=1)
    folder = tmp_path_factory.mktemp("complete")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALOSCALE_CACHE", str(cache))
        simulate(data, folder)
    return data, folder


def copy(folder: Path, target: Path) -> Path:
    shutil.copytree(folder, target)
    return target


def test_files_hold_what_the_configuration_says(complete: tuple[Data, Path]) -> None:
    data, folder = complete
    paths = sorted(folder.glob("*.h5"))
    assert len(paths) == file_count(data) == 4
    for index, path in enumerate(paths):
        description = describe_file(path)
        assert (description.showers, description.shape) == (4, (51, 51, 25))
        assert description.source == data.simulation.engine
        assert description.attributes["fingerprint"] == fingerprint(data)
        assert (description.attributes["seed"], description.attributes["fileIndex"]) == (data.seed, index)
        assert 0.5 <= description.energy_gev[0] < description.energy_gev[1] <= 2
    showers = read_folder(folder, data)
    assert len({cells.tobytes() for cells in showers.cells_gev}) == 16
    assert (showers.ecal_sum_gev > 0).all()


def test_files_are_in_the_folder_whatever_the_encoding_of_the_locale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "latin-1")
    simulate(document("parametrised", showers=2, per_file=1), tmp_path / "für e-")
    assert [path.name for path in tmp_path.iterdir()] == ["für e-"]
    assert len(list((tmp_path / "für e-").glob("*.h5"))) == 3


def test_the_record_is_complete(complete: tuple[Data, Path]) -> None:
    data, folder = complete
    record = json.loads((folder / "simulation.json").read_text())
    assert (record["source"], record["showers"], record["processes"]) == (data.simulation.engine, 16, 1)
    assert record["fingerprint"] == fingerprint(data)
    assert (record["processor"], record["cores"]) == (processor_name(), cores())
    assert record["showersPerSecond"] == pytest.approx(16 / record["seconds"])
    assert record["coreSecondsPerShower"] == pytest.approx(record["coreSeconds"] / 16)
    assert 0 < record["coreSeconds"] < 10 * record["seconds"]
    assert record["reused"] is False
    if data.simulation.engine == "geant4":
        assert (record["versions"]["calzone"], record["versions"]["geant4"]) == ("1.2.2", "11.4.0")


def test_showers_do_not_depend_on_the_number_of_processes(complete: tuple[Data, Path], tmp_path: Path) -> None:
    data, folder = complete
    simulation = data.simulation.model_copy(update={"processes": 3})
    simulate(data.model_copy(update={"simulation": simulation}), tmp_path)
    assert digests(tmp_path) == digests(folder)


@pytest.mark.parametrize(
    ("complete", "faults"),
    [("geant4", ("missing", "truncated", "fewer showers")), ("parametrised", ("missing", "empty", "not HDF5"))],
    indirect=["complete"],
)
def test_files_that_are_not_whole_are_made_again_alone_and_equal(
    faults: tuple[str, ...], complete: tuple[Data, Path], tmp_path: Path
) -> None:
    data, original = complete
    folder = copy(original, tmp_path / "copy")
    broken, untouched = [folder / f"showers-0000{index}.h5" for index in (0, 2, 3)], folder / "showers-00001.h5"
    before = untouched.stat().st_mtime_ns
    for path, fault in zip(broken, faults, strict=True):
        content = path.read_bytes()
        if fault == "missing":
            path.unlink()
        elif fault == "fewer showers":
            with h5py.File(path, "r+") as file:
                cells = file["ECAL"][:2]
                del file["ECAL"]
                file["ECAL"] = cells
        else:
            path.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "not HDF5": b"x" * 999}[fault])
    assert simulate(data, folder).reused is False
    assert digests(folder) == digests(original)
    assert untouched.stat().st_mtime_ns == before


def test_a_finished_simulation_is_reused_without_a_process(
    complete: tuple[Data, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, original = complete
    folder = copy(original, tmp_path / "copy")
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process"))
    with (folder / ".lock").open("a") as held:  # as by another process that has begun at the same time
        fcntl.flock(held, fcntl.LOCK_EX)
        record = simulate(data, folder)
    assert record.reused is True
    assert record.showers == 16
    assert (folder / "simulation.json").read_bytes() == (original / "simulation.json").read_bytes()


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 2}, {"energyGev": [0.5, 3]}, {"angleDeg": [80, 100]}, {"geometry": {"activeMm": 0.3}},
        {"showers": 13}, {"particle": "gamma"}, {"front": [{"material": "lead", "thicknessMm": 5.6}]},
        {"pairDistanceMm": 20}, {"pairDistanceMm": 30}, {"entryMm": [-2, 2]}, {"engine": "parametrised"},
    ],
)  # fmt: skip
def test_what_changes_the_showers_changes_the_fingerprint(change: dict[str, Any]) -> None:
    usual = document(angleDeg=[90, 90])
    assert fingerprint(document(**{"angleDeg": [90, 90], **change})) != fingerprint(usual)
    taken = usual.primary_ranges()
    assert fingerprint(usual) != fingerprint(usual, [taken]) != fingerprint(usual, [taken, taken])


def test_what_does_not_change_the_showers_does_not_change_the_fingerprint() -> None:
    assert fingerprint(document(processes=7)) == fingerprint(document(processes=1)) == fingerprint(document())
    assert fingerprint(document(preprocessing={"power": 1})) == fingerprint(document(mirror=True))


def test_the_folder_of_another_simulation_is_refused_and_left_alone(
    complete: tuple[Data, Path], tmp_path: Path
) -> None:
    data, original = complete
    folder = copy(original, tmp_path / "copy")
    shutil.copy(folder / "showers-00001.h5", folder / "showers-copy.h5")
    with pytest.raises(ShowerFileError, match=r"showers-copy.h5(.|\n)*read twice(.|\n)*remedy: choose"):
        simulate(data, folder)
    (folder / "showers-copy.h5").unlink()
    with pytest.raises(
        ShowerFileError, match=r"showers-00000.h5: fingerprint: belongs to another(.|\n)*remedy: choose"
    ):
        simulate(data.model_copy(update={"seed": 5}), folder)
    assert digests(folder) == digests(original)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("showers-00000.h5", "own showers"),
        ("showers-00001.h5", "another HDF5 file"),
        ("showers-00002.h5", "not HDF5"),
        ("showers-00099.h5", "own showers"),
        ("measured.hdf5", "own showers"),
        ("simulation.json", "not a record"),
    ],
)
def test_files_of_others_are_not_overwritten(tmp_path: Path, name: str, kind: str) -> None:
    """Files with the names of ours but without our fingerprint: a missing fingerprint is not ours."""
    data, path = document("parametrised"), tmp_path / name
    if kind == "own showers":
        cells = np.ones((4, *data.geometry.cells), np.float32)
        ones = np.ones(4, np.float32)
        write_showers(path, Showers(cells, ones, ones), attributes={"generator": "mine"})
    elif kind == "another HDF5 file":
        with h5py.File(path, "w") as file:
            file["thesis"] = [1, 2, 3]
    else:
        path.write_bytes(b"my own data")
    before = path.read_bytes()
    with pytest.raises(ShowerFileError, match=rf"{name}(.|\n)*remedy: choose another folder"):
        simulate(data, tmp_path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == [name]


PAUSED_AT_THE_FIRST_FILE = f"""
import sys, time
from pathlib import Path
from caloscale.simulation import simulate
from caloscale.simulation.record import FileLog
from caloscale.spec import Data

def pause(*_, **__):
    print("file", flush=True)
    {UNTIL_STOPPED}

FileLog.add = pause
try:
    simulate(Data.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
except KeyboardInterrupt:
    sys.exit(130)
"""


@contextmanager
def paused(data: Data, folder: Path, cache: Path) -> Iterator[subprocess.Popen[str]]:
    """The simulation in a process of its own that waits when it hears of the first file; its workers finish theirs."""
    arguments = [sys.executable, "-c", PAUSED_AT_THE_FIRST_FILE, data.model_dump_json(by_alias=True), str(folder)]
    environment = {**os.environ, "CALOSCALE_CACHE": str(cache)}
    with running(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout.readline() == "file\n"
        yield process


def workers_of(process: int) -> list[psutil.Process]:
    return [c for c in psutil.Process(process).children() if "caloscale.simulation.worker" in c.cmdline()]


@pytest.fixture(scope="module")
def long_data() -> Data:
    """More files than are finished before the interruption; its worker processes and files are those of Geant4, too."""
    return document("parametrised", showers=9, per_file=1, processes=2, energyGev=[2, 6])


def test_interrupted_and_resumed_equals_uninterrupted(long_data: Data, tmp_path: Path, cache: Path) -> None:
    """Ctrl-C after the first file: workers stop at once, finished files stay, the rest is made afterwards."""
    folder = tmp_path / "interrupted"
    with paused(long_data, folder, cache) as process:
        workers = workers_of(process.pid)
        (folder / ".partial-0-showers-00099.h5").touch()  # as of a worker that is killed while it writes
        process.send_signal(signal.SIGINT)
        _, output = process.communicate()
    assert process.returncode == 130, output
    assert "showers/s" in output
    assert workers
    assert not any(worker.is_running() for worker in workers)
    kept = digests(folder)
    # The one that finished the first file has received another one before that file is reported.
    assert 1 <= len(kept) <= len(workers) + 1 < file_count(long_data)
    assert not (folder / "simulation.json").exists()
    assert not list(folder.glob(".partial-*"))

    times = {path: path.stat().st_mtime_ns for path in folder.glob("*.h5")}
    record = simulate(long_data, folder)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert record.showers == 12
    # Files that were finished without their process having said so: only their times are lost.
    assert len((folder / "files.jsonl").read_text().splitlines()) == file_count(long_data) - len(kept)
    assert record.seconds > 0
    whole = tmp_path / "whole"
    simulate(long_data, whole)
    assert digests(folder) == digests(whole)


def test_a_killed_worker_is_an_error_and_not_a_hang(
    long_data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One dies when the first file is finished. Another file may be finished before that is noticed."""
    killed: list[psutil.Process] = []

    def kill_one(*_: object, **__: object) -> None:
        if not killed:
            killed.append(workers_of(os.getpid())[0])
            killed[0].kill()

    monkeypatch.setattr(FileLog, "add", kill_one)
    with pytest.raises(SimulationError, match=r"ended by SIGKILL(.|\n)*remedy: run it again, finished files are kept"):
        simulate(long_data, tmp_path)
    assert not workers_of(os.getpid())
    assert digests(tmp_path)
    assert not (tmp_path / "simulation.json").exists()


def test_workers_end_when_their_parent_is_killed(long_data: Data, tmp_path: Path, cache: Path) -> None:
    with paused(long_data, tmp_path, cache) as process:
        workers = workers_of(process.pid)
        process.kill()
    assert len(workers) >= 1
    wait_for(lambda: not any(w.is_running() and w.status() != "zombie" for w in workers))


def test_two_simulations_into_one_folder_are_refused(long_data: Data, tmp_path: Path, cache: Path) -> None:
    with (
        paused(long_data, tmp_path, cache),
        pytest.raises(HeldError, match=r"process \d+ on \S+ is at work here(.|\n)*remedy: wait"),
    ):
        simulate(long_data, tmp_path)


DISK_BYTES = 64 * 1024


def test_a_full_disk_is_named_and_nothing_half_written_stays(small_disk: Path) -> None:
    """The file is one of showers, or, when another process fills the disk at that moment, the log of finished files."""
    with pytest.raises(StorageError, match=r"disk/\S+: cannot be written: No space left(.|\n)*remedy: free"):
        simulate(document("parametrised", showers=60, per_file=20), small_disk)
    assert not [path for path in small_disk.iterdir() if path.name.startswith(".partial-")]
    for path in small_disk.glob("*.h5"):
        assert describe_file(path).showers == 20


def test_the_log_of_finished_files_is_named_when_the_disk_is_full(small_disk: Path) -> None:
    log = FileLog(small_disk, "0")
    log.add(file="showers-00000.h5")
    with pytest.raises(OSError, match="No space left"), (small_disk / "rest").open("wb", buffering=0) as rest:
        while True:
            rest.write(bytes(4096))
    with pytest.raises(StorageError, match=r"disk/\S+jsonl?: cannot be written: No space left"):
        for number in range(1, 1000):
            log.add(file=f"showers-{number:05d}.h5")


def test_files_of_other_simulations_have_other_times(tmp_path: Path) -> None:
    for fingerprint_, seconds in (("a", 9.0), ("b", 2.0), ("b", 3.0)):
        times = {"attempt": fingerprint_, "seconds": seconds, "coreSeconds": seconds, "showers": 4}
        FileLog(tmp_path, fingerprint_).add(file="showers-00000.h5", **times)
    assert FileLog(tmp_path, "b").times() == (3, 5, 8)


def test_files_beyond_the_memory_are_refused(tmp_path: Path) -> None:
    data = document(showers=10**6, per_file=10**5, geometry={"cells": [1000, 1000, 25]})
    with pytest.raises(
        ConfigurationError, match=r"data.simulation.showersPerFile: (.|\n)*GiB(.|\n)*remedy: fewer showers"
    ):
        simulate(data, tmp_path)
    assert not list(tmp_path.glob("*.h5"))


def test_a_wheel_that_does_not_load_is_an_error_with_both_remedies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the C library is too old for it: found, but its import fails, in the worker."""
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "calzone.py").write_text("raise ImportError('libc.so.6: version GLIBC_2.99 not found')\n")
    monkeypatch.setenv("PYTHONPATH", str(broken))
    with pytest.raises(SimulationError, match=r"GLIBC_2.99(.|\n)*remedy: .*pip install(.|\n)*engine=parametrised"):
        simulate(document(), tmp_path / "out")


def test_incomplete_datasets_of_the_users_own_are_named(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = data_folder(elements_of(document().geometry), {"CALOSCALE_CACHE": str(cache)}) / LOW_ENERGY_FOLDER
    shutil.copytree(tables, tmp_path / "own" / tables.name)
    monkeypatch.setenv("GEANT4_DATA_DIR", str(tmp_path / "own"))
    with pytest.raises(SimulationError, match=r"Geant4: bad G4NDL dataset(.|\n)*remedy: complete the datasets"):
        simulate(document(), tmp_path / "out")


@pytest.mark.parametrize("complete", ["geant4"], indirect=True)
def test_variables_of_geant4_do_not_change_the_showers(
    complete: tuple[Data, Path], cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Geant4 would read bremsstrahlung that is three times as strong from G4LEDATA, and abort at a missing folder."""
    data, expected = complete
    tables = data_folder(elements_of(data.geometry), {"CALOSCALE_CACHE": str(cache)})
    monkeypatch.setenv("GEANT4_DATA_DIR", str(tables))
    own = fingerprint(data)
    other = copy(tables / LOW_ENERGY_FOLDER, tmp_path / "other")
    for file in (other / "brem_SB").iterdir():
        lines = file.read_text().splitlines()
        tripled = [" ".join(str(3 * float(number)) for number in line.split()) for line in lines[3:]]
        file.write_text("\n".join(lines[:3] + tripled) + "\n")
    monkeypatch.setenv("G4LEDATA", str(other))
    monkeypatch.setenv("G4PARTICLEXSDATA", str(tmp_path / "nowhere"))
    simulate(data, tmp_path / "out")
    assert fingerprint(data) == own
    np.testing.assert_array_equal(
        read_folder(tmp_path / "out", data).cells_gev, read_folder(expected, data).cells_gev, strict=True
    )
    monkeypatch.delenv("GEANT4_DATA_DIR")
    assert fingerprint(data) not in (own, json.loads((expected / "simulation.json").read_text())["fingerprint"])
    (tmp_path / "other" / "epics2017" / "rayl" / "re-cs-14.dat").write_text("no table")
    with pytest.raises(SimulationError, match=r"ended by SIG(ABRT|SEGV)(.|\n)*remedy: .*complete the datasets"):
        simulate(data, tmp_path / "broken")


def test_geant4_stays_out_of_this_process(complete: tuple[Data, Path]) -> None:
    assert "calzone" not in sys.modules
    assert complete


def test_progress_moves_within_a_file(tmp_path: Path, cache: Path) -> None:
    """The worker's messages: several counts per file, which add up."""
    data = document("parametrised", showers=40, per_file=40, energyGev=[90, 100])
    order = {"data": data.model_dump(mode="json", by_alias=True), "folder": str(tmp_path), "fingerprint": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "caloscale.simulation.worker"],
        input=json.dumps(order) + "\n0\n1\n",
        capture_output=True,
        text=True,
        check=True,
    )
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert [m["event"] for m in messages if m["event"] != "progress"] == ["ready", "done", "done"]
    counts = [m["showers"] for m in messages if m["event"] == "progress"]
    assert sum(counts) == 80
    assert len(counts) > 10
    assert np.max(counts) <= 6
    assert len(digests(tmp_path)) == 2
