"""The arrays of a comparison: observables, bootstrap weights, ranges of energy and bins. No statement about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from threadpoolctl import threadpool_limits

from caloscale.detector.axes import Floats
from caloscale.physics.binning import Binning, choose_binning
from caloscale.physics.observables import Observed, concatenate
from caloscale.physics.resampling import Resampling, draw_resampling
from caloscale.physics.response import bin_of_energy, range_edges
from caloscale.physics.samples import Samples, measure_samples
from caloscale.showers.arrays import Showers
from caloscale.spec.data import PDG_CODES, Data
from caloscale.spec.validation import Validation

FINE_BINS_PER_RANGE = 2
"""Bins of energy for straight lines and resolution fits, per range of energy."""


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

    def by_particle(self) -> Weighted:
        """The same sample with its primaries in the place of the ranges of energy."""
        return replace(self, ranges=np.column_stack(list(self.particles.values())), particles={})


@dataclass(frozen=True)
class Comparison:
    """Everything that statistics and figures are computed from.

    weighted: by sample: reference, generated, baseline, and untrained where it is kept.
    range_edges_gev (R + 1,): edges of the ranges of energy.
    """

    samples: Samples
    weighted: dict[str, Weighted]
    resampling: Resampling
    binning: Binning
    range_edges_gev: Floats
    validation: Validation


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
    before its first step, absent where it is not kept.
    Raises InputError for empty samples, other shapes, and Monte Carlo cells that are not finite or negative.
    """
    with threadpool_limits(limits=1):  # small matrices: threads that wait for each other cost more than they bring
        samples = measure_samples(reference, generated, training, untrained, data, validation)
    resampling = draw_resampling(
        {name: observed.primaries for name, observed in samples.by_name.items()}, validation.bootstraps, validation.seed
    )
    edges = range_edges(data.energy_gev, validation.energy_bins)
    fine_edges = range_edges(data.energy_gev, validation.energy_bins * FINE_BINS_PER_RANGE)
    weighted = {
        name: Weighted(
            observed,
            resampling.weights[name],
            bin_of_energy(observed.energy_gev, edges),
            bin_of_energy(observed.energy_gev, fine_edges),
            sort_by_particle(observed, data),
        )
        for name, observed in samples.by_name.items()
    }
    binning = choose_binning(concatenate([samples.reference, samples.training]))
    return Comparison(samples, weighted, resampling, binning, edges, validation)


def sort_by_particle(observed: Observed, data: Data) -> dict[str, Floats]:
    """Membership (N,) as 0 or 1 of the showers by primary; none where there is one primary only."""
    if len(data.particles) == 1:
        return {}
    pdg = observed.further[:, list(data.spans).index("pdg")]
    return {particle: (pdg == PDG_CODES[particle]).astype(np.float64) for particle in data.particles}
