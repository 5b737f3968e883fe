"""What a validation leaves where the released model is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from caloscale import spec
from caloscale.errors import InputError
from caloscale.physics import Evaluation
from caloscale.showers.arrays import Showers
from caloscale.stages.validation import _generate_like, _release, validate

COMPACT = spec.load_run(preset="compact")
RELEASED = Evaluation.model_construct(released=True)
HELD_BACK = Evaluation.model_construct(released=False)


class Echo:
    """A generator whose showers say only what was asked for."""

    def generate(self, energy_gev: np.ndarray, angle_rad: np.ndarray, *, seed: int) -> Showers:
        return Showers(np.zeros((len(energy_gev), 1, 1, 1), np.float32), energy_gev, angle_rad, "generated")


@pytest.mark.parametrize(
    ("held_back", "showers"), [(4000, 2000), (2500, 2000), (2000, 2000), (1500, 2000), (300, 2000), (7, 3)]
)
def test_generated_showers_have_the_energies_of_all_that_were_held_back(held_back: int, showers: int) -> None:
    """Also where source files go by energy: mean and range are those of the reference."""
    energy = np.linspace(5, 40, held_back, dtype=np.float32)
    reference = Showers(np.zeros((held_back, 1, 1, 1), np.float32), energy, energy / 40, "geant4")
    run = spec.load_run(preset="compact", overrides=[f"validation.showers={showers}"])
    generated, _ = _generate_like(reference, Echo(), run)
    assert len(generated) == showers
    step = 35 / (min(held_back, showers) - 1)
    wanted = np.linspace(5, 40, 5)
    np.testing.assert_allclose(np.quantile(generated.energy_gev, np.linspace(0, 1, 5)), wanted, atol=1.01 * step)
    np.testing.assert_array_equal(generated.angle_rad, generated.energy_gev / 40)
    assert len(np.unique(generated.energy_gev)) == min(held_back, showers)


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
