"""The arrays of a comparison: observables of the samples, bootstrap weights, ranges of energy and bins. No statement
about them."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.stats import ks_2samp
from threadpoolctl import threadpool_limits

from caloscale.detector.axes import Axes, Floats, axes_of
from caloscale.errors import InputError
from caloscale.physics.binning import PROFILES, TITLES, UNITS, choose_edges, scalar_columns
from caloscale.physics.observables import Cuts, Observed, choose_cuts, chunks, concatenate, observe
from caloscale.physics.resampling import draw_resampling
from caloscale.physics.response import bin_of_energy, range_edges
from caloscale.physics.result import Counts, EnergyRange
from caloscale.showers.arrays import Showers
from caloscale.showers.primaries import Table
from caloscale.spec.data import PDG_CODES, Data
from caloscale.spec.validation import Validation

FINE_BINS_PER_RANGE = 2
"""Bins of energy for straight lines and resolution fits, per range of energy."""
BASELINE_SHOWERS = 2000
"""Showers of the baseline, at most: it has no fluctuations that more of them would average."""

SAME = 1e-5
"""Relative difference of the numbers of one shower in two files: more than float32 rounds in units of the networks."""
UNLIKE = 1e-6
"""Probability that two samples of the same distribution of primaries are taken for unlike, for each column."""
_DECIMALS = 3
"""Of GeV, degrees and mm: float32 values of one energy in two files differ by less."""


@dataclass(frozen=True)
class Weighted:
    """A sample with its bootstrap weights (1 + B, N), its membership in the ranges of energy (N, R) of the
    results, and in the finer bins (N, K) of line and resolution fits. particles: membership (N,) by primary,
    where there are several."""

    observed: Observed
    weights: Floats
    ranges: Floats
    bins: Floats
    particles: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def counts(self) -> list[int]:
        """Showers in each range of energy (R,)."""
        return [int(count) for count in self.ranges.sum(axis=0)]

    def by_particle(self) -> "Weighted":
        """The same sample with its primaries in the place of the ranges of energy."""
        return replace(self, ranges=np.column_stack(list(self.particles.values())), particles={})


@dataclass(frozen=True)
class Comparison:
    """Everything that statistics and figures are computed from.

    weighted: by sample: reference, generated, baseline, and untrained where it is compared. training: observables.
    reference_showers, generated_showers: the cells of both. unusable: number of generated showers with cells that are
    not finite or negative; in generated_showers they are empty.
    halves (D, n): random divisions of the Monte Carlo showers. bin_edges (K, B + 1) by scalar observable.
    range_edges_gev (R + 1,): edges of the ranges of energy.
    """

    axes: Axes
    cuts: Cuts
    weighted: dict[str, Weighted]
    training: Observed
    training_source: str
    reference_showers: Showers
    generated_showers: Showers
    unusable: int
    halves: Floats
    bin_edges: dict[str, Floats]
    range_edges_gev: Floats
    validation: Validation

    @property
    def observed(self) -> dict[str, Observed]:
        """The observables of the samples that are compared, Monte Carlo first."""
        return {name: sample.observed for name, sample in self.weighted.items()}

    @property
    def counts(self) -> Counts:
        """Numbers of showers."""
        observed = self.observed
        return Counts(
            reference=len(observed["reference"]),
            generated=len(observed["generated"]),
            training=len(self.training),
            untrained=len(observed.get("untrained", ())),
            empty=int(observed["generated"].empty.sum()),
            unusable=self.unusable,
        )

    @property
    def energy_ranges(self) -> tuple[EnergyRange, ...]:
        """The ranges of energy with the showers in them."""
        reference, generated = (self.weighted[name].counts for name in ("reference", "generated"))
        edges = pairwise(self.range_edges_gev.tolist())
        return tuple(
            EnergyRange(low=low, high=high, reference=real, generated=fake)
            for (low, high), real, fake in zip(edges, reference, generated)
        )

    def histograms(self) -> dict[str, Any]:
        """The observables as hist histograms over the axes ``origin`` (reference, generated, baseline) and the
        observable.

        Counts of showers, and for profiles the sum over the showers: GeV of each layer, column or row, number of cells
        of each energy; with the variance of the sum. An observable of several numbers has a histogram for each, from 1.
        """
        import hist

        compared = [name for name in self.weighted if name != "untrained"]
        origin = hist.axis.StrCategory(compared, name="origin")
        found: dict[str, Any] = {}
        for name, axis, values in self._axes(hist.axis):
            found[name] = hist.Hist(origin, axis, storage=hist.storage.Weight())
            for sample in compared:
                observed = values(self.weighted[sample].observed)
                if observed.ndim == 1:
                    found[name].fill(sample, observed[np.isfinite(observed)])
                else:
                    centres = np.broadcast_to(axis.centers, observed.shape)
                    found[name].fill(sample, centres.ravel(), weight=observed.ravel())
        return found

    def _axes(self, axis: Any) -> Iterator[tuple[str, Any, Any]]:
        """Name, axis and values (N,) of each histogram; (N, B) of a profile: its weights."""
        for name, profile in PROFILES.items():
            if name == "cellSpectrum":
                kind = axis.Variable(self.cuts.spectrum_edges_gev, name=name, label="Energy of a cell [GeV]")
            else:
                length = profile(self.observed["reference"]).shape[1]
                kind = axis.Regular(length, -0.5, length - 0.5, name=name, label=f"{TITLES[name]} [cell]")
            yield name, kind, profile
        for name, edges in self.bin_edges.items():
            label = f"{TITLES[name]} [{UNITS[name]}]" if name in UNITS else TITLES[name]
            for column, bins in enumerate(edges):
                own = name if len(edges) == 1 else f"{name}{column + 1}"
                kind = axis.Variable(bins, name=own, label=label)
                yield own, kind, lambda observed, n=name, c=column: scalar_columns(n, observed)[:, c]


def compare(
    reference: Showers,
    generated: Showers,
    *,
    training: Showers,
    untrained: Showers | None,
    data: Data,
    validation: Validation,
) -> Comparison:
    """Measure generated and held-out Monte Carlo showers.

    All showers are re-binned (N, *data.shape), in GeV. reference: held out from the training; generated: at energies
    and angles of the same distribution, drawn independently (samples that share primaries are resampled together);
    training: what the generator was trained on (for the baseline, bins and classifier); untrained: the same network
    with fresh weights; None: not compared. Generated showers with cells that are not finite or negative count as empty
    ones.
    Raises InputError for empty samples, other shapes, and Monte Carlo cells that are not finite or negative.
    """
    reference, generated, training = (
        _checked(name, sample, data)
        for name, sample in (("reference", reference), ("generated", generated), ("training", training))
    )
    untrained = None if untrained is None else _checked("untrained", untrained, data)
    for name, sample in (("reference", reference), ("training", training)):
        if bad := int(_unusable_showers(sample).sum()):
            problem = "showers with cells that are not finite or negative"
            raise InputError(problem, field=name, value=bad, remedy="check the files with `caloscale inspect`")
    axes = axes_of(data)
    thresholds = {"hits_gev": validation.hits_threshold_gev, "threshold_gev": data.preprocessing.threshold_gev}
    cuts = choose_cuts((reference, training), **thresholds)
    cleaned, unusable = _without_unusable(generated)
    with threadpool_limits(limits=1):  # small matrices: threads that wait for each other cost more than they bring
        observed = {
            "reference": observe(reference, axes, cuts),
            "generated": observe(cleaned, axes, cuts),
            "baseline": observe_baseline(training, generated[:BASELINE_SHOWERS], axes, cuts),
        }
        if untrained is not None:
            observed["untrained"] = observe(_without_unusable(untrained)[0], axes, cuts)
        learnt = observe(training, axes, cuts)
    primaries = {name: sample.primaries for name, sample in observed.items()}
    weights, halves = draw_resampling(primaries, validation.bootstraps, validation.seed)
    edges = range_edges(data.energy_gev, validation.energy_bins)
    fine_edges = range_edges(data.energy_gev, validation.energy_bins * FINE_BINS_PER_RANGE)
    return Comparison(
        axes=axes,
        cuts=cuts,
        weighted={
            name: Weighted(
                sample,
                weights[name],
                bin_of_energy(sample.energy_gev, edges),
                bin_of_energy(sample.energy_gev, fine_edges),
                sort_by_particle(sample, data),
            )
            for name, sample in observed.items()
        },
        training=learnt,
        training_source=training.source,
        reference_showers=reference,
        generated_showers=cleaned,
        unusable=unusable,
        halves=halves,
        bin_edges=choose_edges(concatenate([observed["reference"], learnt])),
        range_edges_gev=edges,
        validation=validation,
    )


def sort_by_particle(observed: Observed, data: Data) -> dict[str, Floats]:
    """Membership (N,) as 0 or 1 of the showers by primary; none where there is one primary only."""
    if len(data.particles) == 1:
        return {}
    pdg = observed.further[:, list(data.spans).index("pdg")]
    return {particle: (pdg == PDG_CODES[particle]).astype(np.float64) for particle in data.particles}


def refuse_shared(name: str, sample: Showers, reference: Showers) -> None:
    """InputError where half of the showers are those of the reference, as of a file that is given twice: they have its
    energies, sums and largest cells, but for what units and shards round."""

    def of_each(showers: Showers) -> Floats:
        columns = showers.energy_gev, showers.ecal_sum_gev, showers.cells_gev.max(axis=(1, 2, 3))
        found = np.column_stack(columns).astype(np.float64)
        return np.log(found[(found > 0).all(axis=1) & np.isfinite(found).all(axis=1)])

    nearest = cKDTree(of_each(reference)).query(of_each(sample), p=np.inf, distance_upper_bound=SAME)[0]
    shared = int(np.isfinite(nearest).sum())
    if shared and 2 * shared >= min(len(sample), len(reference)):
        remedy = "give others: showers that judge were neither made by the network nor shown to it"
        raise InputError("holds showers of the reference", field=name, value=shared, remedy=remedy)


def unlike_primaries(sample: Table, reference: Table) -> str | None:
    """Which column has another distribution in a sample than in the reference, with the two-sample Kolmogorov-Smirnov
    statistic; None: no column has. Showers are not compared at the same energy and angle, but as samples."""
    largest = math.sqrt(sum(1 / len(table["energy_gev"]) for table in (sample, reference)) * math.log(2 / UNLIKE) / 2)
    for name in (name for name in reference if name in sample):
        columns = (np.degrees(table[name]) if name.endswith("_rad") else table[name] for table in (sample, reference))
        found = ks_2samp(*(np.round(column, _DECIMALS) for column in columns), method="asymp").statistic
        if found > largest:
            return f"{name}, Kolmogorov-Smirnov statistic {found:.3f}, by chance at most {largest:.3f}"
    return None


def refuse_unlike(name: str, sample: Table, reference: Table, whole: Table | None = None) -> tuple[str, ...]:
    """InputError where a column of the primaries has another distribution than in the reference: gates would judge the
    primaries.

    whole: those of the reference before its showers below data.preprocessing.minimumSumGev were left out, as none is of
    a generator's. A sample may have their distribution instead, with the warning that is returned.
    """
    if (unlike := unlike_primaries(sample, reference)) is None:
        return ()
    if whole is None or unlike_primaries(sample, whole) is not None:
        problem = f"has primaries of another distribution than the reference ({unlike}): these would be judged"
        remedy = "give showers of such primaries: of the same ranges, or by caloscale generate --energies FILE"
        raise InputError(problem, field=name, remedy=remedy)
    return (f"compared at other primaries than the held-out showers have ({unlike})",)


def mean_shower(training: Showers) -> Floats:
    """Mean over the training showers of cell energy / energy of the primary (X, Y, Z)."""
    total = np.zeros(training.cells_gev.shape[1:])
    for chunk in chunks(training):
        total += np.einsum("nxyz,n->xyz", chunk.cells_gev, 1 / chunk.energy_gev, dtype=np.float64, optimize=True)
    return total / len(training)


def observe_baseline(training: Showers, like: Showers, axes: Axes, cuts: Cuts) -> Observed:
    """The observables of the baseline for the primaries of ``like``: the mean training shower times the energy, without
    fluctuations, without a threshold (which would take energy away from it)."""
    mean = mean_shower(training)
    parts = []
    for chunk in chunks(like):
        cells = (mean * chunk.energy_gev[:, None, None, None]).astype(np.float32)
        parts.append(observe(replace(chunk, cells_gev=cells), axes, cuts))
    return concatenate(parts)


def _unusable_showers(showers: Showers) -> NDArray[np.bool_]:
    """Showers with a cell that is not finite or negative (N,)."""
    # A sum is finite exactly if all its terms are (float32 cells cannot overflow a float64 sum).
    with np.errstate(invalid="ignore"):
        flags = [
            ~np.isfinite(chunk.cells_gev.sum(axis=(1, 2, 3), dtype=np.float64))
            | (chunk.cells_gev.min(axis=(1, 2, 3), initial=0) < 0)
            for chunk in chunks(showers)
        ]
    return np.concatenate(flags)


def _without_unusable(showers: Showers) -> tuple[Showers, int]:
    """The showers with the unusable ones emptied, and their number."""
    bad = _unusable_showers(showers)
    if not bad.any():
        return showers, 0
    cells = showers.cells_gev.copy()
    cells[bad] = 0
    return replace(showers, cells_gev=cells), int(bad.sum())


def _checked(name: str, sample: Showers, data: Data) -> Showers:
    """The showers with the columns of the run alone, in its order: columns of samples are compared by their place."""
    shape = data.shape
    if len(sample) == 0:
        remedy = "widen the selection or make more showers"
        raise InputError("no showers to compare", field=name, value=0, remedy=remedy)
    if sample.cells_gev.shape[1:] != shape:
        problem = "showers of another shape than the run configuration"
        remedy = f"re-bin them to {list(shape)} (data.geometry.cells over data.preprocessing.rebin)"
        raise InputError(problem, field=name, value=list(sample.cells_gev.shape[1:]), remedy=remedy)
    if not (np.isfinite(sample.energy_gev).all() and (sample.energy_gev > 0).all()):
        raise InputError("energies that are not positive numbers", field=name, remedy="check the file")
    return replace(sample, further={column: sample.further[column] for column in data.spans})
