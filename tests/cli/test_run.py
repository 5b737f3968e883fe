"""How a run that was stopped is resumed, and which showers preprocess leaves out, as their user reads it."""

import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from caloscale import stages
from caloscale.errors import TrainingError
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.writer import write_showers
from caloscale.spec import dump_run, load_solver_run
from caloscale.stages import solving
from caloscale.stages.record import recorded
from caloscale.stages.solving import report_solution
from tests.inference.model_folders import COMPACT


@pytest.mark.parametrize("end", [None, TrainingError("a rank is lost")])
def test_a_run_of_the_solver_is_reported_again(command: Callable, tmp_path: Path, end: TrainingError | None) -> None:
    """As after a retry of its pipeline, which has removed page and bill; with or without a solution."""
    (tmp_path / "run.yaml").write_text(dump_run(load_solver_run(preset="proxy")))
    with suppress(TrainingError), recorded("solve", tmp_path):
        if end is not None:
            raise end
    done = command("report", "-w", tmp_path)
    assert done.code == 0 and ("a rank is lost" if end else "nothing was solved") in done.err
    killed = "step solve: killed"
    report_solution(load_solver_run(preset="proxy"), tmp_path, failure=killed)
    command("report", "-w", tmp_path)
    assert (killed in (tmp_path / "report.html").read_text()) == (end is None)
    assert "usd" in json.loads((tmp_path / "bill.json").read_text()) and (tmp_path / "report.html").is_file()


@pytest.mark.parametrize("name", [None, "mine"])
@pytest.mark.parametrize(("preset", "what"), [("compact", "run"), ("proxy", "solve")])
@pytest.mark.parametrize(("end", "code"), [(KeyboardInterrupt(), 130), (TrainingError("a worker is lost"), 5)])
def test_a_run_without_a_name_says_the_name_with_which_it_resumes(
    command: Callable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str | None,
    preset: str,
    what: str,
    end: BaseException,
    code: int,
) -> None:
    """The same command would begin another, in a folder of another time."""

    def stop(*_: object) -> None:
        raise end

    monkeypatch.setitem(vars(stages), "run_all", stop)
    monkeypatch.setattr(solving, "solve_and_report", stop)
    done = command(what, "--preset", preset, "--runs", tmp_path, *(["--name", name] if name else []))
    (folder,) = tmp_path.iterdir()
    assert done.code == code
    assert (f"with --name {folder.name} this run resumes" in done.err) == (name is None)


@pytest.mark.parametrize(("outside", "warned"), [(0, False), (4, False), (5, True)])
def test_preprocess_says_which_showers_it_leaves_out_and_warns_from_5_per_cent(
    command: Callable, tmp_path: Path, outside: int, warned: bool
) -> None:
    random = np.random.default_rng(1)
    energy_gev = random.uniform(10, 40, 100).astype(np.float32)
    angle_rad = np.full(100, 1.5, np.float32)
    angle_rad[:outside] = 0.5
    cells = random.gamma(0.3, energy_gev[:, None, None, None] / 1250, (100, 5, 4, 3)).astype(np.float32)
    write_showers(tmp_path / "s.h5", Showers(cells, energy_gev, angle_rad, "geant4"), attributes={})
    overrides = (*COMPACT, f"data.source={tmp_path}/s.h5", "data.showers=60", "data.validationFraction=0.25")
    words = ["preprocess", "--preset", "compact", *(f"--set={one}" for one in overrides), "-o", tmp_path / "shards"]
    done = command(*words)
    assert done.code == 0 and done.out.startswith("60 train, ")
    assert (f"; {outside} left out (angle outside data.angleDeg)" in done.out) == bool(outside)
    assert "left out (beyond data.showers)" in done.out  # which was asked for
    warning = f"warning: {outside} of 100 showers are left out (angle outside data.angleDeg)\n  remedy: check"
    assert (warning in done.err) == warned and done.err.count("warning:") == warned
