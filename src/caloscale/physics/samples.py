"""The samples of a comparison: checked, measured, with the baseline beside them."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from caloscale.detector.axes import Axes, Floats, axes_of
from caloscale.errors import InputError
from caloscale.physics.observables import Cuts, Observed, choose_cuts, chunks, concatenate, observe
from caloscale.showers.arrays import Showers
from caloscale.spec.data import Data
from caloscale.spec.validation import Validation

BASELINE_SHOWERS = 2000
"""Showers of the baseline, at most: it has no fluctuations that more of them would average."""


@dataclass(frozen=True)
class Samples:
    """Observables of all samples.

    reference_showers, generated_showers: the cells of both. unusable: number of generated showers with cells that
    are not finite or negative; in generated_showers they are empty.
    """

    axes: Axes
    cuts: Cuts
    reference: Observed
    generated: Observed
    training: Observed
    baseline: Observed
    untrained: Observed | None
    unusable: int
    training_source: str
    reference_showers: Showers
    generated_showers: Showers

    @property
    def by_name(self) -> dict[str, Observed]:
        """The samples that are compared, Monte Carlo first."""
        named = {"reference": self.reference, "generated": self.generated, "baseline": self.baseline}
        return named if self.untrained is None else named | {"untrained": self.untrained}


def measure_samples(
    reference: Showers,
    generated: Showers,
    training: Showers,
    untrained: Showers | None,
    data: Data,
    validation: Validation,
) -> Samples:
    """Check and measure the samples of a comparison.

    Raises InputError where a sample is empty or has another shape than the run configuration, or where Monte Carlo
    holds cells that are not finite or negative. Generated showers with such cells count as empty ones.
    """
    named = {"reference": reference, "generated": generated, "training": training}
    if untrained is not None:
        named["untrained"] = untrained
    for name, sample in named.items():
        _check(name, sample, data.shape)
    for name in ("reference", "training"):
        bad = int(unusable_showers(named[name]).sum())
        if bad:
            problem = "showers with cells that are not finite or negative"
            raise InputError(problem, field=name, value=bad, remedy="check the files with `caloscale inspect`")
    axes = axes_of(data)
    cuts = choose_cuts(
        (reference, training), hits_gev=validation.hits_threshold_gev, threshold_gev=data.preprocessing.threshold_gev
    )
    cleaned, unusable = without_unusable(generated)
    return Samples(
        axes=axes,
        cuts=cuts,
        reference=observe(reference, axes, cuts),
        generated=observe(cleaned, axes, cuts),
        training=observe(training, axes, cuts),
        baseline=observe_baseline(training, generated[:BASELINE_SHOWERS], axes, cuts),
        untrained=None if untrained is None else observe(without_unusable(untrained)[0], axes, cuts),
        unusable=unusable,
        training_source=training.source,
        reference_showers=reference,
        generated_showers=cleaned,
    )


def mean_shower(training: Showers) -> Floats:
    """Mean over the training showers of cell energy / energy of the primary (X, Y, Z)."""
    total = np.zeros(training.cells_gev.shape[1:])
    for chunk in chunks(training):
        total += np.einsum("nxyz,n->xyz", chunk.cells_gev, 1 / chunk.energy_gev, dtype=np.float64, optimize=True)
    return total / len(training)


def observe_baseline(training: Showers, like: Showers, axes: Axes, cuts: Cuts) -> Observed:
    """The observables of the baseline for the primaries of ``like``.

    It repeats the mean training shower times the energy: the same shower for all other columns, without fluctuations,
    without a threshold (which would take energy away from it).
    """
    mean = mean_shower(training)
    parts = []
    for chunk in chunks(like):
        cells = (mean * chunk.energy_gev[:, None, None, None]).astype(np.float32)
        parts.append(observe(replace(chunk, cells_gev=cells), axes, cuts))
    return concatenate(parts)


def unusable_showers(showers: Showers) -> NDArray[np.bool_]:
    """Showers with a cell that is not finite or negative (N,)."""
    # A sum is finite exactly if all its terms are (float32 cells cannot overflow a float64 sum).
    with np.errstate(invalid="ignore"):
        flags = [
            ~np.isfinite(chunk.cells_gev.sum(axis=(1, 2, 3), dtype=np.float64))
            | (chunk.cells_gev.min(axis=(1, 2, 3), initial=0) < 0)
            for chunk in chunks(showers)
        ]
    return np.concatenate(flags)


def without_unusable(showers: Showers) -> tuple[Showers, int]:
    """The showers with the unusable ones emptied, and their number."""
    bad = unusable_showers(showers)
    if not bad.any():
        return showers, 0
    cells = showers.cells_gev.copy()
    cells[bad] = 0
    return replace(showers, cells_gev=cells), int(bad.sum())


def _check(name: str, sample: Showers, shape: tuple[int, int, int]) -> None:
    if len(sample) == 0:
        raise InputError(
            "no showers to compare", field=name, value=0, remedy="widen the selection or make more showers"
        )
    if sample.cells_gev.shape[1:] != shape:
        problem = "showers of another shape than the run configuration"
        remedy = f"re-bin them to {list(shape)} (data.geometry.cells over data.preprocessing.rebin)"
        raise InputError(problem, field=name, value=list(sample.cells_gev.shape[1:]), remedy=remedy)
    if not (np.isfinite(sample.energy_gev).all() and (sample.energy_gev > 0).all()):
        raise InputError("energies that are not positive numbers", field=name, remedy="check the file")
