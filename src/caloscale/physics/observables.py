"""What is measured on each shower. Plain numpy, one pass over the cells, in chunks that keep memory small.

The definitions follow the evaluation of the published 3DGAN (profiles, moments about the barycentre,
sampling fraction, hits above 3e-4 GeV, sparsity, longitudinal fractions R1-R3, measured angle) and of the
CaloChallenge (arXiv:2410.21611: cell spectrum, sparsity, shower shapes per layer).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from importlib import resources

import numpy as np
import yaml
from numpy.typing import NDArray

from caloscale.detector.angle import direction_of, measured_angle_rad
from caloscale.detector.axes import Axes, Floats
from caloscale.showers.arrays import Showers

CELLS_AT_ONCE = 2_000_000
"""Cells that are looked at in one chunk: 8 MB of cells, some 200 MB of working memory at worst."""
SPARSITY_FLOOR_GEV = 15.15e-6
"""Smallest threshold of the sparsity, GeV: the one of the CaloChallenge, 15.15 keV."""


def texts_of(kind: str) -> tuple[dict[str, str], dict[str, str]]:
    """Titles and definitions by name, for pages and reports. kind: observables, or quantities that gates limit."""
    file = resources.files("caloscale.physics").joinpath("texts.yaml")
    texts = yaml.safe_load(file.read_text(encoding="utf-8"))[kind]
    titles, definitions = ({name: text[part] for name, text in texts.items()} for part in ("title", "definition"))
    return titles, definitions


@dataclass(frozen=True)
class Cuts:
    """Thresholds and bins in cell energy, the same for all samples of a comparison, GeV.

    hits_gev: a cell above is a hit. sparsity_gev: a cell above is not empty.
    spectrum_edges_gev (K+1,): bins of the cell spectrum; what lies beyond the last edge is in the last bin.
    thresholds_gev (T,): thresholds of the curve of the sparsity.
    """

    hits_gev: float
    sparsity_gev: float
    spectrum_edges_gev: Floats
    thresholds_gev: Floats


@dataclass(frozen=True)
class Observed:
    """Observables of N showers; NaN where an empty shower has no value.

    further (N, F): the other columns of the table of primaries.
    energy_gev, angle_rad, ecal_sum_gev, weighted_sum_gev (layers weighted by their absorber): (N,).
    longitudinal (N, Z), transverse_x (N, X), transverse_y (N, Y): energy per layer, column, row, GeV; of a cylinder
    per depth, azimuth, radius.
    spectrum (N, K): cells per bin of cell energy. above (N, T): cells above each threshold.
    hits (N,), sparsity (N,): cells above the threshold of hits; part of the cells not above the threshold of sparsity.
    maximum_layer (N,): layer with the largest energy, 0 = front.
    angle_error_rad (N,): measured angle - true angle between the direction and the x axis, which is the angle to the
    face at azimuth 0.
    moments_z (N, 3): barycentre in X0, rms in X0, skewness. moments_x, moments_y (N, 3): mm from the entry, mm,
    skewness.
    fractions (N, 3): energy in the front, middle and back third of the layers.
    radius90_mm (N,): radius about the shower's axis that holds 90% of the energy (a Moliere-like radius).
    """

    energy_gev: Floats
    angle_rad: Floats
    ecal_sum_gev: Floats
    weighted_sum_gev: Floats
    longitudinal: Floats
    transverse_x: Floats
    transverse_y: Floats
    spectrum: Floats
    above: Floats
    hits: Floats
    sparsity: Floats
    maximum_layer: Floats
    angle_error_rad: Floats
    moments_z: Floats
    moments_x: Floats
    moments_y: Floats
    fractions: Floats
    radius90_mm: Floats
    further: Floats

    def __len__(self) -> int:
        return len(self.energy_gev)

    def __getitem__(self, index: slice | NDArray[np.generic]) -> "Observed":
        """The showers of a slice, a mask or an index array."""
        return Observed(**{f.name: getattr(self, f.name)[index] for f in fields(self)})

    @property
    def sampling_fraction(self) -> Floats:
        """Visible energy per energy of the primary (N,)."""
        return self.ecal_sum_gev / self.energy_gev

    @property
    def weighted_fraction(self) -> Floats:
        """Sum with layers weighted by their absorber, per energy of the primary (N,)."""
        return self.weighted_sum_gev / self.energy_gev

    @property
    def primaries(self) -> Floats:
        """Energy in GeV and angle in rad of the primaries (N, 2)."""
        return np.column_stack([self.energy_gev, self.angle_rad])

    @property
    def empty(self) -> NDArray[np.bool_]:
        """Showers without any energy (N,)."""
        return self.ecal_sum_gev <= 0


def concatenate(parts: Sequence[Observed]) -> Observed:
    """The observables of several samples as one."""
    return Observed(**{f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Observed)})


def observe(showers: Showers, axes: Axes, cuts: Cuts) -> Observed:
    """Measure all observables of re-binned showers (N, X, Y, Z) in GeV; cells are finite and not negative."""
    return concatenate([_observe_chunk(chunk, axes, cuts) for chunk in chunks(showers)])


def chunks(showers: Showers) -> Iterator[Showers]:
    """The showers in chunks of about `CELLS_AT_ONCE` cells, at least one chunk."""
    size = max(1, CELLS_AT_ONCE // max(1, int(np.prod(showers.cells_gev.shape[1:]))))
    for start in range(0, max(len(showers), 1), size):
        yield showers[start : start + size]


def choose_cuts(samples: Iterable[Showers], *, hits_gev: float, threshold_gev: float) -> Cuts:
    """Thresholds, and ten bins per decade from the lowest threshold to the largest cell of Monte Carlo samples."""
    lowest = max(threshold_gev, SPARSITY_FLOOR_GEV)
    largest = max((float(s.cells_gev.max(initial=0.0)) for s in samples), default=0.0)
    decades = np.log10(max(largest, 10 * lowest) / lowest)
    edges = lowest * 10 ** (np.arange(int(np.ceil(decades * 10)) + 1) / 10)
    thresholds = np.geomspace(lowest, max(1e-2, 10 * lowest), 25)
    return Cuts(hits_gev=hits_gev, sparsity_gev=lowest, spectrum_edges_gev=edges, thresholds_gev=thresholds)


def _observe_chunk(showers: Showers, axes: Axes, cuts: Cuts) -> Observed:
    cells = showers.cells_gev
    primaries = {name: column.astype(np.float64) for name, column in showers.primaries.items()}
    energy, angle = primaries["energy_gev"], primaries["angle_rad"]
    along_xz = cells.sum(axis=2, dtype=np.float64)
    longitudinal, transverse_x = along_xz.sum(axis=1), along_xz.sum(axis=2)
    transverse_y = cells.sum(axis=(1, 3), dtype=np.float64)
    total = longitudinal.sum(axis=1)
    empty = total <= 0
    shower, *where = np.nonzero(cells)
    values = cells[cells != 0].astype(np.float64)
    count = len(showers)
    across = _transverse_moments(cells, (transverse_x, transverse_y), axes)
    moments = [profile_moments(longitudinal, axes.depth_x0), *across]
    measured = measured_angle_rad(cells, axes.geometry, axes.rebin).astype(np.float64)
    to_x_axis = np.arccos(direction_of(primaries)[:, 0]) if "azimuth_rad" in primaries else angle
    sparsity = 1 - _count_per_shower(shower[values > cuts.sparsity_gev], count) / np.prod(axes.shape)
    return Observed(
        energy_gev=energy,
        angle_rad=angle,
        ecal_sum_gev=total,
        weighted_sum_gev=longitudinal @ axes.layer_weight,
        longitudinal=longitudinal,
        transverse_x=transverse_x,
        transverse_y=transverse_y,
        spectrum=_spectrum(shower, values, count, cuts.spectrum_edges_gev),
        above=_above(shower, values, count, cuts.thresholds_gev),
        hits=_count_per_shower(shower[values > cuts.hits_gev], count),
        sparsity=sparsity,
        maximum_layer=np.where(empty, np.nan, longitudinal.argmax(axis=1)),
        angle_error_rad=np.where(empty, np.nan, measured - to_x_axis),
        moments_z=moments[0],
        moments_x=_from_entry(moments[1], primaries.get("entry_x_mm")),
        moments_y=_from_entry(moments[2], primaries.get("entry_y_mm")),
        fractions=_thirds(longitudinal, total),
        radius90_mm=_radius(shower, where, values, primaries, axes, moments),
        further=np.column_stack([np.empty((count, 0)), *(primaries[name] for name in showers.further)]),
    )


def _from_entry(moments: Floats, entry_mm: Floats | None) -> Floats:
    """Moments whose barycentre is counted from the entry."""
    return moments if entry_mm is None else moments - entry_mm[:, None] * [1.0, 0.0, 0.0]


def _transverse_moments(cells: NDArray[np.float32], profiles: tuple[Floats, Floats], axes: Axes) -> list[Floats]:
    """Moments in x and y, mm: of the profiles of a grid; of a cylinder, whose axes are others, of all cells across."""
    if axes.geometry.cell_shape == "grid":
        return [profile_moments(profile, along) for profile, along in zip(profiles, (axes.first, axes.second))]
    across = cells.sum(axis=3, dtype=np.float64).reshape(len(cells), -1)
    return [profile_moments(across, positions.reshape(-1)) for positions in (axes.x_mm, axes.y_mm)]


def profile_moments(profiles: Floats, positions: Floats) -> Floats:
    """Moments of profiles (N, B) about their barycentre, at positions (B,): (N, 3).

    Barycentre, rms, and skewness (0 for a profile without width). NaN for an empty profile.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        share = profiles / profiles.sum(axis=1)[:, None]
        mean = share @ positions
        from_mean = positions - mean[:, None]
        variance, third = (np.einsum("nb,nb->n", share, from_mean**power) for power in (2, 3))
        rms = np.sqrt(variance)
        skewness = np.where(variance > 0, third / rms**3, np.where(np.isnan(variance), np.nan, 0.0))
    return np.stack([mean, rms, skewness], axis=1)


def _thirds(longitudinal: Floats, total: Floats) -> Floats:
    """R1, R2, R3: energy in the front, middle and back third of the layers over the whole."""
    parts = np.array_split(longitudinal, 3, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.stack([part.sum(axis=1) for part in parts], axis=1) / total[:, None]


def _count_per_shower(shower: NDArray[np.intp], count: int) -> Floats:
    return np.bincount(shower, minlength=count).astype(np.float64)


def _spectrum(shower: NDArray[np.intp], values: Floats, count: int, edges: Floats) -> Floats:
    """Cells per bin [edge, next edge) for each shower; float32 rounding at the lowest edge counts as inside."""
    bins = len(edges) - 1
    index = np.searchsorted(edges, values * (1 + 1e-5), side="right") - 1
    inside = index >= 0
    flat = shower[inside] * bins + np.minimum(index[inside], bins - 1)
    return np.bincount(flat, minlength=count * bins).reshape(count, bins).astype(np.float64)


def _above(shower: NDArray[np.intp], values: Floats, count: int, thresholds: Floats) -> Floats:
    """Cells above each (ascending) threshold, for each shower (N, T)."""
    passed = np.searchsorted(thresholds, values, side="left")
    width = len(thresholds) + 1
    exactly = np.bincount(shower * width + passed, minlength=count * width).reshape(count, width)
    return exactly[:, ::-1].cumsum(axis=1)[:, ::-1][:, 1:].astype(np.float64)


def _radius(
    shower: NDArray[np.intp],
    where: Sequence[NDArray[np.intp]],
    values: Floats,
    primaries: Mapping[str, Floats],
    axes: Axes,
    moments: Sequence[Floats],
) -> Floats:
    """Radius about the axis, through the barycentre in the direction of the primary, that holds nine tenths of the
    energy, mm (N,). Interpolated in rings of a quarter of a cell, whose middles are its multiples."""
    angle = primaries["angle_rad"]
    count = len(angle)
    _, x_mean, y_mean = (m[:, 0] for m in moments)
    depth = np.bincount(shower, weights=values * axes.z_mm[where[2]], minlength=count)
    total = np.bincount(shower, weights=values, minlength=count)
    with np.errstate(divide="ignore", invalid="ignore"):
        z_mean = depth / total
    at = where[0], where[1]
    dx, dy = axes.x_mm[at] - x_mean[shower], axes.y_mm[at] - y_mean[shower]
    dz = axes.z_mm[where[2]] - z_mean[shower]
    if "azimuth_rad" in primaries:  # turned about z, so that the direction is (cos a, 0, sin a)
        cosine, sine = (function(primaries["azimuth_rad"])[shower] for function in (np.cos, np.sin))
        dx, dy = dx * cosine + dy * sine, dy * cosine - dx * sine
    across = dx * np.sin(angle)[shower] - dz * np.cos(angle)[shower]
    step = axes.geometry.cell_mm * min(axes.rebin[:2]) / 4
    ring = (np.hypot(across, dy) / step + 0.5).astype(np.intp)
    rings = int(ring.max(initial=0)) + 1
    energy = np.bincount(shower * rings + ring, weights=values, minlength=count * rings).reshape(count, rings)
    inside = energy.cumsum(axis=1)
    wanted = 0.9 * total
    first = (inside < wanted[:, None]).sum(axis=1).clip(max=rings - 1)
    rows = np.arange(count)
    below = inside[rows, first] - energy[rows, first]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = (wanted - below) / energy[rows, first]
    return np.where(total > 0, np.maximum(first + part - 0.5, 0) * step, np.nan)
