"""The exit status of `caloscale validate --require-release` for each decision; a real one: tests/pipelines."""

from collections.abc import Callable
from pathlib import Path

import pytest

from caloscale import stages
from caloscale.physics import Evaluation
from caloscale.report import physics_sections


@pytest.fixture(autouse=True)
def verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations of these tests have no gates to be shown."""
    monkeypatch.setattr(physics_sections, "verdict_markdown", lambda _: "the verdict")


@pytest.mark.parametrize("decision", ["accepted", "undecided", "rejected", "not assessed"])
@pytest.mark.parametrize("required", [True, False])
def test_only_an_accepted_model_meets_require_release(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, decision: str, required: bool
) -> None:
    monkeypatch.setitem(vars(stages), "validate", lambda *_: Evaluation.model_construct(decision=decision))
    done = command("validate", "--preset", "compact", "-w", tmp_path, *(["--require-release"] if required else []))
    assert "the verdict" in done.out
    assert done.code == (10 if required and decision != "accepted" else 0)
    assert (decision in done.err) == (done.code == 10)


def test_int8_is_judged_by_itself(command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The released model, not what the training left, and no stage of the run."""
    judged = []

    def judge(run: object, dataset: Path, model: Path) -> Evaluation:
        judged.extend([dataset, model])
        return Evaluation.model_construct(decision="rejected")

    monkeypatch.setitem(vars(stages), "validate_int8", judge)
    done = command("validate", "--preset", "compact", "-w", tmp_path, "--int8", "--require-release")
    assert done.code == 10 and "the verdict" in done.out
    assert judged == [tmp_path / "dataset", tmp_path / "model"]


def test_shards_are_those_that_the_pipeline_made(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After `make run`; with both options named no file of the workspace is needed, so that it may be in a bucket."""
    judged = []

    def judge(run: object, workspace: str, dataset: Path, model: Path) -> Evaluation:
        judged.append((dataset, model))
        return Evaluation.model_construct(decision="accepted")

    for number, name in enumerate(("2026-11-25", "2026-11-26", "2026-11-27")):
        shards = tmp_path / "pipeline" / f"train-{name}" / "preprocess" / "dataset"
        shards.mkdir(parents=True)
        if number < 2:  # the last pipeline failed before
            (shards / "manifest.json").touch()
    monkeypatch.setitem(vars(stages), "validate", judge)
    assert command("validate", "--preset", "compact", "-w", tmp_path).code == 0
    bucket = ("validate", "--preset", "compact", "-w", "gs://bucket/run")
    assert command(*bucket, "--dataset", "shards", "--model", "networks").code == 0
    assert command(*bucket, "--dataset", "shards").code == 2
    (tmp_path / "dataset").mkdir()
    assert command("validate", "--preset", "compact", "-w", tmp_path).code == 0
    of_pipeline = tmp_path / "pipeline" / "train-2026-11-26" / "preprocess" / "dataset"
    networks = tmp_path / "training" / "model"
    assert judged == [(of_pipeline, networks), ("shards", Path("networks")), (tmp_path / "dataset", networks)]
