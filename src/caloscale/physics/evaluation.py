"""Generated against Monte Carlo showers: every observable with its uncertainty and its null, and the verdict."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from caloscale.detector.axes import Floats
from caloscale.physics.amplification import measure_worth
from caloscale.physics.binning import ORDER, TITLES, Binning
from caloscale.physics.comparison import Comparison, Weighted
from caloscale.physics.correlation import compare_correlations
from caloscale.physics.distances import fpd, kpd
from caloscale.physics.energy_response import compare_linearity, compare_maxima, compare_resolution, compare_response
from caloscale.physics.gates import decide
from caloscale.physics.multivariate import compare_features, compare_layers, compare_regression, compare_with_classifier
from caloscale.physics.quantities import measure_quantities
from caloscale.physics.resampling import Resampling, Sample, separate, summarise
from caloscale.physics.result import Counts, EnergyRange, Evaluation, ObservableResult, ParticleResult, Separation
from caloscale.physics.samples import Samples
from caloscale.progress import bar


def evaluate(comparison: Comparison) -> Evaluation:
    """Every observable with its uncertainty and its self-separation of Monte Carlo, and what the gates decide.

    What cannot be computed from so few showers is absent, with the reason. Runs on one core.
    """
    samples, weighted, resampling = comparison.samples, comparison.weighted, comparison.resampling
    validation, counts = comparison.validation, _count(samples)
    ranges = _energy_ranges(weighted, comparison.range_edges_gev)
    # The matrices are small: threads that wait for each other cost more than they bring.
    with threadpool_limits(limits=1), bar("evaluation", 4, "parts") as progress:
        observables, separations = _observables(weighted, resampling, comparison.binning)
        progress.update(1)
        response = _respond(samples, weighted)
        particles = _sort_by_particle(samples, weighted)
        progress.update(1)
        distances: dict[str, Any] = {
            "classifier": compare_with_classifier(samples, validation),
            "layer_classifier": compare_layers(samples, validation),
            "fpd": compare_features(samples, fpd, validation.seed),
            "kpd": compare_features(samples, kpd, validation.seed),
        }
        progress.update(1)
        correlation = compare_correlations(weighted["reference"], weighted["generated"], resampling)
        regression = compare_regression(samples, weighted)
        quantities = measure_quantities(
            samples.training,
            weighted["reference"],
            weighted["generated"],
            [r.label for r in ranges],
            samples.axes.depth_x0,
            observables,
            {"classifierAuc": distances["classifier"], "layerAuc": distances["layer_classifier"]},
        )
        gates, decision, reasons = decide(validation.judging, quantities, counts, _faults(counts))
        gated = {gate.quantity for gate in gates}
        worth = measure_worth(
            [(weighted["reference"], weighted["generated"])],
            [r.label for r in ranges],
            samples.axes.depth_x0,
            gated=gated,
            source=samples.reference_showers.source,
        )
        progress.update(1)
    return Evaluation(
        reference_source=samples.reference_showers.source,
        training_source=samples.training_source,
        showers=counts,
        energy_ranges=ranges,
        hits_threshold_gev=validation.hits_threshold_gev,
        sparsity_threshold_gev=samples.cuts.sparsity_gev,
        bootstraps=validation.bootstraps,
        seed=validation.seed,
        notes=_notes(samples, counts),
        correlation=correlation,
        regression=regression,
        observables=observables,
        particles=particles,
        quantities=quantities,
        gates=gates,
        decision=decision,
        reasons=reasons,
        dropped=tuple(gate.name for gate in validation.dropped),
        ungated=tuple(name for name in quantities if name not in gated),
        worth=worth,
        warnings=_warnings(separations),
        **response,
        **distances,
    )


def _faults(showers: Counts) -> list[str]:
    """What rejects a generator without any gate."""
    faults = ["all generated showers are empty"] if showers.empty == showers.generated else []
    if showers.unusable:
        faults.append(f"{showers.unusable} generated showers have cells that are not finite or negative")
    return faults


def _warnings(separations: Mapping[str, Mapping[str, Floats]]) -> tuple[str, ...]:
    """Which of the samples that learnt nothing lies nearer to Monte Carlo than the generator: the mean of the
    separations of all observables is smaller, by two standard deviations of its bootstraps."""
    complete = [found for found in separations.values() if found]
    warnings = []
    for name, title in (("untrained", "the untrained network"), ("baseline", "the mean shower")):
        pairs = [found["generated"] - found[name] for found in complete if name in found]
        if pairs:
            value, uncertainty = summarise(np.mean(pairs, axis=0))
            if value > 2 * uncertainty:
                warnings.append(f"worse than {title}")
    return tuple(warnings)


def _respond(samples: Samples, weighted: Mapping[str, Weighted]) -> dict[str, Any]:
    """The response to energy."""
    pair = weighted["reference"], weighted["generated"]
    return {
        "shower_maximum": compare_maxima(*pair, samples.axes.depth_x0),
        "response": compare_response(*pair),
        "linearity": compare_linearity(*pair),
        "resolution": compare_resolution(*pair, weighted["baseline"], weighted=False),
        "weighted_resolution": compare_resolution(*pair, weighted["baseline"], weighted=True),
    }


def _sort_by_particle(samples: Samples, weighted: Mapping[str, Weighted]) -> tuple[ParticleResult, ...]:
    """The response of each primary over all energies; none where there is one primary only."""
    names = list(weighted["reference"].particles)
    if not names:
        return ()
    by_particle = {name: sample.by_particle() for name, sample in weighted.items()}
    counts = {name: sample.ranges.sum(axis=0).astype(int) for name, sample in by_particle.items()}
    found = _respond(samples, by_particle)
    return tuple(
        ParticleResult(
            particle=particle,
            reference=int(counts["reference"][k]),
            generated=int(counts["generated"][k]),
            shower_maximum=found["shower_maximum"][k],
            response=found["response"][k],
            resolution=found["resolution"].ranges[k],
            weighted_resolution=found["weighted_resolution"].ranges[k],
        )
        for k, particle in enumerate(names)
    )


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
) -> tuple[dict[str, ObservableResult], dict[str, dict[str, Floats]]]:
    """By name: the result, and the separations of the samples over all energies in each bootstrap."""
    histograms = {name: binning.histograms(sample.observed) for name, sample in weighted.items()}
    count = weighted["reference"].ranges.shape[1]
    results, separations = {}, {}
    for name in ORDER:
        per_sample = {sample: histograms[sample][name] for sample in weighted}
        overall, separations[name] = _separation(per_sample, weighted, resampling, None)
        ranges = tuple(_separation(per_sample, weighted, resampling, k)[0] for k in range(count))
        results[name] = ObservableResult(**dict(overall), title=TITLES[name], ranges=ranges)
    return results, separations


def _separation(
    histograms: Mapping[str, Floats], weighted: Mapping[str, Weighted], resampling: Resampling, energy: int | None
) -> tuple[Separation, dict[str, Floats]]:
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


def _notes(samples: Samples, showers: Counts) -> tuple[str, ...]:
    notes = []
    if "parametrised" in (samples.reference_showers.source, samples.training_source):
        notes.append("The Monte Carlo showers are parametrised (Grindhammer-Peters), not simulated with Geant4.")
    if showers.empty:
        notes.append(f"{showers.empty} of {showers.generated} generated showers are empty.")
    if samples.untrained is not None and samples.untrained.empty.any():
        share = samples.untrained.empty.mean()
        notes.append(f"{share:.0%} of the showers of the untrained network are empty.")
    return tuple(notes)
