"""False acceptance of each gate, measured: how often a generator whose difference equals the tolerance is accepted.

    python -m tools.acceptance [--draws 400] [--equal-draws 200]

Geant4 showers of the preset flow are the population. Their observables are changed so that one difference, in one
range of energy, equals the tolerance: the generator of the hypothesis. Reference and generated showers are drawn from
both, with repetition, and judged by the gate alone. Repeated showers would change AUCs, diversity and copying.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from threadpoolctl import threadpool_limits

from caloscale.bench.results import describe_machine, machine_text
from caloscale.detector.axes import Axes, Floats, axes_of
from caloscale.physics.binning import choose_edges, fill_histograms
from caloscale.physics.comparison import Weighted
from caloscale.physics.gates import ERROR, decide
from caloscale.physics.observables import Observed, choose_cuts, observe
from caloscale.physics.quantities import TITLES, of_primaries, of_separation, results_of_differences
from caloscale.physics.resampling import Sample, draw_resampling, separate
from caloscale.physics.response import bin_of_energy, range_edges
from caloscale.physics.result import Counts, ObservableResult, QuantityResult
from caloscale.progress import bar
from caloscale.showers.arrays import Showers
from caloscale.spec import Gate, Run, load_run
from caloscale.spec.validation import AUCS
from tools import table
from tools.held_out import GEANT4_SHOWERS, held_out_showers

PRESET = "flow"
SIZES = (375, 1500, 5000)
GENERATED, GENERATED_EQUAL = 2000, 10_000
"""Generated showers of a hypothesis, and of Geant4 itself in the place of a generator, as many as a run makes."""
CHANGED_BY_REPETITION = (*AUCS, "diversity", "copying")
"""Quantities that repeated showers change."""
ALL = "all of these"
Kind = Literal["differences", "equal"]
"""Hypotheses: a difference equals the tolerance; Geant4 itself in the place of a generator."""
MIDDLE = 1
"""The range of energy whose difference equals the tolerance."""


def hypotheses(pool: Observed, run: Run, side: float) -> Iterator[tuple[tuple[str, ...], Observed]]:
    """Quantities, and the population whose differences in them equal the tolerances.

    side: 1 for more, -1 for less than Monte Carlo.
    """
    limits = {gate.quantity: side * gate.limit / 100 for gate in run.validation.judging}
    ranges = bin_of_energy(pool.energy_gev, range_edges(run.data.energy_gev, run.validation.energy_bins))
    inside, all_of_them = ranges[:, MIDDLE], np.ones(len(pool))
    design = of_primaries(pool)

    def scaled(values: Floats, limit: float) -> Floats:
        return np.where(inside > 0, values * (1 + limit), values)

    def widened(values: Floats, limit: float, where: Floats, design: Floats = ranges) -> Floats:
        """Values (N,) whose distance from a linear fit of the design (N, P) is scaled in some showers (N,)."""
        expected = design @ np.linalg.lstsq(design, values)[0]
        return np.where(where > 0, expected + (1 + limit) * (values - expected), values)

    def column(moments: Floats, k: int, values: Floats) -> Floats:
        changed = moments.copy()
        changed[:, k] = values
        return changed

    by_energy = {name: getattr(pool, name) / pool.energy_gev for name in ("ecal_sum_gev", "weighted_sum_gev")}
    yield (
        ("response", "hits", "depthSpread", "transverseWidth"),
        replace(
            pool,
            ecal_sum_gev=scaled(pool.ecal_sum_gev, limits["response"]),
            hits=scaled(pool.hits, limits["hits"]),
            moments_z=column(
                pool.moments_z, 0, widened(pool.moments_z[:, 0], limits["depthSpread"], all_of_them, design)
            ),
            moments_x=column(pool.moments_x, 1, pool.moments_x[:, 1] * (1 + limits["transverseWidth"])),
        ),
    )
    bent = limits["linearity"] / (1 - (1 + limits["linearity"]) / ranges.shape[1])
    resolutions = {"ecal_sum_gev": limits["resolution"], "weighted_sum_gev": limits["weightedResolution"]}
    wide = {name: pool.energy_gev * widened(by_energy[name], limit, inside) for name, limit in resolutions.items()}
    yield (
        ("linearity", "resolution", "weightedResolution", "hitsSpread", "widthSpread"),
        replace(
            pool,
            ecal_sum_gev=scaled(wide["ecal_sum_gev"], bent),
            weighted_sum_gev=wide["weighted_sum_gev"],
            hits=widened(pool.hits, limits["hitsSpread"], all_of_them, design),
            moments_y=column(
                pool.moments_y, 1, widened(pool.moments_y[:, 1], limits["widthSpread"], all_of_them, design)
            ),
        ),
    )
    spread = widened(by_energy["ecal_sum_gev"], limits["responseSpread"], all_of_them)
    yield ("responseSpread",), replace(pool, ecal_sum_gev=pool.energy_gev * spread)
    yield ("showerMaximum",), shifted(pool, inside, 100 * limits["showerMaximum"], ranges, axes_of(run.data))


def shifted(pool: Observed, inside: Floats, layers: float, ranges: Floats, axes: Axes) -> Observed:
    """Profiles moved in depth so that the fitted maximum of the range is deeper by so many layers."""
    number = np.arange(pool.longitudinal.shape[1])

    def moved(by: float) -> Observed:
        profiles = np.stack([np.interp(number - by, number, profile) for profile in pool.longitudinal])
        return replace(pool, longitudinal=np.where(inside[:, None] > 0, profiles, pool.longitudinal))

    def excess(by: float) -> float:
        one, other = (Weighted(each, np.ones((3, len(pool))), ranges, ranges) for each in (pool, moved(by)))
        found = results_of_differences(one, other, [""] * ranges.shape[1], axes.depth_x0)["showerMaximum"]
        return float(found.differences[MIDDLE].value or 0) - layers

    ends = sorted((layers / 3, 3 * layers))
    return moved(float(brentq(excess, *ends, xtol=1e-3)))


def is_accepted(gate: Gate, result: QuantityResult, reference: int) -> bool:
    """The decision of the gate alone."""
    showers = Counts(reference=reference, generated=GENERATED, training=0, untrained=0, empty=0, unusable=0)
    results, *_ = decide([gate], {gate.quantity: result}, showers, [])
    return results[0].decision == "accepted"


Acceptances = Counter[tuple[str, int]]
"""By quantity and number of reference showers."""
Part = tuple[NDArray[np.int64], Floats]
"""Showers that are drawn from a population, and the weights of their bootstraps."""
Case = tuple[tuple[Gate, ...], tuple[Observed, Observed] | tuple[Floats, Floats]]
"""Gates, and what reference and generated showers are drawn from: observables, or a histogram (N, K, B) of each."""


def draw_parts(run: Run, population: int, size: int, generated: int, draw: int) -> tuple[list[Part], Floats]:
    """Reference and generated showers of a draw with bootstraps of independent primaries, and halves."""
    rng, of_weights = np.random.default_rng([draw, size]), np.random.default_rng(draw)
    counts = {"reference": size, "generated": generated}
    chosen = [rng.integers(population, size=count) for count in counts.values()]
    primaries = {name: of_weights.uniform(size=(count, 2)) for name, count in counts.items()}
    drawn = draw_resampling(primaries, run.validation.bootstraps, draw)
    return list(zip(chosen, drawn.weights.values())), drawn.halves


def differences(sources: Sequence[Observed], parts: Sequence[Part], run: Run) -> dict[str, QuantityResult]:
    """Quantities that need no histograms, of the reference and generated showers of a draw."""
    edges = range_edges(run.data.energy_gev, run.validation.energy_bins)
    samples = []
    for source, (indices, rows) in zip(sources, parts):
        observed = source[indices]
        member = bin_of_energy(observed.energy_gev, edges)
        samples.append(Weighted(observed, rows, member, member))
    reference, generated = samples
    labels = [str(k) for k in range(len(edges) - 1)]
    return results_of_differences(reference, generated, labels, axes_of(run.data).depth_x0)


def separated(quantity: str, sources: Sequence[Floats], parts: Sequence[Part], halves: Floats) -> QuantityResult:
    """The separation of two histograms of the showers of a draw."""
    reference, generated = (Sample(own[indices], rows) for own, (indices, rows) in zip(sources, parts))
    found, _ = separate(reference, halves, {"generated": generated})
    return of_separation(ObservableResult(title=quantity, **found.model_dump()))


def cases_of(kind: Kind, pool: Observed, run: Run) -> list[list[Case]]:
    """The cases of each draw; of differences every second draw has less than Monte Carlo."""
    gates: dict[str, Gate] = {gate.quantity: gate for gate in run.validation.judging}
    if kind == "differences":
        return [
            [(tuple(gates[name] for name in names), (pool, changed)) for names, changed in hypotheses(pool, run, side)]
            for side in (1.0, -1.0)
        ]
    separations = {name: gate for name, gate in gates.items() if name.endswith("Separation")}
    others = [gate for name, gate in gates.items() if name not in (*separations, *CHANGED_BY_REPETITION)]
    histograms = fill_histograms(pool, choose_edges(pool))
    cases: list[Case] = [(tuple(others), (pool, pool))]
    for name, gate in separations.items():
        own = histograms[name.removesuffix("Separation")]
        cases.append(((gate,), (own, own)))
    return [cases]


def count(kind: Kind, pool: Observed, run: Run, size: int, draws: int) -> Acceptances:
    """Acceptances by each gate; of Geant4 itself also by all of them together."""
    counts, cases = Acceptances(), cases_of(kind, pool, run)
    generated = GENERATED_EQUAL if kind == "equal" else GENERATED
    for draw in range(draws):
        parts, halves = draw_parts(run, len(pool), size, generated, draw)
        accepted: dict[str, bool] = {}
        for gates, sources in cases[draw % len(cases)]:
            if isinstance(sources[0], Observed):
                found = differences(sources, parts, run)
            else:
                found = {gates[0].quantity: separated(gates[0].quantity, sources, parts, halves)}
            accepted |= {gate.quantity: is_accepted(gate, found[gate.quantity], size) for gate in gates}
        if kind == "equal":
            accepted[ALL] = all(accepted.values())
        counts.update({(name, size): int(word) for name, word in accepted.items()})
    return counts


def rates(counts: Acceptances, draws: int, digits: int) -> str:
    """Acceptances of each gate in per cent, Markdown."""
    names = list(dict.fromkeys(name for name, _ in counts))
    rows = [
        [f"`{name}`", *(f"{100 * counts[name, size] / draws:.{digits}f}%" for size in SIZES)]
        for name in sorted(names, key=[*TITLES, *names].index)
    ]
    return table(["gate", *(f"{size} showers" for size in SIZES)], rows)


def measured(showers: Showers, run: Run) -> Observed:
    """Observables of all showers."""
    thresholds = {"hits_gev": run.validation.hits_threshold_gev, "threshold_gev": run.data.preprocessing.threshold_gev}
    return observe(showers, axes_of(run.data), choose_cuts([showers], **thresholds))


def main() -> None:
    """Measure all gates and print the rates."""
    parser = argparse.ArgumentParser(prog="python -m tools.acceptance", description=__doc__)
    parser.add_argument("--draws", type=int, default=400, help="draws of a generator at the tolerance; 0: none")
    parser.add_argument("--equal-draws", type=int, default=200, help="draws of Geant4 itself; 0: none")
    parser.add_argument("--set", action="append", default=[], help="such as validation.gates=[...]")
    options = parser.parse_args()
    run = load_run(preset=PRESET, overrides=options.set)
    pool = measured(held_out_showers(GEANT4_SHOWERS, run), run)
    draws: dict[Kind, int] = {"differences": options.draws, "equal": options.equal_draws}
    counts = {kind: Acceptances() for kind in draws}
    with (
        threadpool_limits(1),
        ProcessPoolExecutor(mp_context=get_context("spawn"), initializer=threadpool_limits, initargs=(1,)) as processes,
        bar("false acceptance", len(draws) * len(SIZES), "parts") as progress,
    ):
        for kind, number in draws.items():
            for future in [processes.submit(count, kind, pool, run, size, number) for size in reversed(SIZES)]:
                counts[kind].update(future.result())
                progress.update(1)
    print(f"Preset {PRESET}, {GENERATED} generated showers. Population: {len(pool)} Geant4 showers\n")
    if number := options.draws:
        deviation = 100 * np.sqrt(ERROR * (1 - ERROR) / number)
        print(f"Acceptances, stated: {100 * ERROR:.0f}%; {number} draws, standard deviation {deviation:.1f} points\n")
        print(rates(counts["differences"], number, 1))
    if number := options.equal_draws:
        print(f"\nAcceptances of {GENERATED_EQUAL} showers of Geant4 itself as generated ones, {number} draws\n")
        print(rates(counts["equal"], number, 0))
    print(f"\nMachine: {machine_text(describe_machine())}.")


if __name__ == "__main__":
    main()
