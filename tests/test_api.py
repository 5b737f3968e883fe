"""The names that a notebook uses: these, typed and described, without TensorFlow until it is needed."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import caloscale
from caloscale.showers.arrays import Showers
from tests.physics.conftest import DATA, make_showers

NAMES = {"Generator", "evaluate", "load_run", "plan", "read_showers"}


def test_the_public_names_are_these() -> None:
    stub = ast.parse(Path(caloscale.__file__).with_suffix(".pyi").read_text())
    typed = {name.asname for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assert set(caloscale.__all__) == typed == NAMES
    for name in NAMES - {"Generator"}:
        function = getattr(caloscale, name)
        signature = inspect.signature(function)
        assert inspect.getdoc(function) and signature.return_annotation is not signature.empty
        assert all(p.annotation is not p.empty for p in signature.parameters.values())
    with pytest.raises(AttributeError, match="absent"):
        _ = caloscale.absent


def test_nothing_heavy_is_loaded_before_it_is_used() -> None:
    program = (
        "import sys, caloscale; print('numpy' in sys.modules)\n"
        "run = caloscale.load_run(preset='variable-angle', overrides=['hardware.accelerator=nvidia-tesla-v100'])\n"
        "chosen = caloscale.plan(run).chosen; print(chosen is not None and chosen.usd > 0)\n"
        "print({'tensorflow', 'threadpoolctl', 'sklearn', 'matplotlib'} & set(sys.modules) or 'none')"  # of extras
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", "none"]


def test_showers_come_in_the_cells_of_the_networks(tmp_path: Path) -> None:
    import h5py

    run = caloscale.load_run(preset="compact")
    cells = np.random.default_rng(1).random((3, *run.data.geometry.cells)).astype(np.float32)
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["ECAL"] = cells.swapaxes(1, 2) * 50  # stored in units of 20 MeV, with the inclined axis second
        file["energy"], file["theta"] = np.full(3, 10.0), np.full(3, np.pi / 2)
    showers = caloscale.read_showers(tmp_path / "own.h5", run, start=1)
    assert showers.cells_gev.shape == (2, *run.data.shape)
    np.testing.assert_allclose(showers.ecal_sum_gev, cells[1:].sum((1, 2, 3)), rtol=1e-5)


@pytest.mark.integration
def test_an_evaluation_decides_by_the_gates_of_the_run() -> None:
    auc = "quantity: classifierAuc, showers"
    gates = f"[{{{auc}: 1000, drop: true}}, {{{auc}: 200, tolerance: 0.9}}]"
    run = caloscale.load_run(
        preset="compact", overrides=[f"validation.gates={gates}", "validation.bootstraps=20", "validation.energyBins=1"]
    )
    run = run.model_copy(update={"data": DATA})
    reference, training = make_showers(300, 1), make_showers(300, 2)

    def decide(generated: Showers) -> str:
        return caloscale.evaluate(generated, reference=reference, training=training, run=run).decision

    assert decide(make_showers(600, 3)) in ("accepted", "undecided")
    assert decide(make_showers(600, 3, response=1.3)) == "rejected"
