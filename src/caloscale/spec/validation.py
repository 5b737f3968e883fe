"""How a generator is judged and whether it is released."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from caloscale.spec.block import Block

Observable = Literal[
    "longitudinalProfile",
    "transverseProfileX",
    "transverseProfileY",
    "showerMaximum",
    "ecalSum",
    "samplingFraction",
    "cellSpectrum",
    "hits",
    "sparsity",
    "measuredAngle",
    "momentsLongitudinal",
    "momentsTransverse",
    "radius90",
]
"""Observables that have a separation from Geant4 and a floor; a gate names one of them."""


class Gate(Block):
    """A limit that a generator must keep to be released."""

    observable: Observable
    """The observable whose separation from Monte Carlo is limited."""
    max_floors: float = Field(gt=0)
    """Largest allowed separation, in units of the floor: the separation of two halves of the Monte Carlo."""


class Validation(Block):
    """Comparison of generated showers with held-back Monte Carlo showers."""

    showers: int = Field(2000, ge=1)
    """Showers that are generated for the comparison."""
    reference_showers: int = Field(10_000, ge=1)
    """Held-back Monte Carlo showers that they are compared with, at most, drawn at random from all. They are held in
    memory: 4 bytes a cell, so 2.6 GB for 10,000 of 51x51x25 cells."""
    energy_bins: int = Field(3, ge=1, le=20)
    """Ranges of primary energy, of equal width, in which observables are compared."""
    bootstraps: int = Field(200, ge=10)
    """Resamplings behind each statistical uncertainty."""
    seed: int = Field(1, ge=0)
    """Seed of the generated showers, the halves and the resamplings."""
    hits_threshold_gev: float = Field(3e-4, gt=0)
    """A cell with more deposited energy than this is a hit, GeV (published: 3e-4, about two minimum-ionising
    particles in 0.5 mm of silicon, whatever the size of the cell)."""
    gates: tuple[Gate, ...] = ()
    """Limits; the model artifact is released only if all are kept. None: always released."""
