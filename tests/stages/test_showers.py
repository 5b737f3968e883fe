"""The shards of a run on a cluster: made once by worker 0, found by the others and by later attempts."""

import shutil
import threading
from pathlib import Path

import pytest

from caloscale import stages
from caloscale.errors import ShowerFileError
from caloscale.showers.hdf5.writer import write_showers
from caloscale.spec import Run
from caloscale.stages import showers
from tests.training.conftest import random_showers, small_run


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    for number in range(3):
        write_showers(tmp_path / "raw" / f"{number}.h5", random_showers(8, number), attributes={})
    return tmp_path / "raw"


@pytest.fixture(params=["bucket", "volume"])
def workspace(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "volume":
        return str(tmp_path / "volume" / "run")
    return f"{request.getfixturevalue('bucket_server')}/{request.node.name}"


def run_on(raw: Path) -> Run:
    return small_run(f"data.source={raw}", "data.showers=16")


def test_worker_0_prepares_and_the_others_wait(
    raw: Path, workspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(showers, "POLL_SECONDS", 0.05)
    run, found = run_on(raw), []

    def other() -> None:
        found.append(stages.provide_shards(run, tmp_path / "1", workspace=workspace, chief=False))

    thread = threading.Thread(target=other)
    thread.start()
    made = stages.provide_shards(run, tmp_path / "0", workspace=workspace)
    thread.join(600)
    assert found[0].manifest == made.manifest and made.manifest.splits["train"] == 16
    found[0].need()
    made.need()

    shutil.rmtree(raw)  # a later attempt, on a new disk, needs them no more
    again = stages.provide_shards(run, tmp_path / "2", workspace=workspace)
    again.need()
    assert again.manifest == made.manifest
    with pytest.raises(ShowerFileError):
        stages.provide_shards(run, tmp_path / "3", workspace=f"{workspace}-other")


def test_without_a_common_workspace_each_prepares_the_same(raw: Path, tmp_path: Path) -> None:
    made = [stages.provide_shards(run_on(raw), tmp_path / str(i), workspace=None, chief=i == 0) for i in range(2)]
    assert made[0].manifest == made[1].manifest and made[0].path != made[1].path
    given = stages.provide_shards(run_on(raw), tmp_path / "2", workspace=None, given=str(made[0].path))
    assert given.path == made[0].path


def test_a_file_that_runs_share_with_the_cache_is_read_only(tmp_path: Path) -> None:
    """A change in the folder of one run would be one in all others, and in later ones."""
    (tmp_path / "cached.h5").write_text("showers")
    showers._link(tmp_path / "cached.h5", tmp_path / "of-a-run.h5")
    assert (tmp_path / "of-a-run.h5").samefile(tmp_path / "cached.h5")
    assert (tmp_path / "of-a-run.h5").stat().st_mode & 0o222 == 0
    showers._link(tmp_path / "cached.h5", tmp_path / "of-a-run.h5")


@pytest.mark.parametrize(("source", "mirror"), [("simulate", False), ("own.h5", True)])
def test_the_preparation_of_own_showers_knows_of_mirrored_copies(source: str, mirror: bool) -> None:
    """Else showers of half of a range, which the copies fill, were reported to leave an end of it empty."""
    assert showers.prepared_part(small_run(f"data.source={source}", "data.mirror=true").data).mirror is mirror
