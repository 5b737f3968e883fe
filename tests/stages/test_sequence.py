"""Folders of runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from caloscale import spec, stages
from caloscale.errors import ConfigurationError, InputError

COMPACT = spec.load_run(preset="compact")


def test_a_run_folder_holds_its_document_and_latest_points_at_it(tmp_path: Path) -> None:
    first = stages.new_run_folder(COMPACT, tmp_path, "first")
    second = stages.new_run_folder(COMPACT, tmp_path, "second")
    assert spec.load_run(first / "run.yaml") == COMPACT
    assert (tmp_path / "latest").resolve() == second.resolve()
    assert stages.new_run_folder(COMPACT, tmp_path, "first") == first
    assert (tmp_path / "latest").resolve() == first.resolve()


def test_a_folder_of_another_document_is_refused(tmp_path: Path) -> None:
    stages.new_run_folder(COMPACT, tmp_path, "mine")
    other = spec.load_run(preset="compact", overrides=["train.seed=2"])
    with pytest.raises(ConfigurationError, match="another document"):
        stages.new_run_folder(other, tmp_path, "mine")
    assert spec.load_run(tmp_path / "mine" / "run.yaml") == COMPACT


@pytest.mark.parametrize("name", ["latest", "../up", "a/b", ".hidden", "x" * 64, "sp ace"])
def test_names_that_are_no_folder_names_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="not a name for a run"):
        stages.new_run_folder(COMPACT, tmp_path, name)
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_cannot_be_planned_leaves_nothing_and_latest_where_it_is(tmp_path: Path) -> None:
    first = stages.new_run_folder(COMPACT, tmp_path, "first")
    before = (first / "run.yaml").read_text(encoding="utf-8")
    for override in ("hardware.accelerator=nvidia-tesla-v10", "budget.pricedAs.machineType=n1-standard-3"):
        bad = spec.load_run(preset="compact", overrides=[override])
        for name in ("second", "first"):
            with pytest.raises(InputError, match="did you mean"):
                stages.new_run_folder(bad, tmp_path, name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "latest"]
    assert (tmp_path / "latest").resolve() == first.resolve()
    assert (first / "run.yaml").read_text(encoding="utf-8") == before
