"""The materials of a calorimeter: one table for geometry, networks and both simulations."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Material:
    """A material; its constants are those of the Particle Data Group."""

    z: float
    """Atomic number; of a compound, the mean weighted by mass."""
    a: float
    """Atomic mass, g/mol; of a compound, the value that gives its mean Z/A with ``z``."""
    density: float
    """g/cm^3."""
    radiation_length: float
    """g/cm^2."""
    minimum_ionisation: float
    """Least mean energy loss, MeV cm^2/g."""
    elements: tuple[int, ...]
    """Atomic numbers of the elements in it."""
    geant4: str
    """Name in Geant4's database of materials (NIST), which has the same densities."""

    @property
    def x0_mm(self) -> float:
        """Radiation length, mm."""
        return 10 * self.radiation_length / self.density

    @property
    def critical_energy_mev(self) -> float:
        """2.66 (X0 Z/A)^1.1 MeV, X0 in g/cm^2 (hep-ex/0001020)."""
        return float(2.66 * (self.radiation_length * self.z / self.a) ** 1.1)

    @property
    def mip_mev_per_mm(self) -> float:
        """Energy loss of a minimum-ionising particle, MeV/mm."""
        return self.minimum_ionisation * self.density / 10

    def radiation_lengths(self, thick_mm: float) -> float:
        """A thickness in radiation lengths."""
        return thick_mm / 10 * self.density / self.radiation_length


MATERIALS = {
    "tungsten": Material(74, 183.84, 19.3, 6.76, 1.145, (74,), "G4_W"),
    "lead": Material(82, 207.2, 11.35, 6.37, 1.122, (82,), "G4_Pb"),
    "iron": Material(26, 55.845, 7.874, 13.84, 1.451, (26,), "G4_Fe"),
    "copper": Material(29, 63.546, 8.96, 12.86, 1.403, (29,), "G4_Cu"),
    # 74 atoms of iron, 18 of chromium, 8 of nickel: mass fractions 0.746, 0.169, 0.085.
    "steel": Material(25.83, 55.445, 8.0, 13.90, 1.453, (24, 26, 28), "G4_STAINLESS-STEEL"),
    "silicon": Material(14, 28.0855, 2.329, 21.82, 1.664, (14,), "G4_Si"),
    # C8H8: mass fractions 0.9226 of carbon, 0.0774 of hydrogen; Z/A = 0.53768.
    "scintillator": Material(5.613, 10.439, 1.06, 43.79, 1.936, (1, 6), "G4_POLYSTYRENE"),
}
"""By name in ``data.geometry``. Sources: Particle Data Group, Review of Particle Physics 2024, Atomic and nuclear
properties of materials (https://pdg.lbl.gov/AtomicNuclearProperties); steel: Geant4's G4_STAINLESS-STEEL, its constants
weighted by mass from those of its elements (1/X0 = sum of w/X0); scintillator: polystyrene.

Another material needs its entry here, its name in `spec.data.Geometry`, its e/mip in `sampling` and, for Geant4, tables
for its elements (`simulation.tables`: xpecgen and ompmc have all up to uranium)."""
