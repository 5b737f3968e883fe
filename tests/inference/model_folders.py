"""Model folders as a training leaves them, with fresh weights."""

from pathlib import Path

import pytest
import tensorflow as tf

from caloscale.models import build
from caloscale.models.card import ModelCard
from caloscale.spec import load_run

GEOMETRY = (
    "data.geometry.cells=[5, 4, 3]",
    "data.geometry.layers=[{count: 3, absorberMm: 4}]",
    "data.geometry.depthMm=30",
    "data.preprocessing.rebin=[1, 1, 1]",
)
COMPACT = (*GEOMETRY, "model.latentSize=6")
"""A compact network of 5 x 4 x 3 cells."""
FLOW = (*GEOMETRY, "model.settings.layerSteps=2")
"""A flow of so many cells. Graphs of more steps repeat the same operations."""
CYLINDER = (*FLOW, "data.geometry.layersPerCell=1")
"""A network of a preset of a cylinder, of so many cells."""


_SHARED: dict[tuple[str, tuple[str, ...]], Path] = {}


def shared_model(temporary: pytest.TempPathFactory, preset: str, overrides: tuple[str, ...]) -> Path:
    """A model folder that all tests share, with what was exported in it; nobody changes it."""
    if (preset, overrides) not in _SHARED:
        _SHARED[preset, overrides] = make_model(temporary.mktemp(preset) / "model", preset, overrides)
    return _SHARED[preset, overrides]


def make_model(path: Path, preset: str, overrides: tuple[str, ...]) -> Path:
    """Write a model folder. Of the untrained flows of 12 seeds one has a cell whose rounding exceeds the tolerance of
    the tests: weights are the same each time."""
    run = load_run(preset=preset, overrides=overrides)
    tf.keras.utils.set_random_seed(1)
    path.mkdir(parents=True)
    build(run.model, run.data)["generator"].save(str(path / "generator.keras"))
    card = ModelCard.of(run, source="geant4", versions={}, parameters={}, step=1, epoch=1, deviation=0.1)
    (path / "model.json").write_text(card.model_dump_json(by_alias=True))
    return path
