"""The files of a data set: finding them, selecting their showers, splitting off those for validation."""

import glob
import json
import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.angle import measured_angle_rad
from caloscale.detector.geometry import absorber_mm
from caloscale.detector.sampling import Medium
from caloscale.errors import InputError, ShowerFileError, cut
from caloscale.showers.arrays import Showers
from caloscale.showers.files import read_showers
from caloscale.showers.hdf5 import layouts
from caloscale.showers.hdf5.reader import SURE, check_order, check_primaries, correlated_sigmas
from caloscale.showers.preprocessing import without_faint
from caloscale.showers.primaries import FURTHER, Table, turned
from caloscale.showers.tfrecord.manifest import Split, SplitMethod
from caloscale.spec.data import BEAM_LINE, PDG_CODES, Data, Range
from caloscale.storage.objects import download, is_remote

log = logging.getLogger(__name__)

HDF5_NAMES = ("*.h5", "*.hdf5")
_LARGEST_OF_ONE, _LARGEST_MEDIAN = 5.0, 1.5
"""Sum of cells over primary energy that one shower, and the median of a block of a file, can have. Energy conservation
allows 1; sums that are calibrated to the primary energy (CaloChallenge) fluctuate about 1."""
_UNUSUAL_FACTOR, _FEWEST = 4.0, 10
"""Factor by which the median may differ from the detector's sampling (leakage makes it smaller, nothing makes it
larger), and fewest showers that have a median."""
_INCLINED, _INCLINED_SHOWERS, _INCLINED_RAD = 0.6, 50, 0.05
"""Correlation that shows the axis of the inclination, and showers and range of angles that it takes: with 200 Geant4
showers of 60 to 120 degrees it is 0.98 along the axis and -0.09 across it."""
_LEANING_RAD = 0.2
"""Mean inclination from which showers of nearly one angle, within as much, show its axis."""
_UNRELATED, _WIDE_RAD = 0.2, 0.5
"""Correlation of cells with energies or angles below which these belong to other showers, and least range of angles."""
_NONE = 3.0
"""Standard deviations of a correlation with the energy that may be chance."""
_EMPTY, _EMPTY_SHOWERS = 0.1, 10
"""Part of a range that is reported when it is empty at an end, and number of showers that it would have if they were
uniform in the range."""
_SIMULATED_ONLY = ("data.front", "data.pairDistanceMm")
"""Fields that only a data block with source simulate may have."""
_ROUNDING, _ENERGY_ROUNDING = 1e-4, 1e-6
"""Degrees or mm, and a relative difference: float32 files must not lose the showers at the edge of a range, such as 90
degrees of [90, 90]."""


@dataclass(frozen=True)
class SurveyedFile:
    """A file of showers, without its cells."""

    path: Path
    layout: layouts.Layout
    source: layouts.Source
    primaries: Table
    outside: dict[str, NDArray[np.bool_]]
    """Showers that are not selected, each at the first reason (N,)."""
    states_unit: bool = True
    """Whether it says the unit of its cells."""

    def __len__(self) -> int:
        return len(self.primaries["energy_gev"])

    @property
    def is_selected(self) -> NDArray[np.bool_]:
        """Showers that the run configuration selects (N,)."""
        return ~np.logical_or.reduce(list(self.outside.values()))


@dataclass(frozen=True)
class FileSlice:
    """The showers of a file that belong to one split."""

    file: SurveyedFile
    split: Split
    members: NDArray[np.bool_]
    """Showers that belong to the split (N,)."""
    places: NDArray[np.intp]
    """Where each shower comes in the order of the data set (N,): the showers of a split are used in it."""

    @property
    def is_selected(self) -> NDArray[np.bool_]:
        """Those of them that the run configuration selects (N,)."""
        return self.members & self.file.is_selected

    @property
    def selected(self) -> int:
        """Number of showers that the run configuration selects."""
        return int(self.is_selected.sum())


def find_files(source: str | Path, scratch: Path) -> list[Path]:
    """The HDF5 files of a path, folder, glob or gs:// URI (downloaded into ``scratch``), sorted by name.

    Raises ShowerFileError when there is none, or a link leads to nothing; StorageError from a bucket. Of a path of this
    machine no showers are read, and ``scratch`` is not used.
    """
    text = str(source)
    path = Path(text)
    if is_remote(text):
        found = download(text, scratch, HDF5_NAMES)
    elif path.is_dir():
        found = hdf5_files(path)
    elif path.exists():
        return [path]
    else:
        found = [Path(name) for name in glob.glob(text, recursive=True)]  # noqa: PTH207 (absolute patterns)
    files = _distinct(found)
    if not files:
        remedy = f"give a file, a folder, a glob or gs://bucket/prefix of {' or '.join(HDF5_NAMES)} files"
        if not path.is_absolute() and not is_remote(text):
            remedy += f"; a relative path begins at {Path.cwd()}"
        raise ShowerFileError("no showers found", file=source, field="data.source", remedy=remedy)
    return files


def hdf5_files(folder: Path) -> list[Path]:
    """The HDF5 files of a folder, sorted by name; hidden files are left out. Raises ShowerFileError as `find_files`."""
    return _distinct(path for pattern in HDF5_NAMES for path in folder.glob(pattern))


def _distinct(paths: Iterable[Path]) -> list[Path]:
    """The files among paths, sorted by name: each once, whatever links lead to it, as a shower that is there twice
    would be trained on and held out."""
    files: dict[Path, Path] = {}
    for path in sorted(set(paths)):
        if path.name.startswith("."):
            continue
        if path.is_symlink() and not path.exists():
            problem = "is a link, and there is nothing where it leads"
            remedy = "bring the file that it leads to, or remove the link"
            raise ShowerFileError(problem, file=path, value=str(path.readlink()), remedy=remedy)
        if path.is_file():
            files.setdefault(path.resolve(), path)
    return list(files.values())


def survey_file(path: Path, data: Data) -> SurveyedFile:
    """Read the primaries of a file, not its cells; azimuths become those of the run configuration's range by whole
    turns. Raises ShowerFileError as `reader.read_showers` and `reader.check_order` do."""
    with layouts.open_layout(path) as opened:
        opened.check_shape(data.geometry)
        _check_origin(opened, data)
        primaries = opened.primaries(columns=tuple(dict.fromkeys((*data.spans, *opened.further))))
        layout, source, states_unit = opened.layout, opened.source, layouts.UNITS_ATTRIBUTE in opened.attributes
    check_primaries(path, layout, primaries)
    primaries = turned(primaries, data)
    return SurveyedFile(path, layout, source, primaries, outside_ranges(primaries, data), states_unit)


def read_of_run(path: str | Path, data: Data, *, start: int = 0, stop: int | None = None) -> Showers:
    """The showers ``start:stop`` of a file, re-binned as the networks of a run see them.

    Raises as `files.read_showers` and `reader.check_order`, and ShowerFileError for showers of another detector than
    the run's, of none of its primaries, or with unusual sums in an HDF5 file that does not state its unit.
    """
    unstated: list[str] = []

    def check(opened: layouts.OpenFile) -> None:
        _check_origin(opened, data)
        unstated.extend(() if layouts.UNITS_ATTRIBUTE in opened.attributes else (opened.cells_field,))

    rebin = data.preprocessing.rebin
    showers = read_showers(path, geometry=data.geometry, rebin=rebin, start=start, stop=stop, check=check)
    _check_detector(showers.detector, data, Path(path))  # of a plain file
    ratios = showers.ecal_sum_gev / showers.energy_gev
    if unstated and (unusual := _unusual(ratios[ratios > 0], data)) is not None:
        raise ShowerFileError(unusual[0], file=Path(path), field=unstated[0], remedy=unusual[1])
    if len(codes := np.unique(showers.further.get("pdg", np.empty(0)))):
        names = {code: particle for particle, code in PDG_CODES.items()}
        _check_particles(Path(path), "pdg", [str(names.get(code, code)) for code in codes.tolist()], data)
    return showers


def _check_origin(opened: layouts.OpenFile, data: Data) -> None:
    """Raise ShowerFileError for a file of another detector, beam line or primary than that of the data, of voxels in
    another order, and for a part of hybrid showers."""
    _check_detector(str(opened.attributes.get(layouts.DETECTOR_ATTRIBUTE, "")), data, opened.path)
    x, y, z = (cells // summed for cells, summed in zip(data.geometry.cells, opened.rebin))
    check_order(opened, (x, y, z))
    if (taken := opened.attributes.get(layouts.WITHOUT_GENERATED_ATTRIBUTE)) is not None:
        problem = "holds Geant4's part of hybrid showers: the particles that generators took over are not in its cells"
        remedy = "give whole showers: those of `caloscale simulate` without --with"
        raise opened.error(problem, f"attribute {layouts.WITHOUT_GENERATED_ATTRIBUTE}", taken, remedy)
    field = "pdg" if "pdg" in opened.further else f"attribute {layouts.PARTICLE_ATTRIBUTE}"
    _check_particles(opened.path, field, opened.particles, data)


def _check_particles(path: Path, field: str, particles: Sequence[str], data: Data) -> None:
    """Raise ShowerFileError where none of these primaries of a file is one of the data."""
    if not set(particles) & set(data.particles):
        found = ", ".join(particles)
        problem = f"holds showers of {found}, the run configuration is one of {data.particle_text}"
        remedy = f"set data.particle to {found}, give other files, or write the attribute {layouts.PARTICLE_ATTRIBUTE} "
        remedy += "into a file without its primary"
        raise ShowerFileError(problem, file=path, field=field, value=found, remedy=remedy)


def origin_attributes(data: Data) -> dict[str, str]:
    """The attributes of a file that state which primaries its showers are of, in which cells of which detector."""
    return {
        layouts.PARTICLE_ATTRIBUTE: data.particle_text,
        layouts.CELL_SHAPE_ATTRIBUTE: data.geometry.cell_shape,
        layouts.DETECTOR_ATTRIBUTE: json.dumps(detector_of(data)),
    }


def detector_of(data: Data) -> dict[str, Any]:
    """The detector before re-binning and the beam line of simulated showers, by field of the data block, as JSON values
    (lengths in mm): without ``calibrated``, which a user's files may be later, and with equal layers as one group."""
    geometry = data.geometry.model_dump(mode="json", by_alias=True, exclude={"calibrated"})
    groups = [(len(list(layers)), mm) for mm, layers in groupby(absorber_mm(data.geometry))]
    geometry["layers"] = [{"count": count, "absorberMm": mm} for count, mm in groups]
    beam_line = data.model_dump(mode="json", by_alias=True, include=set(BEAM_LINE))
    fields = {f"geometry.{name}": value for name, value in geometry.items()} | beam_line
    return {f"data.{name}": value for name, value in fields.items()}


def _check_detector(detector: str, data: Data, file: Path | None) -> None:
    """Raise ShowerFileError for showers of a simulation of another detector or beam line than that of the data."""
    of_file = json.loads(detector or "{}")
    for field, wanted in detector_of(data).items():
        found = of_file.get(field, wanted)  # a field that is newer than the file
        if found != wanted:
            problem = f"the showers were made with another value than the run configuration has, {wanted}"
            needs = "data.source to simulate and " if found and field in _SIMULATED_ONLY else ""
            remedy = f"set {needs}{field} to {cut(json.dumps(found))}, or give other files"
            raise ShowerFileError(problem, file=file, field=field, value=found, remedy=remedy)


def outside_ranges(primaries: Table, data: Data) -> dict[str, NDArray[np.bool_]]:
    """The showers that each range of the run configuration excludes and none before it does, by reason (N,)."""
    low, high = data.energy_gev
    limits: list[tuple[str, str, Range]] = [
        ("energy outside data.energyGev", "energy_gev", (low * (1 - _ENERGY_ROUNDING), high * (1 + _ENERGY_ROUNDING)))
    ]
    for reason, column, (low, high) in (
        ("angle outside data.angleDeg", "angle_rad", data.angle_deg),
        ("azimuth outside data.azimuthDeg", "azimuth_rad", data.azimuth_deg or (0.0, 0.0)),
        ("entry outside data.entryMm", "entry_x_mm", data.entry_mm or (0.0, 0.0)),
        ("entry outside data.entryMm", "entry_y_mm", data.entry_mm or (0.0, 0.0)),
    ):
        if column in primaries:
            limits.append((reason, column, (low - _ROUNDING, high + _ROUNDING)))
    outside: dict[str, NDArray[np.bool_]] = {}
    selected = np.ones(len(primaries["energy_gev"]), bool)
    for reason, column, span in limits:
        degrees = column in ("angle_rad", "azimuth_rad")
        values = np.degrees(primaries[column], dtype=np.float64) if degrees else primaries[column]
        excluded = ~((values >= span[0]) & (values <= span[1])) & selected
        outside[reason] = outside.get(reason, False) | excluded
        selected &= ~excluded
    if "pdg" in primaries:
        excluded = ~np.isin(primaries["pdg"], [PDG_CODES[particle] for particle in data.particles])
        outside["primary not in data.particle"] = excluded & selected
    return outside


def check_of_run(primaries: Table, data: Data, *, file: Path | None = None, field: str | None = None) -> None:
    """Raise InputError for showers without a column that the run configuration has a range of, and outside of one;
    azimuths count modulo a turn."""
    if missing := [name for name in data.columns if name not in primaries]:
        problem = f"have no column {missing[0]}, and the run has a range of it"
        raise InputError(problem, file=file, field=field, remedy="give the column, one number per shower")
    for reason, outside in outside_ranges(turned(primaries, data), data).items():
        if outside.any():
            problem = f"{np.count_nonzero(outside)} of {len(outside)} showers have their {reason} of the run"
            remedy = "select those of the run, energies in GeV and angles in rad, or take a run that was trained with "
            remedy += "these"
            raise InputError(problem, file=file, field=field, remedy=remedy)


def sample_of_run(
    showers: Showers, data: Data, *, judged: bool, file: Path | None = None, field: str | None = None
) -> Showers:
    """Re-binned showers as shards of the run have them: cells below the threshold are empty, azimuths are changed by
    whole turns, and showers whose sum is not above ``data.preprocessing.minimumSumGev`` are left out.

    judged: as showers of the run's own generator, of which none is left out, unless their source is a simulation.
    Raises InputError as `check_of_run`, for showers of another detector, and where no showers are left.
    """
    _check_detector(showers.detector, data, file)
    check_of_run(showers.primaries, data, file=file, field=field)
    cells_gev = without_faint(showers.cells_gev, data.preprocessing)
    sample = Showers.of(cells_gev, turned(showers.primaries, data), showers.source, showers.cell_shape)
    if not judged or showers.source in ("geant4", "parametrised"):
        faint = cells_gev.sum(axis=(1, 2, 3), dtype=np.float64) <= data.preprocessing.minimum_sum_gev
        sample = sample[~faint | (cells_gev.min(axis=(1, 2, 3)) < 0)]  # negative cells are refused later
    if len(sample) == 0:
        problem = f"holds no showers that a run uses, of {len(showers)}"
        remedy = "give others, or lower data.preprocessing.minimumSumGev or thresholdGev"
        raise InputError(problem, file=file, field=field, remedy=remedy)
    return sample


def split_files(files: Sequence[SurveyedFile], data: Data) -> tuple[list[FileSlice], SplitMethod]:
    """Training and validation showers, validation first, and the order in which each split uses them (``data.seed``).

    Simulated showers are random: whole files go to validation, ``data.validationFraction`` of them, rounded, at least
    one; the files come in an order that is drawn, with their showers as they are. Files of the user's own may be
    sorted, within a file and from file to file: one permutation of all selected showers has those for validation first,
    and gives the order of the others.
    """
    random = np.random.default_rng(data.seed)
    order = random.permutation(len(files))
    ends = np.cumsum([len(files[index]) for index in order])
    places = np.arange(ends[-1])
    held_out = np.zeros(ends[-1], bool)
    method: SplitMethod = "by file" if data.source == "simulate" and len(files) > 1 else "by shower"
    if method == "by file":
        held_out[: ends[min(len(files) - 1, max(1, round(data.validation_fraction * len(files)))) - 1]] = True
    else:
        selected = np.concatenate([files[index].is_selected for index in order])
        drawn = random.permutation(np.flatnonzero(selected))
        held_out[drawn[: max(1, round(data.validation_fraction * selected.sum()))]] = True
        if data.source != "simulate":
            places[drawn] = np.arange(len(drawn))
    of_files = list(zip(order, np.split(held_out, ends[:-1]), np.split(places, ends[:-1])))
    validation = [FileSlice(files[index], "validation", mask, places) for index, mask, places in of_files]
    train = [FileSlice(files[index], "train", ~mask, places) for index, mask, places in of_files]
    return [one for one in validation + train if one.members.any()], method


def check_one_origin(files: Sequence[SurveyedFile]) -> layouts.Source:
    """The origin that all files share; raises ShowerFileError when Monte Carlo and other showers are mixed."""
    origin = files[0].source
    other = next((file for file in files if file.source != origin), None)
    if other is not None:
        problem = f"comes from another source than {files[0].path.name} ({origin})"
        remedy = "do not mix showers of different origin: the artifacts could not be labelled"
        raise ShowerFileError(problem, file=other.path, field="attribute source", value=other.source, remedy=remedy)
    return origin


def check_selection(slices: Sequence[FileSlice], data: Data, source: str | Path) -> None:
    """Raise ShowerFileError when the ranges of the run configuration leave a split empty, or without a primary; warn
    where the showers leave an end of a range empty."""
    for split in ("train", "validation"):
        mine = [one for one in slices if one.split == split]
        if sum(one.selected for one in mine) == 0:
            raise empty_selection(split, slices, data, source)
        if len(data.particles) == 1:
            continue
        codes = set(np.concatenate([one.file.primaries["pdg"][one.is_selected] for one in mine]).tolist())
        if missing := [particle for particle in data.particles if PDG_CODES[particle] not in codes]:
            problem = f"no showers of {', '.join(missing)} are left for {split}"
            remedy = f"give more files of {', '.join(missing)}, or leave it out of data.particle"
            raise ShowerFileError(problem, file=source, field="data.particle", value=data.particle_text, remedy=remedy)
    _report_empty_ends(slices, data, source)


def _report_empty_ends(slices: Sequence[FileSlice], data: Data, source: str | Path) -> None:
    for column, field, along, span in (
        ("energy_gev", "energyGev", "", data.energy_gev),
        ("angle_rad", "angleDeg", "", data.angle_deg),
        ("azimuth_rad", "azimuthDeg", "", data.azimuth_deg),
        ("entry_x_mm", "entryMm", " along x", data.entry_mm),
        ("entry_y_mm", "entryMm", " along y", data.entry_mm),
    ):
        if span is None:
            continue
        values = np.concatenate([one.file.primaries[column][one.is_selected] for one in slices])
        part = max(_EMPTY, _EMPTY_SHOWERS / len(values))
        if field.endswith("Deg"):
            values = np.degrees(values)
        if data.mirror and column != "energy_gev":
            values = np.concatenate([values, (180 if column == "angle_rad" else 0) - values])
        found, (low, high) = _range(values), span
        if max(values.min() - low, high - values.max()) > (high - low) * part:
            log.warning(
                "%s: the showers have %s%s, data.%s is %g to %g, in all of which the generator will be used\n"
                "  remedy: set data.%s to [%s], or give showers of all of the range",
                source, found, along, field, low, high, field, found.replace(" to ", ", "),
            )  # fmt: skip


def empty_selection(split: str, slices: Sequence[FileSlice], data: Data, source: str | Path) -> ShowerFileError:
    """The error that no shower is left for a split, with what the files contain."""
    files = {one.file.path: one.file for one in slices}.values()
    energies = np.concatenate([file.primaries["energy_gev"] for file in files])
    angles = np.degrees(np.concatenate([file.primaries["angle_rad"] for file in files]))
    contents = f"{len(energies)} showers of {_range(energies)} GeV and {_range(angles)} degrees"
    for name in (column for column in FURTHER if column != "pdg"):
        values = [file.primaries[name] for file in files if name in file.primaries]
        if values:
            contents += f", {name} of {_range(np.concatenate(values))} ({FURTHER[name].field})"
    problem = f"no showers are left for {split}: the files contain {contents}"
    field, prepared = "data.energyGev, data.angleDeg, data.preprocessing", data.preprocessing
    value = (list(data.energy_gev), list(data.angle_deg), prepared.minimum_sum_gev, prepared.threshold_gev)
    remedy = "set the ranges to what the files contain, lower the minimum sum or the threshold, or give more showers "
    remedy += "or files; energies are in GeV, angles in rad"
    return ShowerFileError(problem, file=source, field=field, value=value, remedy=remedy)


def check_deposits(file: SurveyedFile, showers: Showers, numbers: NDArray[np.intp], data: Data) -> None:
    """Compare the sums of cells with the energies of the primaries and with the sampling of the detector.

    showers: a block of the file; numbers: of the showers in the file (N,). Raises ShowerFileError when more energy is
    deposited than the primaries had or the detector samples, which wrong units cause, or less in a file that does not
    state its unit, and when the sums do not follow the energies. Less energy in a file that states its unit is a
    warning.
    """
    ratios = showers.ecal_sum_gev / showers.energy_gev
    median, largest = float(np.median(ratios)), int(np.argmax(ratios))
    field = "showers" if file.layout == "calochallenge" else "ECAL"
    if ratios[largest] > _LARGEST_OF_ONE or median > _LARGEST_MEDIAN:
        problem = f"shower {numbers[largest]} has a sum of cells of {showers.ecal_sum_gev[largest]:.4g} GeV and a "
        problem += f"primary of {showers.energy_gev[largest]:.4g} GeV: more energy is deposited than the primary had "
        problem += f"(median of {len(ratios)} showers: {median:.3g} times)"
        remedy = f"{_write_unit(data)}, or remove the shower"
        raise ShowerFileError(problem, file=file.path, field=field, remedy=remedy)
    if (unusual := _unusual(ratios, data)) is None:
        energy_gev = showers.energy_gev  # within a factor of two, or below 1 GeV, it shows nothing
        wide = len(ratios) >= _INCLINED_SHOWERS and energy_gev.max() > max(1, 2 * energy_gev.min())
        if wide and not data.has_hadrons:
            follows = float(np.corrcoef(energy_gev, showers.ecal_sum_gev)[0, 1])
            if follows < _UNRELATED:
                problem = f"sums of cells do not follow the energies: their correlation is {follows:.2f}"
                remedy = "store the cells of a shower in the row of its energy: one of the two was sorted or shuffled"
                raise ShowerFileError(problem, file=file.path, field=field, remedy=remedy)
        return
    problem, remedy = unusual
    if median > _sampled(data)[1] or not file.states_unit:
        raise ShowerFileError(problem, file=file.path, field=field, remedy=remedy)
    log.warning("%s: %s\n  remedy: %s", file.path, problem, remedy)


def _unusual(ratios: NDArray[np.floating], data: Data) -> tuple[str, str] | None:
    """Problem and remedy where the median of sums of cells over energies of the primaries (N,) is not what the detector
    samples; None: it is, or there are few showers, or charged pions, which leave anything from a track to a shower."""
    if data.has_hadrons or len(ratios) < _FEWEST:
        return None
    (low, high), median = _sampled(data), float(np.median(ratios))
    if low / _UNUSUAL_FACTOR <= median <= _UNUSUAL_FACTOR * high:
        return None
    problem = f"cells sum up to {median:.2g} of the primary's energy (median of {len(ratios)} showers), and "
    problem += "data.geometry samples another part"
    calibrated = "calibrated: whether cells hold the energy of the shower or what sensors saw"
    return problem, f"{_write_unit(data)}, or correct data.geometry ({calibrated})"


def _write_unit(data: Data) -> str:
    low, high = _sampled(data)
    sampled = f"{low:.2g}" if low == high else f"{low:.2g} to {high:.2g}"
    remedy = f"write the units of a cell per GeV into the file's attribute {layouts.UNITS_ATTRIBUTE}"
    return f"{remedy} (this detector samples about {sampled} of the energy)"


def _sampled(data: Data) -> tuple[float, float]:
    """Lowest and highest sum of cells over the energy of the primary, as the groups of layers sample it."""
    if data.geometry.calibrated:
        return 1.0, 1.0
    parts = [Medium.of_layer(data.geometry, group.absorber_mm).visible_fraction for group in data.geometry.layers]
    return min(parts), max(parts)


def largest_median(data: Data) -> float:
    """Largest median of sum of cells over primary energy that showers can have."""
    return _LARGEST_MEDIAN if data.has_hadrons else min(_LARGEST_MEDIAN, _UNUSUAL_FACTOR * _sampled(data)[1])


def check_inclination(
    file: SurveyedFile,
    angle_rad: NDArray[np.floating],
    along_x_rad: NDArray[np.floating],
    cells_gev: NDArray[np.floating],
    data: Data,
) -> None:
    """Compare the angles of the primaries (N,) with those that re-binned cells (N, X, Y, Z) show along x (N,) and y, in
    a block of the file.

    Raises ShowerFileError when the showers are inclined along y or to the other side of x: axes that are exchanged or
    reversed. Also when the cells do not follow the angles at all: rows that are mixed up. Few showers, angles that are
    nearly perpendicular or equal to each other, and azimuths show nothing.
    """
    tilt = np.pi / 2 - angle_rad.astype(np.float64)
    if len(tilt) < _INCLINED_SHOWERS or data.azimuth_deg is not None:
        return
    alike = np.ptp(tilt) < _LEANING_RAD < abs(tilt.mean())  # correlated about the perpendicular, not about the mean
    if not alike and np.ptp(tilt) < _INCLINED_RAD:
        return
    along_y_rad = measured_angle_rad(cells_gev.swapaxes(1, 2), data.geometry, data.preprocessing.rebin)
    with np.errstate(invalid="ignore"):  # showers of one layer show no angle
        angles = np.stack([tilt, np.pi / 2 - along_x_rad, np.pi / 2 - along_y_rad])
        unit = angles if alike else angles - angles.mean(axis=1, keepdims=True)
        unit /= np.linalg.norm(unit, axis=1, keepdims=True)
        along_x, along_y = (float(unit[0] @ shown) for shown in unit[1:])
    store = layouts.AXES[file.layout]
    if abs(along_y) > max(_INCLINED, abs(along_x)):
        problem, remedy = "are inclined along y", f"store the axes {store}: showers are inclined along x"
    elif along_x < -_INCLINED:
        problem = "are inclined to the other side of x than their angles"
        remedy = (
            "store pi - theta, or reverse x, or the layers: 0 is the front, the direction (cos theta, 0, sin theta)"
        )
    elif not data.has_hadrons and np.ptp(tilt) > _WIDE_RAD and max(abs(along_x), abs(along_y)) < _UNRELATED:
        problem = "do not follow their angles"
        remedy = "store the cells of a shower in the row of its angle: one of the two was sorted or shuffled"
    else:
        return
    found = f"correlation of theta with the angle in the cells: {along_x:.2f} along x, {along_y:.2f} along y"
    raise ShowerFileError(f"showers {problem} ({found})", file=file.path, field="ECAL, theta", remedy=remedy)


def centres_of(energy_gev: NDArray[np.floating], cells_gev: NDArray[np.floating]) -> NDArray[np.float64]:
    """Logarithm of the energy, and mean place of the energy along each axis, cells: of N showers with energy (N, 4)."""
    profiles = (cells_gev.sum(axis=across, dtype=np.float64) for across in ((2, 3), (1, 3), (1, 2)))
    means = [profile @ np.arange(profile.shape[1]) / profile.sum(axis=1) for profile in profiles]
    return np.column_stack([np.log(energy_gev, dtype=np.float64), *means])


def check_depth(centres: NDArray[np.float64], data: Data, source: str | Path) -> None:
    """Raise ShowerFileError where own showers of electrons or photons (N, 4), see `centres_of`, are less deep at higher
    energies, or where another axis than depth has their energies: layers that are reversed, or are not the last axis.

    Few showers, and energies that are nearly equal, show nothing.
    """
    if data.source == "simulate" or data.has_hadrons or len(data.particles) > 1 or len(centres) < _INCLINED_SHOWERS:
        return
    log_energy, *places = centres.T
    first, second, depth = (correlated_sigmas(log_energy, place) for place in places)
    if depth < -SURE:
        problem = "are nearer to the front at higher energies"
    elif max(abs(first), abs(second)) > SURE + _NONE and abs(depth) < _NONE:
        problem = "are not deeper at higher energies, and change along another axis"
    else:
        return
    found = f"standard deviations: {first:.1f} and {second:.1f} across, {depth:.1f} in depth"
    remedy = "store the layers along the last axis of a shower, 0 at the front"
    raise ShowerFileError(f"{len(centres)} showers {problem} ({found})", file=source, field="cells", remedy=remedy)


def _range(values: NDArray[np.floating]) -> str:
    finite = values[np.isfinite(values)]
    return f"{finite.min():.4g} to {finite.max():.4g}" if finite.size else f"{math.nan}"
