"""The section of docs/benchmarks.md about whole runs of the compact preset with several seeds."""

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from caloscale.stages.record import read_records

SECTION = """The whole pipeline of the compact preset (`make run PRESET=compact`) with {count} seeds of the training on
the same showers, one column per seed: `make bench BENCH=runs`.

### From showers to a report

{time_table}

Peak memory: all processes of a stage together. Simulation: {showers} showers of {energies} GeV from Geant4,
{core_seconds:.3f} core seconds each; later runs take them from the cache.

### What the training learns

Separation power from held-out Geant4 showers, 0 (equal) to 1 (disjoint). *Null*: what is expected of equal
distributions at these numbers of showers. *Baseline*: the mean training shower scaled by energy. *Improvement*:
standard deviations of a bootstrap by which the generator is nearer to Geant4 than the baseline.

{physics_table}

{scalar_table}

### The bill

{cost_table}

Machine: {processor}, {cores} cores, {memory_gib:g} GiB; {date}.
"""


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def row(title: str, summaries: list[dict[str, Any]], value: Callable[[dict[str, Any]], Any], form: str) -> list[str]:
    """A row with a column per run; what is absent is said."""
    return [title, *("absent" if (v := value(s)) is None else format(v, form) for s in summaries)]


def time_table(summaries: list[dict[str, Any]]) -> str:
    """Seconds, memory and speeds of the stages."""
    stages = list(summaries[0]["stages"])
    rows = [row(f"{s}: wall s", summaries, lambda x, s=s: x["stages"][s]["seconds"], ".1f") for s in stages]
    rows += [row(f"{s}: peak MiB", summaries, lambda x, s=s: x["stages"][s]["peakMemoryMib"], ".0f") for s in stages]
    rows += [
        row("Geant4: showers/s", summaries, lambda x: x["simulation"]["showersPerSecond"], ".1f"),
        row("training: steps", summaries, lambda x: x["train"]["steps"], "d"),
        row("training: showers/s", summaries, lambda x: x["train"]["showersPerSecond"], ".0f"),
        row("training ended by", summaries, lambda x: x["train"]["stopped"], ""),
        row("generator: showers/s", summaries, lambda x: x["generate"]["showersPerSecond"], ".0f"),
        row("generator over Geant4", summaries, lambda x: x["generate"]["speedupOverGeant4"], ".0f"),
    ]
    return table(["", *names(summaries)], rows)


def physics_table(summaries: list[dict[str, Any]]) -> str:
    """Separations: per run, then expected null, untrained and baseline as means over the runs."""
    observables = [k for k, v in summaries[0]["physics"].items() if isinstance(v, dict)]

    def mean(name: str, field: str) -> str:
        values = [s["physics"][name][field] for s in summaries if s["physics"][name][field] is not None]
        return format(statistics.mean(values), ".3g") if values else "absent"

    rows = [
        row(name, summaries, lambda x, n=name: x["physics"][n]["separation"], ".3g")
        + [mean(name, field) for field in ("expectedNull", "untrained", "baseline", "improvementSigmas")]
        for name in observables
    ]
    return table(["observable", *names(summaries), "null", "untrained", "baseline", "improvement"], rows)


def scalar_table(summaries: list[dict[str, Any]]) -> str:
    """What is one number for the whole run."""
    fields = {
        "largest difference of the fitted shower maximum, layers": ("showerMaximumDifferenceLayers", ".2f"),
        "ECAL sum: largest deviation from a straight line": ("linearityDeviation", ".2%"),
        "resolution: mean deviation of sigma/E from Geant4's": ("resolutionDeviation", ".1%"),
        "resolution: improvement over the baseline, sigma": ("resolutionImprovementSigmas", ".1f"),
        "classifier AUC": ("classifierAuc", ".3f"),
        "training showers of each kind of the classifier": ("classifierShowers", "d"),
        "verdict": ("decision", ""),
    }
    rows = [row(title, summaries, lambda x, f=field: x["physics"][f], form) for title, (field, form) in fields.items()]
    return table(["", *names(summaries)], rows)


def cost_table(summaries: list[dict[str, Any]]) -> str:
    """Dollars, with the machine, the day of the prices and what a million showers cost."""
    bill = summaries[0]["bill"]
    (node,) = bill["nodes"]
    per_million = "perMillionShowers"
    rows = [
        row("the whole run, USD", summaries, lambda x: x["bill"]["usd"], ".4f"),
        row("a million showers generated, USD", summaries, lambda x: x["bill"][per_million]["generatedUsd"], ".4f"),
        row("a million showers by Geant4, USD", summaries, lambda x: x["bill"][per_million]["monteCarloUsd"], ".2f"),
    ]
    where = f"{node['title']}, {node['region']}, {node['capacityType']}, prices seen on {bill['pricesObservedOn']}"
    return table(["", *names(summaries)], rows) + f"\n\n{where}. Seconds are not converted between machines."


def names(summaries: list[dict[str, Any]]) -> list[str]:
    """Titles of the columns."""
    return [s["run"] for s in summaries]


def runs_section(runs: Sequence[Path]) -> str:
    """The section, from the folders of the runs."""
    summaries = [json.loads((run / "summary.json").read_text(encoding="utf-8")) for run in runs]
    records = read_records(runs[0])
    energies = records["preprocess"].figures["energyGev"]
    return SECTION.format(
        count=len(runs),
        **records["train"].machine.model_dump(),
        date=f"{records['train'].started:%Y-%m-%d}",
        showers=records["simulate"].figures["showers"],
        energies=f"{energies[0]:g}-{energies[1]:g}",
        core_seconds=summaries[0]["simulation"]["coreSecondsPerShower"],
        time_table=time_table(summaries),
        physics_table=physics_table(summaries),
        scalar_table=scalar_table(summaries),
        cost_table=cost_table(summaries),
    )
