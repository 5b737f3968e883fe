"""Files of showers that are judged as a run is."""

from contextlib import nullcontext
from pathlib import Path

import pytest

import caloscale
from caloscale.errors import InputError
from caloscale.stages import comparison, validation
from tests.physics.conftest import DATA, make_showers


def test_a_file_of_the_primaries_of_the_simulation_is_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniform, as a generator makes them, where the faint held-out showers, here below 20 GeV, are left out."""
    run = caloscale.load_run(preset="compact", overrides=["validation.bootstraps=10", "validation.energyBins=1"])
    run = run.model_copy(update={"data": DATA})
    reference, training = (one[one.energy_gev > 20] for one in (make_showers(200, 1), make_showers(200, 2)))
    monkeypatch.setattr(validation, "monte_carlo", lambda *_: (reference, training))
    monkeypatch.setattr(comparison, "open_shards", nullcontext)
    made = make_showers(200, 3)
    caloscale.write_showers(made, path := tmp_path / "made.npz")
    evaluation, _ = comparison.judge_file(path, run, tmp_path)
    assert "compared at other primaries" in evaluation.warnings[-1]
    caloscale.write_showers(made[made.energy_gev < 20], path)
    with pytest.raises(InputError, match=r"made\.npz: has primaries of another distribution"):
        comparison.judge_file(path, run, tmp_path)
