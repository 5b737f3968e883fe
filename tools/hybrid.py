"""Geant4 with a generator in the calorimeter against Geant4 alone: gates and times, with and without material in front.

    python -m tools.hybrid --output FILE [--preset compact] [--showers 1700] [--set FIELD=VALUE]

docs/hybrid.png is its figure.

The generator is that of a run of the preset (`make run`; for pairs, of the same with photons), which is made if it
is not there. Both simulations have the same primaries, perpendicular and within the trained energies, and random
numbers of their own.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.signal import find_peaks
from scipy.stats import binomtest

from caloscale.api import evaluate
from caloscale.bench.generate import bench_generate
from caloscale.bench.machine import describe_machine
from caloscale.bench.results import BenchMachine
from caloscale.bench.tables import machine_text
from caloscale.report.drawing import COLOURS, new_page, own_style
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.reader import read_showers
from caloscale.showers.preprocessing import rebin, to_gev, to_network
from caloscale.showers.primaries import joined
from caloscale.simulation import simulate
from caloscale.spec import Run, load_run
from caloscale.stages.hybrid import GEANT4_PART, simulate_hybrid
from caloscale.storage.atomic import atomic_writer, write_text
from tools.benchmark_runs import table
from tools.trained_runs import HELD_OUT_SEED, ROOT, TRAINED_RUNS, trained

PHOTONS = ("data.particle=gamma", "data.entryMm=[-7.65, 7.65]")
"""Photons that enter anywhere within a re-binned cell: those of a pair have a distance that is no number of cells."""
PAIRS = ("data.particle=gamma", "data.energyGev=[10, 40]")
"""Each photon of a pair has half of the energy: 5 to 20 GeV."""


class Scenario(NamedTuple):
    """What is simulated."""

    title: str
    overrides: tuple[str, ...]
    of_training: tuple[str, ...] = ()
    """Overrides of the preset with which its generator is trained."""


SCENARIOS = {
    "nothing": Scenario("electrons, nothing in front", ()),
    "lead": Scenario(
        "electrons, 5.6 mm of lead (a radiation length) in front",
        ("data.front=[{material: lead, thicknessMm: 5.6}]",),
    ),
    **{
        f"pairs-{distance_mm}": Scenario(
            f"photon pairs, {distance_mm} mm apart", (*PAIRS, f"data.pairDistanceMm={distance_mm}"), PHOTONS
        )
        for distance_mm in (18, 24)
    },
}
SUM_EDGES = np.linspace(1.6, 3.4, 37)
"""Bins of the sum of the cells over the energy, per cent."""
FIGURE = ROOT / "docs" / "hybrid.png"
SMALLEST_DIP = 0.05
"""Two maxima are separated when the profile falls between them by this part of the larger one."""


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.hybrid", description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--preset", default="compact")
    parser.add_argument(
        "--showers",
        type=int,
        default=1700,
        help="of the hybrid simulation, of which 60%% train the gates' classifier; Geant4 alone makes twice as many",
    )
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="FIELD=VALUE", help="of all")
    return parser.parse_args(list(arguments))


def read_folder(folder: Path, run: Run, cells: tuple[int, int, int]) -> Showers:
    """All showers of a folder as the networks see them: re-binned, without cells below the threshold."""
    geometry, preprocessing = run.data.geometry.model_copy(update={"cells": cells}), run.data.preprocessing
    parts = [read_showers(file, geometry=geometry) for file in sorted(folder.glob("showers-*.h5"))]
    cells_gev = np.concatenate([part.cells_gev for part in parts])
    factors = tuple(has // wanted for has, wanted in zip(cells, run.data.shape))
    seen = to_gev(to_network(rebin(cells_gev, factors), preprocessing), preprocessing)
    return Showers.of(seen, joined([part.primaries for part in parts]), parts[0].source)


def separated(showers: Showers) -> int:
    """Showers whose profile along y, summed over x and z, has two maxima that are separated."""
    profiles = np.pad(showers.cells_gev.sum(axis=(1, 3), dtype=np.float64), ((0, 0), (1, 1)))
    return sum(len(find_peaks(profile, prominence=SMALLEST_DIP * profile.max())[0]) > 1 for profile in profiles)


def describe(showers: Showers) -> dict[str, list[float]]:
    """What the figure shows of a sample: mean energies per layer and along y, MeV, their statistical errors, and how
    many showers have which sum of the cells over the energy of the primaries (per cent, in bins of `SUM_EDGES`)."""
    found = {}
    for name, axes in (("layers", (1, 2)), ("across", (1, 3))):
        profiles = 1e3 * showers.cells_gev.sum(axis=axes, dtype=np.float64)
        found[name] = profiles.mean(axis=0).tolist()
        found[f"{name}Error"] = (profiles.std(axis=0) / len(showers) ** 0.5).tolist()
    sums, _ = np.histogram(100 * showers.ecal_sum_gev / showers.energy_gev, SUM_EDGES)
    return found | {"sums": sums.tolist()}


def draw(scenarios: Mapping[str, Any], file: Path) -> None:
    """A column for each scenario: profiles along depth and y, and the sum of the cells over the energy."""
    with own_style():
        page = new_page(5 * len(scenarios), 11)
        panels = page.subplots(3, len(scenarios), squeeze=False)
        for column, (name, scenario) in zip(panels.T, scenarios.items()):
            column[0].set_title(SCENARIOS[name].title.replace(", ", "\n", 1))
            for sample, label in (("reference", "Geant4 alone"), ("generated", "hybrid")):
                described, colour = scenario["described"][sample], COLOURS[sample]
                for axes, part in zip(column, ("layers", "across")):
                    values, error = np.array(described[part]), np.array(described[f"{part}Error"])
                    axes.plot(values, color=colour, drawstyle="steps-mid", label=label)
                    places = np.arange(len(values))
                    axes.fill_between(places, values - error, values + error, step="mid", color=colour, alpha=0.3)
                sums = np.array(described["sums"])
                column[2].stairs(sums / max(sums.sum(), 1), SUM_EDGES, color=colour, label=label)
            for axes, text in zip(column, ("layer", "cell along y", "sum of the cells over energy [%]")):
                axes.set_xlabel(text)
        for axes, text in zip(panels[:, 0], ("mean energy [MeV]", "mean energy [MeV]", "part of the showers")):
            axes.set_ylabel(text)
        panels[0, 0].legend()
        with atomic_writer(file) as temporary:
            page.savefig(temporary, format="png", dpi=60)


def time_particles(preset: str) -> dict[str, float | None]:
    """Milliseconds of a generated particle on one thread: one after the other, and the two of a pair together."""
    run = load_run(preset=preset)
    measured = {batch: bench_generate(run, batch, precisions=("float32",), threads=1, seconds=8) for batch in (1, 2)}
    return {
        f"{one.runtime}-{batch}": one.milliseconds_per_shower
        for batch, bench in measured.items()
        for one in bench.runtimes
    }


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
    halves = [alone[part] for part in (slice(0, None, 2), slice(1, None, 2))]
    evaluation = evaluate(generated, reference=halves[0], training=halves[1], run=whole)
    return {
        "decision": evaluation.decision,
        "gates": [gate.model_dump(mode="json") for gate in evaluation.gates],
        "geant4CoreSeconds": geant4.core_seconds_per_shower,
        "hybrid": hybrid.model_dump(mode="json"),
        "showers": [len(halves[0]), len(generated)],
        "separated": [[separated(each), len(each)] for each in (alone, generated)],
        "described": {"reference": describe(alone), "generated": describe(generated)},
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
            cells.append(shown if gate["decision"] == "accepted" else f"{shown}: {gate['decision']}")
        rows.append([f"{first['title']}, tolerance {first['tolerance']:g}", *cells])
    shares = [f"{s['hybrid']['generated_energy']:.0%}" for s in scenarios.values()]
    alone = [f"{s['geant4CoreSeconds']:.3f} s" for s in scenarios.values()]
    parts = [
        f"{s['hybrid']['geant4_core_seconds_per_shower']:.3f} + {s['hybrid']['generator_seconds_per_shower']:.4f} s"
        for s in scenarios.values()
    ]
    two = [
        " against ".join(
            f"{count / of:.1%} ({', '.join(f'{edge:.1%}' for edge in binomtest(count, of).proportion_ci(0.9))})"
            for count, of in reversed(s["separated"])
        )
        for s in scenarios.values()
    ]
    rows += [
        ["two separated maxima (90% interval), against Geant4 alone", *two],
        ["verdict", *(s["decision"] for s in scenarios.values())],
        ["energy that was generated", *shares],
        ["an event by Geant4 alone, core seconds", *alone],
        ["hybrid: Geant4, core seconds, and generator", *parts],
    ]
    return table(["", *(SCENARIOS[name].title for name in scenarios)], rows)


def particle_times(milliseconds: Mapping[str, float | None]) -> str:
    """In words, the runtimes that are installed."""
    titles = {"tensorflow": "TensorFlow", "onnx": "ONNX Runtime", "openvino": "OpenVINO"}
    found = {title: [milliseconds.get(f"{name}-{batch}") for batch in (1, 2)] for name, title in titles.items()}
    return ", ".join(f"{title} {one:.2f} and {two:.2f} ms" for title, (one, two) in found.items() if one and two)


def section(result: Mapping[str, Any], command: str) -> str:
    """The text of docs/benchmarks.md about a result."""
    real, made = next(iter(result["scenarios"].values()))["showers"]
    verdicts = ", ".join(f"{name} {verdict}" for name, verdict in result["verdicts"].items())
    return (
        f"`{command}`: `caloscale simulate --with MODEL` with the generator of the preset {result['preset']} "
        f"(5 to 40 GeV; verdicts of the validation: {verdicts}) against Geant4 alone, "
        f"perpendicular primaries of the same energies, {made:,} hybrid and {real:,} other events.\n\n"
        f"{scenario_table(result['scenarios'])}\n\n"
        "![Geant4 alone and hybrid simulations: profiles along depth and across, sums of the cells](hybrid.png)\n\n"
        "Largest differences of the hybrid simulation from Geant4 alone by the gates of the preset, with 90% "
        "intervals; accepted where nothing else is stated. With lead in front, photons and electrons below 5 GeV stay "
        "with Geant4. "
        "The generator of the photons was trained with photons that enter anywhere within a re-binned cell of 15.3 mm "
        "(`data.entryMm`). A shower has two separated maxima when its profile along the line between the photons falls "
        f"between them by {SMALLEST_DIP:.0%} of the larger one.\n\n"
        "A generated particle on one thread, without Geant4, one after the other and both of a pair together (half the "
        f"time of the pair): {particle_times(result['millisecondsOnOneThread'])}.\n\n"
        f"Machine: {machine_text(BenchMachine.model_validate(result['machine']))}.\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Simulate and compare what is missing and write the table."""
    asked = options(arguments)
    scenarios, verdicts = {}, {}
    for name, scenario in SCENARIOS.items():
        run = trained(preset=asked.preset, overrides=[*asked.overrides, *scenario.of_training])
        physics = json.loads((run / "validation" / "physics.json").read_text(encoding="utf-8"))
        verdicts["photons" if scenario.of_training else "electrons"] = physics["decision"]
        folder = TRAINED_RUNS / f"hybrid-{run.name}-{name}-{asked.showers}"
        overrides = [*asked.overrides, *scenario.overrides]
        scenarios[name] = compare(run / "training" / "model", asked.preset, asked.showers, overrides, folder)
        print(f"{name}: {scenarios[name]['decision']}", flush=True)
    result = {
        "preset": asked.preset,
        "verdicts": verdicts,
        "millisecondsOnOneThread": time_particles(asked.preset),
        "scenarios": scenarios,
        "machine": describe_machine().model_dump(mode="json", by_alias=True),
    }
    write_text(asked.output, json.dumps(result, indent=1))
    draw(scenarios, FIGURE)
    print(scenario_table(scenarios))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
