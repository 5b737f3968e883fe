"""Generated against Monte Carlo showers: every observable with its uncertainty and its floor, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from caloscale.detector.axes import Floats
from caloscale.physics.binning import ORDER, SCALARS, TITLES, Binning, scalar_columns
from caloscale.physics.comparison import Comparison, Weighted
from caloscale.physics.correlation import compare_correlations
from caloscale.physics.distances import fpd, kpd, wasserstein
from caloscale.physics.energy_response import (
    compare_linearity,
    compare_maxima,
    compare_resolution,
    compare_response,
)
from caloscale.physics.gates import decide
from caloscale.physics.multivariate import compare_features, compare_regression, compare_with_classifier
from caloscale.physics.resampling import FEWEST, Resampling, Sample, separate
from caloscale.physics.result import (
    Counts,
    EnergyRange,
    Evaluation,
    ObservableResult,
    Separation,
    number,
)
from caloscale.physics.samples import Samples
from caloscale.progress import bar
from caloscale.spec.validation import Validation


def evaluate(comparison: Comparison) -> Evaluation:
    """Every observable with its uncertainty and its self-separation of Monte Carlo, and what the gates decide.

    What cannot be computed from so few showers is absent, with the reason. Runs on one core.
    """
    samples, weighted, resampling = comparison.samples, comparison.weighted, comparison.resampling
    validation = comparison.validation
    # The matrices are small: threads that wait for each other cost more than they bring.
    with threadpool_limits(limits=1), bar("evaluation", 4, "parts") as progress:
        judged = _judge(samples, weighted, resampling, comparison.binning, validation)
        progress.update(1)
        response = _respond(samples, weighted, resampling)
        progress.update(1)
        distances: dict[str, Any] = {
            "classifier": compare_with_classifier(samples, validation),
            "fpd": compare_features(samples, fpd, validation.seed),
            "kpd": compare_features(samples, kpd, validation.seed),
        }
        progress.update(1)
        correlation = compare_correlations(weighted["reference"], weighted["generated"], resampling)
        regression = compare_regression(samples, weighted)
        progress.update(1)
    return Evaluation(
        reference_source=samples.reference_showers.source,
        training_source=samples.training_source,
        showers=_count(samples),
        energy_ranges=_energy_ranges(weighted, comparison.range_edges_gev),
        hits_threshold_gev=validation.hits_threshold_gev,
        sparsity_threshold_gev=samples.cuts.sparsity_gev,
        bootstraps=validation.bootstraps,
        seed=validation.seed,
        notes=_notes(samples),
        correlation=correlation,
        regression=regression,
        **judged,
        **response,
        **distances,
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


def _count(samples: Samples) -> Counts:
    return Counts(
        reference=len(samples.reference),
        generated=len(samples.generated),
        training=len(samples.training),
        untrained=0 if samples.untrained is None else len(samples.untrained),
        empty=int(samples.generated.empty.sum()),
        unusable=samples.unusable,
    )


def _energy_ranges(weighted: Mapping[str, Weighted], edges: Floats) -> tuple[EnergyRange, ...]:
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
    return separate(
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


def _notes(samples: Samples) -> tuple[str, ...]:
    notes = []
    if "parametrised" in (samples.reference_showers.source, samples.training_source):
        notes.append("The Monte Carlo showers are parametrised (Grindhammer-Peters), not simulated with Geant4.")
    empty = int(samples.generated.empty.sum())
    if empty:
        notes.append(f"{empty} of {len(samples.generated)} generated showers are empty.")
    if samples.untrained is not None and samples.untrained.empty.any():
        share = samples.untrained.empty.mean()
        notes.append(f"{share:.0%} of the showers of the untrained network are empty.")
    return tuple(notes)
