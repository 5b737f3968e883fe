"""How a run that was stopped is resumed, as its user reads it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from caloscale import stages
from caloscale.errors import TrainingError
from caloscale.stages import solving


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
