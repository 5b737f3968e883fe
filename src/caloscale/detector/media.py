"""The calorimeter as an effective medium, for parametrised showers (hep-ex/0001020, appendix A)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from caloscale.spec import Geometry

SCATTERING_ENERGY_MEV = 21.2
"""E_s of multiple scattering, which relates Molière radius, radiation length and critical energy."""


@dataclass(frozen=True)
class Material:
    """A pure material (Review of Particle Physics, atomic and nuclear properties)."""

    z: float
    a: float
    """Atomic mass, g/mol."""
    density: float
    """g/cm^3."""
    radiation_length: float
    """g/cm^2."""
    minimum_ionisation: float
    """Least mean energy loss, MeV cm^2/g."""

    @property
    def critical_energy_mev(self) -> float:
        """2.66 (X0 Z/A)^1.1 MeV, X0 in g/cm^2."""
        return float(2.66 * (self.radiation_length * self.z / self.a) ** 1.1)

    def radiation_lengths(self, thick_mm: float) -> float:
        """A thickness in radiation lengths."""
        return thick_mm / 10 * self.density / self.radiation_length


MATERIALS = {
    "tungsten": Material(z=74, a=183.84, density=19.3, radiation_length=6.76, minimum_ionisation=1.145),
    "silicon": Material(z=14, a=28.0855, density=2.329, radiation_length=21.82, minimum_ionisation=1.664),
}


@dataclass(frozen=True)
class Medium:
    """Absorber and silicon of a layer, mixed; the gap thins it."""

    z: float
    critical_energy_mev: float
    moliere_radius_mm: float
    sampling_frequency: float
    """Layers per radiation length, F_S of the paper."""
    e_over_mip: float
    """Response to the shower over that to a minimum ionising particle, e-hat of the paper."""
    visible_fraction: float
    """Part of the deposited energy that is deposited in the silicon."""

    MEASURED_E_OVER_MIP: ClassVar[float] = 0.81
    """e/mip that gives the response of this project's Geant4 (docs/simulation.md). The paper's rule of thumb,
    `e_over_mip`, gives 0.70 for tungsten and silicon; it stays in the formulas of the shapes, fitted with it."""

    @classmethod
    def of_layer(cls, geometry: Geometry, absorber_mm: float) -> Medium:
        """The medium of a layer with this absorber."""
        absorber, silicon = MATERIALS[geometry.absorber], MATERIALS["silicon"]
        parts = ((absorber, absorber_mm), (silicon, geometry.silicon_mm))
        mass = np.array([m.density * mm / 10 for m, mm in parts])  # g/cm^2
        weight = mass / mass.sum()
        per_x0 = weight / np.array([m.radiation_length for m, _ in parts])
        critical_mev = np.array([m.critical_energy_mev for m, _ in parts])
        moliere = SCATTERING_ENERGY_MEV / (per_x0 * critical_mev).sum()  # g/cm^2
        density = mass.sum() / ((absorber_mm + geometry.silicon_mm + geometry.gap_mm) / 10)
        ionisation = mass * np.array([m.minimum_ionisation for m, _ in parts])
        e_over_mip = 1 / (1 + 0.007 * (absorber.z - silicon.z))
        return cls(
            z=float(weight @ [m.z for m, _ in parts]),
            critical_energy_mev=float((per_x0 * critical_mev).sum() / per_x0.sum()),
            moliere_radius_mm=float(10 * moliere / density),
            sampling_frequency=float(1 / (mass.sum() * per_x0.sum())),
            e_over_mip=e_over_mip,
            visible_fraction=float(cls.MEASURED_E_OVER_MIP * ionisation[1] / ionisation.sum()),
        )


def layer_media(geometry: Geometry) -> list[Medium]:
    """The medium of each layer, front to back."""
    return [Medium.of_layer(geometry, absorber_mm) for absorber_mm in geometry.absorber_mm]


def layer_edges_x0(geometry: Geometry) -> NDArray[np.float64]:
    """Depth of the layers' edges in radiation lengths at normal incidence, (layers + 1,)."""
    absorber, silicon = MATERIALS[geometry.absorber], MATERIALS["silicon"]
    thick = [
        absorber.radiation_lengths(mm) + silicon.radiation_lengths(geometry.silicon_mm) for mm in geometry.absorber_mm
    ]
    return np.concatenate([[0.0], np.cumsum(thick)])


def layer_edges_mm(geometry: Geometry) -> NDArray[np.float64]:
    """Depth of the layers' edges behind the front face, mm, (layers + 1,): thick absorbers make thick layers."""
    thick = [absorber_mm + geometry.silicon_mm + geometry.gap_mm for absorber_mm in geometry.absorber_mm]
    return np.concatenate([[0.0], np.cumsum(thick)])
