"""Sampling of showers by the active layers: effective media (hep-ex/0001020, appendix A) and visible energy."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.geometry import absorber_mm, gap_mm
from caloscale.detector.materials import MATERIALS
from caloscale.spec.data import Geometry

SCATTERING_ENERGY_MEV = 21.2
"""E_s of multiple scattering, which relates Molière radius, radiation length and critical energy."""

SAMPLING = {
    ("tungsten", "silicon"): (0.81, 0.172),
    ("lead", "silicon"): (0.825, 0.155),
    ("copper", "silicon"): (0.975, 0.201),
    ("iron", "silicon"): (0.98, 0.205),
    ("steel", "silicon"): (0.98, 0.224),
    ("tungsten", "scintillator"): (0.71, 0.122),
    ("lead", "scintillator"): (0.695, 0.130),
    ("copper", "scintillator"): (0.875, 0.160),
    ("iron", "scintillator"): (0.89, 0.155),
    ("steel", "scintillator"): (0.885, 0.172),
}
"""By absorber and active medium: the response to electromagnetic showers over that to minimum-ionising particles, and
the sampling term a in sigma/E = a sqrt(GeV / E) of layers of 0.7 radiation lengths, both as the project's Geant4 gives
them for sensors of 0.5 mm silicon or 3 mm scintillator (docs/simulation-checks.md). The paper's rule of thumb for the
first, `Medium.e_over_mip`, gives 0.70 for tungsten and silicon; it stays in the formulas of the shapes, which were
fitted with it."""
_LAYER_X0 = 0.7


@dataclass(frozen=True)
class Medium:
    """Absorber and active medium of a layer, mixed; the gap reduces the density."""

    z: float
    critical_energy_mev: float
    moliere_radius_mm: float
    sampling_frequency: float
    """Layers per radiation length, F_S of the paper."""
    e_over_mip: float
    """Response to the shower over that to a minimum-ionising particle, e-hat of the paper."""
    visible_fraction: float
    """Fraction of the deposited energy that is deposited in the active medium."""

    @classmethod
    def of_layer(cls, geometry: Geometry, absorber_mm: float) -> "Medium":
        """The medium of a layer with this absorber."""
        absorber, active = MATERIALS[geometry.absorber], MATERIALS[geometry.active]
        parts = ((absorber, absorber_mm), (active, geometry.active_mm))
        mass = np.array([m.density * mm / 10 for m, mm in parts])  # g/cm^2
        weight = mass / mass.sum()
        per_x0 = weight / np.array([m.radiation_length for m, _ in parts])
        critical_mev = np.array([m.critical_energy_mev for m, _ in parts])
        moliere = SCATTERING_ENERGY_MEV / (per_x0 * critical_mev).sum()  # g/cm^2
        density = mass.sum() / ((absorber_mm + geometry.active_mm + gap_mm(geometry)) / 10)
        measured, _ = SAMPLING[geometry.absorber, geometry.active]
        return cls(
            z=float(weight @ [m.z for m, _ in parts]),
            critical_energy_mev=float((per_x0 * critical_mev).sum() / per_x0.sum()),
            moliere_radius_mm=float(10 * moliere / density),
            sampling_frequency=float(1 / (mass.sum() * per_x0.sum())),
            e_over_mip=1 / (1 + 0.007 * (absorber.z - active.z)),
            visible_fraction=measured * mip_fraction(geometry, absorber_mm),
        )


def mip_gev(geometry: Geometry) -> float:
    """Energy that a cell holds for a minimum-ionising particle in a sensor, GeV."""
    deposited_gev = MATERIALS[geometry.active].mip_mev_per_mm * geometry.active_mm * 1e-3
    return deposited_gev / calibration(geometry)


def calibration(geometry: Geometry) -> float:
    """Energy deposited in the sensors over that in the cells: 1, or the visible fraction where they are calibrated."""
    return visible_fraction(geometry) if geometry.calibrated else 1.0


def mip_fraction(geometry: Geometry, absorber_mm: float) -> float:
    """Fraction of its energy loss that a minimum-ionising particle deposits in the sensor of such a layer."""
    active = MATERIALS[geometry.active].mip_mev_per_mm * geometry.active_mm
    return active / (active + MATERIALS[geometry.absorber].mip_mev_per_mm * absorber_mm)


def visible_fraction(geometry: Geometry) -> float:
    """Fraction of an electromagnetic shower's energy that the front layers' sampling makes visible."""
    return Medium.of_layer(geometry, geometry.layers[0].absorber_mm).visible_fraction


def sampling_term(geometry: Geometry) -> float:
    """a in sigma/E = a sqrt(GeV / E) of the front layers: it grows as the root of the absorber's thickness."""
    _, term = SAMPLING[geometry.absorber, geometry.active]
    return term * math.sqrt(geometry.layers[0].absorber_mm / MATERIALS[geometry.absorber].x0_mm / _LAYER_X0)


def sampling_variance_gev(geometry: Geometry) -> NDArray[np.float64]:
    """Variance of the sampled energy of each layer per energy, GeV (layers,): sigma^2 = variance x E."""
    return sampling_term(geometry) ** 2 * np.array(absorber_mm(geometry)) / geometry.layers[0].absorber_mm
