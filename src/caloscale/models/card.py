"""What stands beside a trained generator: `model.json`."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from caloscale.spec.block import Block
from caloscale.spec.data import Geometry, Preprocessing, Range

CARD = "model.json"
GENERATOR = "generator.keras"
DISCRIMINATOR = "discriminator.keras"
UNTRAINED = "untrained"
"""Folder within the model's with the generator as it was before its first step."""


class ModelCard(Block):
    """What one must know of a generator to use it."""

    preset: str
    """The network."""
    shape: tuple[int, int, int]
    """Cells of a shower, after re-binning."""
    latent_size: int
    """Length of the generator's input."""
    preprocessing: Preprocessing
    """What network units mean."""
    geometry: Geometry
    """The detector, before re-binning."""
    energy_gev: Range
    """Primary energies that were trained on, GeV."""
    angle_deg: Range
    """Angles that were trained on, degrees."""
    source: str
    """Origin of the training showers: geant4, parametrised, generated or file."""
    document: dict[str, Any]
    """The run document."""
    versions: dict[str, str]
    """Versions of the software that trained it."""
    step: int = Field(ge=0)
    """Step of its weights."""
    epoch: int = Field(ge=0)
    """Epoch of its weights."""
    deviation: float
    """Its figure of merit on validation showers."""
    parameters: dict[str, int]
    """Trainable parameters of generator and discriminator."""
