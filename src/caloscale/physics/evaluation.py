"""Generated against Monte Carlo showers: every observable with its uncertainty and its null, and the verdict."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from caloscale.detector.axes import Floats
from caloscale.physics.amplification import measure_worth
from caloscale.physics.binning import DEFINITIONS, TITLES, fill_histograms
from caloscale.physics.comparison import Comparison, Weighted
from caloscale.physics.correlation import compare_correlations
from caloscale.physics.distances import fpd, kpd
from caloscale.physics.energy_response import compare_linearity, compare_maxima, compare_resolution, compare_response
from caloscale.physics.gates import decide
from caloscale.physics.multivariate import compare_features, compare_layers, compare_regression, compare_with_classifier
from caloscale.physics.quantities import measure_quantities
from caloscale.physics.resampling import Sample, separate, summarise
from caloscale.physics.result import Counts, Evaluation, ObservableResult, ParticleResult, Separation
from caloscale.progress import bar


def evaluate(comparison: Comparison) -> Evaluation:
    """Every observable with its uncertainty and its self-separation of Monte Carlo, and what the gates decide.

    What cannot be computed from so few showers is absent, with the reason. Runs on one core.
    """
    weighted, halves, depth_x0 = comparison.weighted, comparison.halves, comparison.axes.depth_x0
    validation, counts, ranges = comparison.validation, comparison.counts, comparison.energy_ranges
    source, pair = comparison.reference_showers.source, (weighted["reference"], weighted["generated"])
    labels = [energy.label for energy in ranges]
    # The matrices are small: threads that wait for each other cost more than they bring.
    with threadpool_limits(limits=1), bar("evaluation", 4, "parts") as progress:
        observables, separations = _observables(weighted, halves, comparison.bin_edges)
        progress.update(1)
        response = _respond(weighted, depth_x0)
        particles = _sort_by_particle(weighted, depth_x0)
        progress.update(1)
        distances: dict[str, Any] = {
            "classifier": compare_with_classifier(comparison),
            "layer_classifier": compare_layers(comparison),
            "fpd": compare_features(comparison, fpd),
            "kpd": compare_features(comparison, kpd),
        }
        progress.update(1)
        correlation = compare_correlations(*pair, halves)
        regression = compare_regression(comparison)
        aucs = {"classifierAuc": distances["classifier"], "layerAuc": distances["layer_classifier"]}
        quantities = measure_quantities(comparison.training, *pair, labels, depth_x0, observables, aucs)
        faults = ["all generated showers are empty"] if counts.empty == counts.generated else []
        if counts.unusable:
            faults.append(f"{counts.unusable} generated showers have cells that are not finite or negative")
        gates, decision, reasons = decide(validation.judging, quantities, counts, faults)
        gated = {gate.quantity for gate in gates}
        worth = measure_worth([pair], labels, depth_x0, gated=gated, source=source)
        progress.update(1)
    return Evaluation(
        reference_source=source,
        training_source=comparison.training_source,
        showers=counts,
        energy_ranges=ranges,
        hits_threshold_gev=validation.hits_threshold_gev,
        sparsity_threshold_gev=comparison.cuts.sparsity_gev,
        bootstraps=validation.bootstraps,
        seed=validation.seed,
        notes=_notes(comparison, counts),
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


def _respond(weighted: Mapping[str, Weighted], depth_x0: Floats) -> dict[str, Any]:
    """The response to energy."""
    pair = weighted["reference"], weighted["generated"]
    return {
        "shower_maximum": compare_maxima(*pair, depth_x0),
        "response": compare_response(*pair),
        "linearity": compare_linearity(*pair),
        "resolution": compare_resolution(*pair, weighted["baseline"], lambda o: o.sampling_fraction),
        "weighted_resolution": compare_resolution(*pair, weighted["baseline"], lambda o: o.weighted_fraction),
    }


def _sort_by_particle(weighted: Mapping[str, Weighted], depth_x0: Floats) -> tuple[ParticleResult, ...]:
    """The response of each primary over all energies; none where there is one primary only."""
    names = list(weighted["reference"].particles)
    if not names:
        return ()
    by_particle = {name: sample.by_particle() for name, sample in weighted.items()}
    found = _respond(by_particle, depth_x0)
    return tuple(
        ParticleResult(
            particle=particle,
            reference=by_particle["reference"].counts[k],
            generated=by_particle["generated"].counts[k],
            shower_maximum=found["shower_maximum"][k],
            response=found["response"][k],
            resolution=found["resolution"].ranges[k],
            weighted_resolution=found["weighted_resolution"].ranges[k],
        )
        for k, particle in enumerate(names)
    )


def _observables(
    weighted: Mapping[str, Weighted], halves: Floats, edges: Mapping[str, Floats]
) -> tuple[dict[str, ObservableResult], dict[str, dict[str, Floats]]]:
    """By name: the result, and the separations of the samples over all energies in each bootstrap."""
    histograms = {name: fill_histograms(sample.observed, edges) for name, sample in weighted.items()}
    everywhere = {name: np.ones(len(sample.ranges), dtype=bool) for name, sample in weighted.items()}
    inside = [
        {name: sample.ranges[:, k] > 0 for name, sample in weighted.items()}
        for k in range(weighted["reference"].ranges.shape[1])
    ]

    def separation(observable: str, members: Mapping[str, NDArray[np.bool_]]) -> tuple[Separation, dict[str, Floats]]:
        parts = {
            name: Sample(histograms[name][observable][member], weighted[name].weights[:, member])
            for name, member in members.items()
        }
        return separate(parts.pop("reference"), halves[:, members["reference"]], parts)

    results, separations = {}, {}
    for name in DEFINITIONS:
        overall, separations[name] = separation(name, everywhere)
        ranges = tuple(separation(name, members)[0] for members in inside)
        results[name] = ObservableResult(**dict(overall), title=TITLES[name], ranges=ranges)
    return results, separations


def _notes(comparison: Comparison, showers: Counts) -> tuple[str, ...]:
    notes = []
    if "parametrised" in (comparison.reference_showers.source, comparison.training_source):
        notes.append("The Monte Carlo showers are parametrised (Grindhammer-Peters), not simulated with Geant4.")
    if showers.empty:
        notes.append(f"{showers.empty} of {showers.generated} generated showers are empty.")
    untrained = comparison.observed.get("untrained")
    if untrained is not None and untrained.empty.any():
        share = untrained.empty.mean()
        notes.append(f"{share:.0%} of the showers of the untrained network are empty.")
    return tuple(notes)
