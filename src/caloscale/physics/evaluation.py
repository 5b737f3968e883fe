"""Generated against Monte Carlo showers: every observable with its uncertainty and its floor, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from caloscale.detector.axes import Floats
from caloscale.physics.binning import ORDER, SCALARS, TITLES, Binning, choose_binning, scalar_columns
from caloscale.physics.correlation import compare_correlations
from caloscale.physics.distances import fpd, kpd, wasserstein
from caloscale.physics.energy_response import (
    Weighted,
    compare_linearity,
    compare_maxima,
    compare_resolution,
    compare_response,
    range_edges,
)
from caloscale.physics.figure_arrays import figure_data
from caloscale.physics.figure_data import number
from caloscale.physics.gates import decide
from caloscale.physics.multivariate import compare_features, compare_regression, compare_with_classifier
from caloscale.physics.observables import Observed, concatenate
from caloscale.physics.resampling import FEWEST, Resampling, Sample, compare, draw_resampling
from caloscale.physics.response import bin_of_energy
from caloscale.physics.result import (
    Counts,
    EnergyRange,
    Evaluation,
    ObservableResult,
    Separation,
)
from caloscale.physics.samples import Samples, measure_samples
from caloscale.progress import bar
from caloscale.showers.arrays import Showers
from caloscale.spec.data import Data
from caloscale.spec.validation import Validation

FINE_BINS_PER_RANGE = 2
"""Bins of energy for straight lines and resolution fits, per range of the verdicts."""


def evaluate(
    reference: Showers,
    generated: Showers,
    *,
    training: Showers,
    untrained: Showers | None,
    data: Data,
    validation: Validation,
) -> Evaluation:
    """Compare generated with held-back Monte Carlo showers.

    All showers are re-binned (N, *data.shape), in GeV. reference: held back from the training; generated: at
    energies and angles of the same distribution; training: what the generator was trained on (for the baseline,
    bins and classifier); untrained: the same network before its first step, absent where it is not kept.
    What cannot be computed from so few showers is absent, with the reason.
    Raises InputError for empty samples, other shapes, and Monte Carlo cells that are not finite or negative.
    Runs on one core: the matrices are small, and threads that wait for each other cost more than they bring.
    """
    with threadpool_limits(limits=1), bar("evaluation", 5, "parts") as progress:
        samples = measure_samples(reference, generated, training, untrained, data, validation)
        progress.update(1)
        resampling = draw_resampling(
            len(reference), len(generated), len(untrained or ()), validation.bootstraps, validation.seed
        )
        weighted = _weighted(samples, resampling, data, validation)
        binning = choose_binning(concatenate([samples.reference, samples.training]))
        judged = _judge(samples, weighted, resampling, binning, validation)
        progress.update(1)
        response = _respond(samples, weighted, resampling)
        progress.update(1)
        distances: dict[str, Any] = {
            "classifier": compare_with_classifier(samples, validation),
            "fpd": compare_features(samples, fpd, validation.seed),
            "kpd": compare_features(samples, kpd, validation.seed),
        }
        progress.update(1)
        drawn = _drawn(samples, weighted, resampling, binning, reference, _energy_ranges(weighted, data, validation))
        progress.update(1)
    return Evaluation(
        reference_source=reference.source,
        training_source=training.source,
        showers=_count(samples),
        hits_threshold_gev=validation.hits_threshold_gev,
        sparsity_threshold_gev=samples.cuts.sparsity_gev,
        bootstraps=validation.bootstraps,
        seed=validation.seed,
        notes=_notes(samples, reference, training),
        **judged,
        **response,
        **distances,
        **drawn,
    )


def _judge(
    samples: Samples,
    weighted: Mapping[str, Weighted],
    resampling: Resampling,
    binning: Binning,
    validation: Validation,
) -> dict[str, Any]:
    """Separations and what the gates say to them."""
    observables = _observables(weighted, resampling, binning)
    nothing = bool(samples.generated.empty.all())
    gates, reasons = decide(validation.gates, observables, samples.unusable, all_empty=nothing)
    return {"observables": observables, "gates": gates, "released": not reasons, "reasons": reasons}


def _respond(samples: Samples, weighted: Mapping[str, Weighted], resampling: Resampling) -> dict[str, Any]:
    """The response to energy."""
    pair = weighted["reference"], weighted["generated"]
    others = weighted.get("untrained"), weighted["baseline"]
    return {
        "shower_maximum": compare_maxima(*pair, samples.axes.depth_x0),
        "response": compare_response(*pair),
        "linearity": compare_linearity(*pair),
        "resolution": compare_resolution(*pair, *others, resampling, weighted=False),
        "weighted_resolution": compare_resolution(*pair, *others, resampling, weighted=True),
    }


def _drawn(
    samples: Samples,
    weighted: Mapping[str, Weighted],
    resampling: Resampling,
    binning: Binning,
    reference: Showers,
    ranges: tuple[EnergyRange, ...],
) -> dict[str, Any]:
    """Regression, correlations, and the numbers of all figures."""
    correlation, matrices = compare_correlations(weighted["reference"], weighted["generated"], resampling)
    regression, errors = compare_regression(samples, weighted)
    figures = figure_data(
        samples,
        weighted,
        binning,
        tuple(r.label for r in ranges),
        showers={"reference": reference, "generated": samples.generated_showers},
        correlations=matrices,
        regression=errors,
    )
    return {"energy_ranges": ranges, "regression": regression, "correlation": correlation, "figures": figures}


def _count(samples: Samples) -> Counts:
    return Counts(
        reference=len(samples.reference),
        generated=len(samples.generated),
        training=len(samples.training),
        untrained=0 if samples.untrained is None else len(samples.untrained),
        empty=int(samples.generated.empty.sum()),
        unusable=samples.unusable,
    )


def _weighted(samples: Samples, resampling: Resampling, data: Data, validation: Validation) -> dict[str, Weighted]:
    ranges = range_edges(data.energy_gev, validation.energy_bins)
    bins = range_edges(data.energy_gev, validation.energy_bins * FINE_BINS_PER_RANGE)
    rows: dict[str, tuple[Observed | None, Floats]] = {
        "reference": (samples.reference, resampling.reference),
        "generated": (samples.generated, resampling.generated),
        "untrained": (samples.untrained, resampling.untrained),
        "baseline": (samples.baseline, resampling.generated),
    }
    return {
        name: Weighted(
            observed, weights, bin_of_energy(observed.energy_gev, ranges), bin_of_energy(observed.energy_gev, bins)
        )
        for name, (observed, weights) in rows.items()
        if observed is not None
    }


def _energy_ranges(weighted: Mapping[str, Weighted], data: Data, validation: Validation) -> tuple[EnergyRange, ...]:
    edges = range_edges(data.energy_gev, validation.energy_bins)
    counts = {name: weighted[name].ranges.sum(axis=0).astype(int) for name in ("reference", "generated")}
    return tuple(
        EnergyRange(
            low=float(edges[k]),
            high=float(edges[k + 1]),
            reference=int(counts["reference"][k]),
            generated=int(counts["generated"][k]),
        )
        for k in range(len(edges) - 1)
    )


def _observables(
    weighted: Mapping[str, Weighted], resampling: Resampling, binning: Binning
) -> dict[str, ObservableResult]:
    histograms = {name: binning.histograms(sample.observed) for name, sample in weighted.items()}
    count = weighted["reference"].ranges.shape[1]
    results = {}
    for name in ORDER:
        per_sample = {sample: histograms[sample][name] for sample in weighted}
        overall = _separation(per_sample, weighted, resampling, None)
        ranges = tuple(_separation(per_sample, weighted, resampling, k) for k in range(count))
        distance, floor = _wasserstein(name, weighted, resampling)
        results[name] = ObservableResult(
            **dict(overall), title=TITLES[name], ranges=ranges, wasserstein=distance, wasserstein_floor=floor
        )
    return results


def _separation(
    histograms: Mapping[str, Floats], weighted: Mapping[str, Weighted], resampling: Resampling, energy: int | None
) -> Separation:
    """Overall, or in one range of energy."""

    def rows(sample: str) -> NDArray[np.intp]:
        member = weighted[sample].ranges
        return np.arange(len(member)) if energy is None else np.flatnonzero(member[:, energy])

    parts = {name: Sample(histograms[name][rows(name)], weighted[name].weights[:, rows(name)]) for name in weighted}
    return compare(
        parts["reference"],
        resampling.halves[:, rows("reference")],
        parts["generated"],
        parts.get("untrained"),
        parts["baseline"],
    )


def _wasserstein(
    name: str, weighted: Mapping[str, Weighted], resampling: Resampling
) -> tuple[float | None, float | None]:
    """Mean over the columns of a scalar observable; the floor over the divisions."""
    if name not in SCALARS or len(weighted["reference"].observed) < FEWEST:
        return None, None
    reference, generated = (scalar_columns(name, weighted[s].observed).T for s in ("reference", "generated"))
    first = resampling.halves > 0
    distances, floors = [], []
    for real, fake in zip(reference, generated):
        scale = float(np.nanstd(real))
        distances.append(wasserstein(real, fake, scale))
        floors.append(np.mean([wasserstein(real[half], real[~half], scale) for half in first]))
    return number(np.mean(distances)), number(np.mean(floors))


def _notes(samples: Samples, reference: Showers, training: Showers) -> tuple[str, ...]:
    notes = []
    if "parametrised" in (reference.source, training.source):
        notes.append("The Monte Carlo showers are parametrised (Grindhammer-Peters), not simulated with Geant4.")
    empty = int(samples.generated.empty.sum())
    if empty:
        notes.append(f"{empty} of {len(samples.generated)} generated showers are empty.")
    if samples.untrained is not None and samples.untrained.empty.any():
        share = samples.untrained.empty.mean()
        notes.append(f"{share:.0%} of the showers of the untrained network are empty.")
    return tuple(notes)
