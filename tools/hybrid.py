"""Geant4 with a generator in the calorimeter against Geant4 alone: gates and times, with and without material in front.

    python -m tools.hybrid --output FILE [--preset compact] [--showers 1000] [--set FIELD=VALUE]

The generator is that of a run of the preset (`make run`), which is made if it is not there. Both simulations have the
same primaries, perpendicular and within the trained energies, and random numbers of their own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from caloscale.api import evaluate
from caloscale.bench.machine import describe_machine
from caloscale.bench.results import BenchMachine
from caloscale.bench.tables import machine_text
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.preprocessing import rebin, to_gev, to_network
from caloscale.simulation import simulate
from caloscale.spec import Run, load_run
from caloscale.stages.hybrid import GEANT4_PART, simulate_hybrid
from caloscale.storage.atomic import atomic_writer
from tools.benchmark_runs import table
from tools.trained_runs import HELD_OUT_SEED, TRAINED_RUNS, trained

SCENARIOS = {
    "nothing": ("nothing in front", ()),
    "lead": ("5.6 mm of lead (a radiation length) in front", ("data.front=[{material: lead, thicknessMm: 5.6}]",)),
}


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.hybrid", description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--preset", default="compact")
    parser.add_argument(
        "--showers", type=int, default=1000, help="of the hybrid simulation; Geant4 alone makes twice as many"
    )
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="FIELD=VALUE", help="of all")
    return parser.parse_args(list(arguments))


def read_folder(folder: Path, run: Run, cells: tuple[int, int, int]) -> Showers:
    """All showers of a folder as the networks see them: re-binned, without cells below the threshold."""
    geometry, preprocessing = run.data.geometry.model_copy(update={"cells": cells}), run.data.preprocessing
    parts = [read_showers(file, geometry=geometry) for file in sorted(folder.glob("showers-*.h5"))]
    joined = np.concatenate([part.cells_gev for part in parts])
    factors = tuple(has // wanted for has, wanted in zip(cells, run.data.shape))
    seen = to_gev(to_network(rebin(joined, factors), preprocessing), preprocessing)
    energy_gev, angle_rad = (np.concatenate([getattr(p, name) for p in parts]) for name in ("energy_gev", "angle_rad"))
    return Showers(seen, energy_gev, angle_rad, parts[0].source)


def compare(model: Path, preset: str, showers: int, overrides: Sequence[str], folder: Path) -> dict[str, Any]:
    """A scenario: times, and the gates with Geant4 alone as the truth."""
    common = ("data.angleDeg=[90,90]", f"data.seed={HELD_OUT_SEED}", *overrides)
    # Half of Geant4's showers judge, the other half trains the classifier of the gates.
    whole = load_run(preset=preset, overrides=[*common, f"data.showers={showers}", "data.validationFraction=0.5"])
    other = load_run(preset=preset, overrides=[*common, f"data.showers={showers}", "data.validationFraction=0.01"])
    geant4 = simulate(whole.data, folder / "geant4")
    hybrid = simulate_hybrid(other.data, [model], folder / "hybrid")
    alone = read_folder(folder / "geant4", whole, whole.data.geometry.cells)
    generated = read_folder(folder / "hybrid", other, other.data.shape)
    shutil.rmtree(folder / "hybrid" / GEANT4_PART, ignore_errors=True)
    halves = [
        replace(
            alone, cells_gev=alone.cells_gev[part], energy_gev=alone.energy_gev[part], angle_rad=alone.angle_rad[part]
        )
        for part in (slice(0, None, 2), slice(1, None, 2))
    ]
    evaluation = evaluate(generated, reference=halves[0], training=halves[1], run=whole)
    return {
        "decision": evaluation.decision,
        "gates": [gate.model_dump(mode="json") for gate in evaluation.gates],
        "geant4CoreSeconds": geant4.core_seconds_per_shower,
        "hybrid": hybrid.model_dump(mode="json"),
        "showers": [len(halves[0]), len(generated)],
    }


def scenario_table(scenarios: Mapping[str, Any]) -> str:
    """A row for each gate, a column for each scenario, Markdown."""
    rows = []
    for index, first in enumerate(next(iter(scenarios.values()))["gates"]):
        cells = []
        for scenario in scenarios.values():
            gate = scenario["gates"][index]
            unit = f" {gate['unit']}" if gate["unit"] else ""
            shown = (
                "not measured"
                if gate["value"] is None
                else f"{gate['value']:.3g}{unit} ({gate['low']:.2g} to {gate['high']:.2g})"
            )
            cells.append(f"{shown}: {gate['decision']}")
        rows.append([f"{first['title']}, tolerance {first['tolerance']:g}", *cells])
    shares = [f"{s['hybrid']['generated_energy']:.0%}" for s in scenarios.values()]
    alone = [f"{s['geant4CoreSeconds']:.3f} s" for s in scenarios.values()]
    parts = [
        f"{s['hybrid']['geant4_core_seconds_per_shower']:.3f} + {s['hybrid']['generator_seconds_per_shower']:.4f} s"
        for s in scenarios.values()
    ]
    rows += [
        ["verdict", *(s["decision"] for s in scenarios.values())],
        ["energy that was generated", *shares],
        ["an event by Geant4 alone, core seconds", *alone],
        ["hybrid: Geant4, core seconds, and generator", *parts],
    ]
    return table(["", *(SCENARIOS[name][0] for name in scenarios)], rows)


def section(result: Mapping[str, Any], command: str) -> str:
    """What docs/benchmarks.md says of a result."""
    real, made = next(iter(result["scenarios"].values()))["showers"]
    return (
        f"`{command}`: `caloscale simulate --with MODEL` with the generator of the preset {result['preset']} "
        f"(5 to 40 GeV electrons; verdict of its own validation: {result['verdict']}) against Geant4 alone, "
        f"perpendicular electrons of the same energies, {made:,} hybrid and {real:,} other events.\n\n"
        f"{scenario_table(result['scenarios'])}\n\n"
        "Differences of the hybrid simulation from Geant4 alone by the gates of the preset, where they are largest, "
        "with 90% intervals. Behind the lead, photons and the electrons below 5 GeV stay with Geant4, so that the time "
        "falls only by the share that was generated.\n\n"
        f"Machine: {machine_text(BenchMachine.model_validate(result['machine']))}.\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Simulate and compare what is missing and write the table."""
    asked = options(arguments)
    run = trained(preset=asked.preset, overrides=asked.overrides)
    verdict = json.loads((run / "validation" / "physics.json").read_text(encoding="utf-8"))["decision"]
    scenarios = {}
    for name, (_, overrides) in SCENARIOS.items():
        folder = TRAINED_RUNS / f"hybrid-{run.name}-{name}-{asked.showers}"
        scenarios[name] = compare(
            run / "training" / "model", asked.preset, asked.showers, [*asked.overrides, *overrides], folder
        )
        print(f"{name}: {scenarios[name]['decision']}", flush=True)
    result = {
        "preset": asked.preset,
        "verdict": verdict,
        "scenarios": scenarios,
        "machine": describe_machine().model_dump(mode="json", by_alias=True),
    }
    with atomic_writer(asked.output) as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(scenario_table(scenarios))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
