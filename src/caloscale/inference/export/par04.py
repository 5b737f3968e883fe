"""A file for Geant4's example Par04 (examples/extended/parameterisations/Par04), in its mode VAE.

Source: Geant4 11.4.0, Par04OnnxInference.cc, Par04InferenceSetup.cc, Par04MLFastSimModel.cc.
- One input (1, n + 4): n normal numbers of Geant4's engine, E / 1024 GeV, theta / 90 degrees, 0, 1.
- Output: deposits over the energy of the primary, flat: radius outermost, azimuth, depth innermost.
- Par04 puts each deposit in the middle of a cell of a cylindrical mesh around the direction of the particle, which
  begins where the particle enters. Numbers and sizes of the mesh's cells are set in the macro.

Cells of a cylinder are those of the mesh. Cells of a regular grid lie behind a flat face: the export puts the energy
of each into the mesh cell that holds its middle, by a table for each degree of theta. Energies are exact; the README
and the metadata say how far positions move. Mode CaloDiT-2 draws its noise in the graph, so that Geant4's seeds would
not decide.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.geometry import absorber_mm, aim_depth_mm, sensor_depth_mm, transverse_mm
from caloscale.detector.materials import MATERIALS
from caloscale.errors import InputError
from caloscale.inference.export.target import Target, clamp, first_particle, text_of
from caloscale.inference.runtime import runtime_of
from caloscale.models.card import ModelCard
from caloscale.showers.primaries import Floats
from caloscale.spec.data import HADRONS

if TYPE_CHECKING:
    from caloscale.inference.generator import Generator

ENERGY_GEV, THETA_DEG = 1024.0, 90.0
"""fMaxEnergy and fMaxAngle of Par04InferenceSetup: no command changes them."""
CONDITIONS = 4
MOST_CELLS = 2_000_000
"""Cells of a mesh: Par04 computes the position of each for each shower."""
_SAME_CELLS = """\
- Par04's mesh and the generator's cells are the same cylinder around the particle. The generator was trained with
  perpendicular particles: at another angle Par04 places the same shower along the direction."""
_OTHER_DEPTHS = """
  Its layers have unequal distances and the mesh's cells one depth: each layer's energy goes to the cell that holds its
  middle, so that energies are exact and positions move by {:.1f} mm in the mean and {:.1f} mm at most."""
_OTHER_CELLS = """\
- Par04's mesh is a cylinder around the particle, the generator's cells are a grid behind a flat face. Each cell's
  energy goes to the mesh cell that holds its middle: energies are exact, positions move by {:.1f} mm in the
  mean and {:.1f} mm at most. Between the angles of the tables, a degree apart, they move by half a degree more.
  At inclined incidence, cells at the edge of the window lie in front of the mesh: they go to its first depth."""


class Mesh(NamedTuple):
    """Par04's cylindrical mesh."""

    cells: tuple[int, int, int]
    """Along radius, azimuth, depth."""
    rho_mm: float
    """Size along the radius."""
    z_mm: float
    """Size along the depth."""

    def locate(self, positions_mm: NDArray[np.float64], layer: NDArray[np.intp]) -> NDArray[np.intp]:
        """Number of the cell that holds each position (..., 3) in the frame of the particle; outside: the nearest.

        Positions on the border of the first and the last azimuth go to both, by the parity of their layer.
        """
        u, v, w = np.moveaxis(positions_mm, -1, 0)
        along = self.cells[1] / (2 * math.pi)
        azimuth = np.floor((np.arctan2(v, u) + math.pi) * along)
        azimuth = np.where((np.abs(v) < 1e-9) & (u < 0), np.where(layer % 2, self.cells[1] - 1, 0), azimuth)
        numbers = (np.floor(np.hypot(u, v) / self.rho_mm), azimuth, np.floor(w / self.z_mm))
        clipped = [np.clip(one, 0, count - 1).astype(np.intp) for one, count in zip(numbers, self.cells)]
        return np.ravel_multi_index(tuple(clipped), self.cells)

    def positions_mm(self) -> NDArray[np.float64]:
        """The middle of each cell (cells, 3), in the frame of the particle, as Par04InferenceSetup::GetPositions."""
        rho, azimuth, depth = np.meshgrid(*(np.arange(count) + 0.5 for count in self.cells), indexing="ij")
        phi = azimuth * 2 * math.pi / self.cells[1] - math.pi
        rho = rho * self.rho_mm
        return np.stack([rho * np.cos(phi), rho * np.sin(phi), depth * self.z_mm], axis=-1).reshape(-1, 3)


class Par04(Target):
    """Mode VAE of Par04, computed by Par04OnnxInference."""

    name, program = "par04", "Par04"
    units_per_gev = 1000.0

    def __init__(self, card: ModelCard, noise_size: int) -> None:
        if first_particle(card) in HADRONS:
            problem = "is no particle for which Par04 calls the generator: electrons, positrons and photons"
            remedy = "use --target onnx or ddml"
            raise InputError(problem, field="data.particle", value=card.particle_text, remedy=remedy)
        super().__init__(card, noise_size)
        self._cell_mm = [card.geometry.cell_mm * factor for factor in card.preprocessing.rebin[:2]]
        depths = sensor_depth_mm(card.geometry, card.preprocessing.rebin[2])
        self._layer_mm = float(np.diff(depths).min()) if len(depths) > 1 else card.geometry.depth_mm
        least, most = card.angle_deg
        self._thetas_deg = np.linspace(least, most, math.ceil(most - least) + 1)
        if math.prod(self.mesh.cells) > MOST_CELLS:
            field, rebin = "data.preprocessing.rebin", list(card.preprocessing.rebin)
            problem = f"needs a mesh of {math.prod(self.mesh.cells)} cells in Par04, {MOST_CELLS} are supported"
            remedy = f"train with larger cells ({field}), or use --target onnx"
            raise InputError(problem, field=field, value=rebin, remedy=remedy)

    @cached_property
    def mesh(self) -> Mesh:
        """The cells of a cylinder; those in depth are as many as its thinnest layer needs. Of a grid, a mesh for all
        angles: half a cell along the radius, a cell of arc within the window, a layer in depth."""
        geometry, (x, y) = self.card.geometry, self._cell_mm
        if geometry.cell_shape == "cylinder":
            azimuths, radii, depths = self.card.shape
            z_mm = round(self._layer_mm, 6)
            last_mm = sensor_depth_mm(geometry, self.card.preprocessing.rebin[2])[-1]
            return Mesh((radii, azimuths, max(depths, int(last_mm / z_mm) + 1)), round(y, 6), z_mm)
        radius = deepest = 0.0
        for theta_deg in self._thetas_deg:
            positions = self.positions_mm(theta_deg)
            radius = max(radius, float(np.hypot(positions[..., 0], positions[..., 1]).max()))
            deepest = max(deepest, float(positions[..., 2].max()))
        cell = min(x, y)
        rho_mm, z_mm = round(cell / 2, 6), round(self._layer_mm, 6)
        half_window_mm = max(geometry.cells[0], geometry.cells[1]) * geometry.cell_mm / 2
        azimuths = math.ceil(2 * math.pi * half_window_mm / cell) | 1  # odd: no border at azimuth 0
        return Mesh((int(radius / rho_mm) + 1, azimuths, int(deepest / z_mm) + 1), rho_mm, z_mm)

    def positions_mm(self, theta_deg: float) -> NDArray[np.float64]:
        """The middle of each cell (X, Y, Z, 3) in Par04's frame of a particle: origin where it enters, z its direction,
        x along growing theta, y along growing azimuth.

        The face is parallel to the beam, as at the middle of Par04's barrel, and x of the grid is the beam's direction.
        """
        geometry, rebin = self.card.geometry, self.card.preprocessing.rebin
        theta = math.radians(theta_deg)
        sin, cos = math.sin(theta), math.cos(theta)
        x_mm, y_mm = transverse_mm(geometry, self.card.shape, rebin)
        x_mm = x_mm + aim_depth_mm(geometry) * cos / sin  # from the window's axis to the point of entry
        depth_mm = np.array(sensor_depth_mm(geometry, rebin[2]))
        x, y, depth = np.broadcast_arrays(x_mm[..., None], y_mm[..., None], depth_mm)
        return np.stack([depth * cos - x * sin, y, depth * sin + x * cos], axis=-1)

    @cached_property
    def _tables(self) -> NDArray[np.int32]:
        """Number of the mesh cell of each cell, (thetas, X Y Z)."""
        layer = np.broadcast_to(np.arange(self.card.shape[2]), self.card.shape)
        rows = [self.mesh.locate(self.positions_mm(theta), layer).reshape(-1) for theta in self._thetas_deg]
        return np.array(rows, np.int32)

    @cached_property
    def displacement_mm(self) -> tuple[float, float]:
        """How far the mesh moves a cell: mean and largest, mm, over all cells behind its front and all angles.

        At inclined incidence cells at the edge of the window lie in front of the mesh, which begins at the entry: their
        deposits go to its first depth.
        """
        middles, distances = self.mesh.positions_mm(), []
        for theta, row in zip(self._thetas_deg, self._tables):
            positions = self.positions_mm(theta).reshape(-1, 3)
            behind = positions[:, 2] >= 0
            distances.append(np.linalg.norm(middles[row[behind]] - positions[behind], axis=1))
        every = np.concatenate(distances)
        return float(every.mean()), float(every.max())

    def _row(self, theta_deg: float) -> int:
        return int(np.abs(self._thetas_deg - theta_deg).argmin())

    def graph(self, generator: Generator) -> Any:
        """From (1, n + 4) to (1, cells of the mesh), deposits over the primary's energy."""
        import tensorflow as tf

        traced, card, size = generator.graph(runtime_of(self.format)), self.card, self.noise_size
        tables, cells = self._tables, math.prod(self.mesh.cells)
        low, high = card.angle_deg
        step = (high - low) / max(1, len(tables) - 1) or 1.0

        def fractions(latent_and_conditions: Any) -> dict[str, Any]:
            energy_gev = latent_and_conditions[:, size] * ENERGY_GEV
            theta_deg = latent_and_conditions[:, size + 1] * THETA_DEG
            fixed = {name: tf.constant([value], tf.float32) for name, value in self.fixed.items()}
            primaries, _ = clamp({"energy_gev": energy_gev, "angle_rad": theta_deg * (math.pi / 180), **fixed}, card)
            shower = traced(latent_and_conditions[:, :size], *(primaries[name] for name in card.columns))
            shower = shower / tf.reshape(primaries["energy_gev"], (-1, 1, 1, 1))
            row = tf.cast(tf.round((tf.clip_by_value(theta_deg[0], low, high) - low) / step), tf.int32)
            index = tf.reshape(tf.gather(tf.constant(tables), row), (-1, 1))
            deposits = tf.tensor_scatter_nd_add(tf.zeros(cells), index, tf.reshape(shower, (-1,)))
            return {"fractions": tf.reshape(deposits, (1, cells))}

        signature = (tf.TensorSpec((1, size + CONDITIONS), tf.float32, name="latent_and_conditions"),)
        return tf.function(fractions, input_signature=signature, autograph=False)

    def inputs(self, noise: Floats, primary: Mapping[str, float]) -> list[Floats]:
        """genVector of Par04InferenceSetup::GetEnergies."""
        theta_deg = math.degrees(primary["angle_rad"])
        conditions = [primary["energy_gev"] / ENERGY_GEV, theta_deg / THETA_DEG, 0, 1]
        return [np.concatenate([noise, conditions]).astype(np.float32)[None]]

    def deposits(self, output: NDArray[np.floating], energy_gev: float) -> Floats:
        """MeV: aEnergies of Par04InferenceSetup::GetEnergies."""
        fractions = output.reshape(-1)[: math.prod(self.mesh.cells)].astype(np.float64)
        return (fractions * energy_gev * 1000).astype(np.float32)

    def expected(self, cells_gev: Floats, primary: Mapping[str, float]) -> Floats:
        """MeV in the cells of the mesh."""
        row = self._tables[self._row(math.degrees(primary["angle_rad"]))]
        mesh = np.bincount(row, cells_gev.reshape(-1).astype(np.float64) * 1000, math.prod(self.mesh.cells))
        return mesh.astype(np.float32)

    def primaries(self, count: int) -> dict[str, Floats]:
        """All energies, angles near those of the tables (between two, rounding decides on one), and the constants."""
        table = super().primaries(count)
        rows = [self._row(theta) for theta in np.degrees(table["angle_rad"])]
        step = self._thetas_deg[1] - self._thetas_deg[0] if len(self._thetas_deg) > 1 else 0
        # A third of a step towards the middle of the range stays nearest to the same table.
        inward = np.sign(np.mean(self._thetas_deg) - self._thetas_deg[rows]) * step / 3
        angle = np.radians(self._thetas_deg[rows] + inward).astype(np.float32)
        return {**table, "angle_rad": angle}

    def properties(self) -> dict[str, str]:
        """Input, output and mesh."""
        rho, phi, z = self.mesh.cells
        mean, largest = self.displacement_mm
        n = self.noise_size
        return {
            "caloscale.units.latent_and_conditions": f"(1, {n + CONDITIONS}): {n} normal random numbers, energy / "
            f"{ENERGY_GEV:g} GeV, theta / {THETA_DEG:g} degrees, two that are not used",
            "caloscale.units.fractions": f"deposits over the energy of the primary, (1, {rho * phi * z}): "
            f"radius {rho}, azimuth {phi}, depth {z}, depth innermost",
            "caloscale.mesh": f"radius {rho} x {self.mesh.rho_mm:g} mm, azimuth {phi}, "
            f"depth {z} x {self.mesh.z_mm:g} mm",
            "caloscale.displacementMm": f"mean {mean:.2f}, largest {largest:.2f}",
        }

    def usage(self, file: str) -> str:
        """A macro."""
        geometry = self.card.geometry
        absorbers = absorber_mm(geometry)
        thickness = sum(absorbers) / len(absorbers)
        layers = math.ceil(self.mesh.cells[2] * self.mesh.z_mm / (thickness + geometry.active_mm))
        low, high = self.card.energy_gev
        theta = math.radians(min(max(90.0, self.card.angle_deg[0]), self.card.angle_deg[1]))
        placed = _SAME_CELLS
        if geometry.cell_shape != "cylinder":
            placed = _OTHER_CELLS.format(*self.displacement_mm)
        elif self.mesh.cells[2] != self.card.shape[2]:
            placed += _OTHER_DEPTHS.format(*self.displacement_mm)
        return text_of(
            "par04",
            file=file,
            layers=layers,
            trained_layers=len(absorbers),
            geometry=geometry,
            absorber=MATERIALS[geometry.absorber].geant4,
            active=MATERIALS[geometry.active].geant4,
            thickness_mm=thickness,
            mesh=self.mesh,
            particle=first_particle(self.card),
            energy_gev=math.sqrt(low * high),
            sine=math.sin(theta),
            cosine=math.cos(theta),
            noise_size=self.noise_size,
            conditions=CONDITIONS,
            placed=placed,
        )
