"""What a validation leaves where the released model is."""

from __future__ import annotations

from pathlib import Path

import pytest

from caloscale import spec
from caloscale.errors import InputError
from caloscale.physics import Evaluation
from caloscale.stages.validation import _release, validate

COMPACT = spec.load_run(preset="compact")
RELEASED = Evaluation.model_construct(released=True)
HELD_BACK = Evaluation.model_construct(released=False)


def test_the_model_folder_holds_the_last_verdict_alone(tmp_path: Path) -> None:
    """A network that was released before is not used in place of one that was held back."""
    trained, model = tmp_path / "trained", tmp_path / "model"
    trained.mkdir()
    for number, (evaluation, left) in enumerate(
        [
            (RELEASED, ["generator.keras"]),
            (HELD_BACK, ["HELD_BACK.md"]),
            (HELD_BACK, ["HELD_BACK.md"]),
            (RELEASED, ["generator.keras"]),
        ]
    ):
        (trained / "generator.keras").write_text(str(number))
        _release(evaluation, f"verdict {number}", trained, model)
        assert [path.name for path in model.iterdir()] == left
        assert str(number) in (model / left[0]).read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "trained"]


def test_a_model_is_not_judged_in_the_folder_that_gets_it(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/generator.keras").write_text("network")
    with pytest.raises(InputError, match="is the folder that gets the networks") as error:
        validate(COMPACT, tmp_path, tmp_path / "dataset", tmp_path / "model", tmp_path / "x/../model")
    assert error.value.exit_code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
