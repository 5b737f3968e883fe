import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from caloscale.errors import StorageError
from caloscale.storage.atomic import atomic_writer, storage_error


def test_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "er" / "model.keras"
    with atomic_writer(target) as temporary:
        assert temporary.parent == target.parent and temporary.suffix == ".keras" and temporary.name.startswith(".")
        temporary.write_text("new")
        assert not target.exists()
    assert target.read_text() == "new"
    assert [path.name for path in target.parent.iterdir()] == ["model.keras"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("is_folder", [False, True])
def test_failure_leaves_everything_as_it_was(tmp_path: Path, error: type[BaseException], is_folder: bool) -> None:
    target = tmp_path / "thing"
    target.write_text("old")
    with pytest.raises(error), atomic_writer(target) as temporary:
        if is_folder:
            temporary.mkdir()
            (temporary / "half").write_text("half")
        else:
            temporary.write_text("half")
        raise error
    assert target.read_text() == "old" and len(list(tmp_path.iterdir())) == 1


def test_a_pipe_and_a_link_to_an_open_file_are_not_replaced(tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "stdout"
    os.mkfifo(pipe)
    link.symlink_to("/proc/self/fd/1")
    for target in (pipe, link):
        with pytest.raises(StorageError, match="give the name of a file"), atomic_writer(target) as temporary:
            temporary.write_text("text")
    assert pipe.is_fifo() and link.is_symlink()


@pytest.mark.parametrize("name", [".", "..", "a/.."])
def test_the_current_folder_and_those_above_are_not_replaced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    with pytest.raises(StorageError, match="folder of this process"), atomic_writer(name, replace_folder=True) as path:
        path.mkdir()
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]


def test_what_a_link_leads_to_is_replaced(tmp_path: Path) -> None:
    """A link to another disk: its owner reads there, and wants the bytes there."""
    disk = tmp_path / "disk"
    (disk / "folder").mkdir(parents=True)
    (disk / "file").write_text("old")
    for name in ("file", "folder", "absent"):
        (tmp_path / f"link-{name}.h5").symlink_to(disk / name)
    for name in ("file", "absent"):
        with atomic_writer(tmp_path / f"link-{name}.h5") as temporary:
            assert temporary.suffix == ".h5"
            temporary.write_text("new")
        assert (disk / name).read_text() == "new"
    with atomic_writer(tmp_path / "link-folder.h5", replace_folder=True) as temporary:
        temporary.mkdir()
        (temporary / "one").touch()
    assert (disk / "folder/one").exists()
    assert all(path.is_symlink() for path in tmp_path.glob("link-*"))


def test_folder_is_replaced_as_a_whole_only_when_asked(tmp_path: Path) -> None:
    target = tmp_path / "dataset"
    for name in ("one", "two"):
        with atomic_writer(target, replace_folder=True) as temporary:
            temporary.mkdir()
            (temporary / name).write_text(name)
        assert [path.name for path in target.iterdir()] == [name]
    with pytest.raises(StorageError, match="choose another path"), atomic_writer(target) as temporary:
        temporary.mkdir()
    assert (target / "two").exists() and len(list(tmp_path.iterdir())) == 1


def test_nothing_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"), atomic_writer(tmp_path / "a"):
        pass


def test_folder_that_refuses(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, remedy in (
        (tmp_path / "file" / "a", "a component of the path is a file"),
        (tmp_path / ("a" * 300), "shorter"),
    ):
        with pytest.raises(StorageError, match=remedy), atomic_writer(path):
            pass
    if os.geteuid() == 0:
        return  # root may write anywhere
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(StorageError, match="may write to"), atomic_writer(locked / "a") as temporary:
        temporary.write_text("x")


def test_number_within_the_message_of_hdf5() -> None:
    error = storage_error(OSError("write failed (errno = 28, error message = 'No space left')"), "a.h5")
    assert "a.h5" in str(error) and "No space left on device" in str(error) and "free space" in str(error)


KILLED = """
import os, signal, sys
from pathlib import Path
from caloscale.storage.atomic import atomic_writer
with atomic_writer(Path(sys.argv[1])) as temporary:
    if sys.argv[2] == "folder":
        temporary.mkdir()
        temporary /= "half"
    temporary.write_text("half")
    if sys.argv[2] == "wait":
        print(flush=True)
        sys.stdin.read()
    else:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_partial_files_of_killed_processes_go_with_the_next_success(tmp_path: Path) -> None:
    target = tmp_path / "showers.h5"
    for kind in ("file", "folder"):
        subprocess.run([sys.executable, "-c", KILLED, str(target), kind], check=False)
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "other.h5"), "file"], check=False)
    assert len(list(tmp_path.iterdir())) == 3
    writes = [sys.executable, "-c", KILLED, str(target), "wait"]
    with subprocess.Popen(writes, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as alive:
        assert alive.stdout is not None and alive.stdout.readline()
        with atomic_writer(target) as temporary:
            temporary.write_text("whole")
        left = {path.name.rpartition("-")[2] for path in tmp_path.iterdir() if path != target}
        assert left == {"other.h5", "showers.h5"}  # of another file, and of a process that is still writing
        assert len(list(tmp_path.iterdir())) == 3
        alive.communicate(b"")
    assert sorted(path.name.rpartition("-")[2] for path in tmp_path.iterdir()) == ["other.h5", "showers.h5"]
