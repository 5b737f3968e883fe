"""Which losses and parts of the compact network give its showers their fluctuations: an ablation.

    python -m tools.compact_ablation --output FILE [--seeds 3] [--showers 10000] [--variant NAME] [--set FIELD=VALUE]

Trains each variant of VARIANTS with each seed (runs/trained) and compares its showers with held-out Monte Carlo
showers of a seed of their own. Finished trainings and comparisons (runs/bench/compact-*) are used again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from caloscale.bench.machine import describe_machine
from caloscale.bench.results import BenchMachine
from caloscale.bench.tables import machine_text
from caloscale.physics import compare
from caloscale.physics.classifier import TwoSampleTest, classifier_features, measure_auc
from caloscale.physics.comparison import Weighted
from caloscale.physics.quantities import results_of_differences
from caloscale.physics.resampling import summarise
from caloscale.showers.arrays import Showers
from caloscale.showers.tfrecord.shard_folder import open_shards
from caloscale.spec import Run, load_run
from caloscale.spec.workspace_layout import DATASET, TRAINED
from caloscale.storage.atomic import write_text
from tools.benchmark_runs import table
from tools.trained_runs import NO_LIMIT, RUNS, held_out_showers, trained

PRESET = "compact"
VARIANTS: Mapping[str, tuple[str, ...]] = {
    "the preset": (),
    "no energy score": ("train.energyScoreWeight=0",),
    "ecalSum 0.15": ("train.lossWeights.ecalSum=0.15",),
    "ecalSum 0.6": ("train.lossWeights.ecalSum=0.6",),
    "no averaged weights": ("train.averageDecay=0",),
    "averageDecay 0.99": ("train.averageDecay=0.99",),
    "no transverse": ("train.lossWeights.transverse=0",),
    "no depth": ("train.lossWeights.depth=0",),
    "no layers": ("train.lossWeights.layers=0",),
    "no hits": ("train.lossWeights.hits=0",),
    "no counts": ("train.lossWeights.counts=0",),
    "no discriminator": ("train.lossWeights.realFake=0", "train.lossWeights.energy=0"),
}
"""By title: what each changes of the preset, as `--set` of `caloscale run` takes it."""
SHOWERS = 10_000
AUC_SHOWERS = 1000
"""Training showers of each kind of the classifier."""
COLUMNS = {
    "responseSpread": "response spread",
    "depthSpread": "depth spread",
    "transverseWidth x": "width x",
    "transverseWidth y": "width y",
    "hits": "hits",
    "response": "response",
    "angleSpread": "angle spread",
    "angleSlope": "angle slope",
}


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.compact_ablation", description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each variant")
    parser.add_argument("--showers", type=int, default=SHOWERS, help="held-out and generated showers, each")
    parser.add_argument("--variant", action="append", choices=list(VARIANTS), help="absent: all")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="FIELD=VALUE", help="of all")
    return parser.parse_args(list(arguments))


def compare_with(real: Showers, generated: Showers, run: Run) -> dict[str, dict[str, Any]]:
    """Ratios to Monte Carlo with the standard deviation of their bootstraps, and the AUC at AUC_SHOWERS training
    showers of each kind (half of the showers train, at most; `showers` says how many did).

    `hits` is the mean over the ranges of energy, `response` that of all energies together. `angleSpread`: of the
    measured about the primary's angle; `angleSlope`: of a line through the measured against the primary's angles.
    """
    comparison = compare(real, generated, training=real, untrained=None, data=run.data, validation=run.validation)
    weighted = comparison.weighted
    labels = [f"range {k}" for k in range(len(comparison.range_edges_gev) - 1)]
    quantities = results_of_differences(
        weighted["reference"], weighted["generated"], labels, comparison.samples.axes.depth_x0
    )
    found: dict[str, dict[str, Any]] = {}
    for name in ("responseSpread", "depthSpread", "transverseWidth", "hits", "response"):
        differences = quantities[name].differences
        chosen = differences[-1:] if name == "response" else differences
        values = np.array([[d.value, d.uncertainty] for d in chosen], dtype=float)  # NaN: too few showers
        ratios = [(1 + value / 100, uncertainty / 100) for value, uncertainty in values]
        if name == "transverseWidth":
            found |= {f"{name} {d.where}": _ratio(*ratio) for d, ratio in zip(differences, ratios)}
        else:
            mean, sigma = np.mean([r for r, _ in ratios]), np.hypot.reduce([s for _, s in ratios]) / len(ratios)
            found[name] = _ratio(mean, sigma)
    found |= angle_ratios(weighted["reference"], weighted["generated"])
    features = [classifier_features(weighted[name].observed) for name in ("reference", "generated")]
    half = min(len(sample) for sample in features) // 2
    test = TwoSampleTest(features[0][:half], features[1][:half], features[0][half:], features[1][half:])
    point = measure_auc(test, min(AUC_SHOWERS, half), seed=run.validation.seed, repeats=4)
    found["auc"] = {"value": point.auc.value, "uncertainty": point.auc.uncertainty, "showers": point.showers}
    return found


def angle_ratios(real: Weighted, generated: Weighted) -> dict[str, dict[str, Any]]:
    """Spread of the measured about the primary's angle and slope of the one against the other, over Monte Carlo's."""
    found = []
    for sample in (real, generated):
        keep = ~sample.observed.empty
        weights = sample.weights[:, keep] / sample.weights[:, keep].sum(axis=1, keepdims=True)
        error, primary = sample.observed.angle_error_rad[keep], sample.observed.angle_rad[keep]
        primary = primary - primary.mean()
        with np.errstate(divide="ignore", invalid="ignore"):
            mean, mean_error = weights @ primary, weights @ error
            slope = 1 + (weights @ (primary * error) - mean * mean_error) / (weights @ primary**2 - mean**2)
            found.append((np.sqrt(weights @ error**2 - mean_error**2), slope))
    return {name: _ratio(*summarise(fake / true)) for name, true, fake in zip(("angleSpread", "angleSlope"), *found)}


def _ratio(value: float, uncertainty: float) -> dict[str, float | None]:
    numbers = {"value": value, "uncertainty": uncertainty}
    return {name: round(float(number), 5) if np.isfinite(number) else None for name, number in numbers.items()}


def compare_showers(folder: Path, run: Run, real: Showers, asked: int) -> dict[str, Any]:
    """What the showers of the trained networks in a run folder are like; kept in runs/bench."""
    from caloscale.inference import load_generator
    from caloscale.stages.validation import draw_primaries

    file = RUNS / "bench" / f"{folder.name}-{asked}.json"
    if not file.is_file():
        with open_shards(folder / DATASET) as shards:
            training = shards.read("train")
        primaries = draw_primaries(run, training, len(real))
        generated = load_generator(folder / TRAINED).generate_table(primaries, seed=run.validation.seed)
        text = json.dumps(compare_with(real, generated, run), indent=1)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, text)
    return dict(json.loads(file.read_text(encoding="utf-8")))


def of_variant(title: str, seed: int, overrides: Sequence[str], real: Showers, asked: int) -> dict[str, Any]:
    """A variant trained with this seed; training and result are kept."""
    changed = (NO_LIMIT, *overrides, *VARIANTS[title], f"train.seed={seed}")
    folder = trained(preset=PRESET, overrides=changed)
    found = compare_showers(folder, load_run(preset=PRESET, overrides=changed), real, asked)
    print(f"{title}, seed {seed}: response spread {found['responseSpread']['value']}", flush=True)
    return {"variant": title, "seed": seed, "run": folder.name, "found": found}


def pooled(found: Sequence[Mapping[str, Any]]) -> str:
    """Mean over the seeds, and half of its 95% interval: the bootstrap, whose Monte Carlo is the same for all seeds,
    and the scatter of the seeds."""
    values = [one["value"] for one in found]
    if any(value is None for value in values):
        return "too few showers"
    bootstrap = max(one["uncertainty"] for one in found)
    scatter = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3f} ± {1.96 * (bootstrap**2 + scatter**2) ** 0.5:.3f}"


def variants_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row for each variant, Markdown."""
    lines = []
    for title in dict.fromkeys(row["variant"] for row in rows):
        found = [row["found"] for row in rows if row["variant"] == title]
        cells = [pooled([one[name] for one in found]) for name in (*COLUMNS, "auc")]
        lines.append([title, " ".join(f"`{o}`" for o in VARIANTS.get(title, ())), str(len(found)), *cells])
    return table(["variant", "changed", "seeds", *COLUMNS.values(), "AUC"], lines)


def section(result: dict[str, Any], command: str) -> str:
    """The text of docs/benchmarks.md about a result."""
    rows = result["rows"]
    showers = max(row["found"]["auc"]["showers"] for row in rows)
    changed = f" All with {', '.join(result['overrides'])}." if result["overrides"] else ""
    return (
        f"`{command}`: variants of the preset {PRESET}, judged by {result['showers']:,} held-out showers "
        f"({result['source']}) and as many generated ones.{changed}\n\n{variants_table(rows)}\n\n"
        "Ratios to Monte Carlo (1: equal): spreads of the response and of the depth within a range of energy, mean "
        "widths, hits, mean response, spread of the measured about the primary's angle, slope of the measured against "
        f"the primary's angle. AUC with {showers:,} training showers of each kind (0.5: not distinguishable). "
        "Means over the seeds with 95% intervals from the bootstrap and the scatter of the seeds.\n\n"
        f"Machine: {machine_text(BenchMachine.model_validate(result['machine']))}.\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Train and compare what is missing and write the table."""
    asked = options(arguments)
    real = held_out_showers(asked.showers, preset=PRESET, overrides=asked.overrides)
    rows = [
        of_variant(title, seed, asked.overrides, real, asked.showers)
        for title in asked.variant or VARIANTS
        for seed in range(1, asked.seeds + 1)
    ]
    result = {
        "source": real.source,
        "showers": len(real),
        "overrides": asked.overrides,
        "rows": rows,
        "machine": describe_machine().model_dump(mode="json", by_alias=True),
    }
    write_text(asked.output, json.dumps(result, indent=1))
    print(variants_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
