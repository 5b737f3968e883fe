"""Operating characteristics of the verdict: what the gates of a preset decide on good and on bad generators.

    python -m tools.verdicts [--run runs/latest]

Judged by the gates of a run are its networks, the same ones untrained or with an untrained part, their
showers deformed (tools.deformations), and other simulated showers in the place of generated ones.
"""

import argparse
import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from caloscale.bench.results import describe_machine, machine_text
from caloscale.errors import InputError
from caloscale.inference.generator import load_generator
from caloscale.physics import Evaluation, compare, evaluate
from caloscale.report.drawing import sample_names
from caloscale.showers.arrays import Showers
from caloscale.showers.tfrecord.manifest import MANIFEST
from caloscale.showers.tfrecord.shard_folder import open_shards
from caloscale.showers.tfrecord.shards import preprocess_showers, read_split
from caloscale.simulation import simulate
from caloscale.spec import Run, load_run
from caloscale.spec.workspace_layout import TRAINED
from caloscale.stages.showers import cache_folder
from caloscale.stages.validation import draw_primaries, generated_showers, judging_showers
from caloscale.stages.workspace import dataset_of
from tools import table
from tools.deformations import deformations

RUNS = Path(__file__).resolve().parent.parent / "runs"
GEANT4_SHOWERS = 3950
"""Where Geant4 itself is judged: half an hour of two cores."""
SEED = 20_261_122
"""Seed of the simulation of the showers that judge: the presets train on those of seed 1."""
NORMAL = "normal run"
DIVISIONS = 10
"""Random divisions of the simulated showers into reference and `generator`."""
PARTS = {"flow": ("layer_flow", "marginals")}
"""By family: layers of the generator that are replaced by untrained ones, one at a time."""


def held_out_showers(count: int, run: Run) -> Showers:
    """At most ``count`` simulated showers of a run's detector, energies and angles from a seed of their own.

    The simulation is kept in the user's cache and resumes there; showers below the minimum sum are dropped. Raises
    InputError for a run of showers that are not simulated: no others are known.
    """
    if run.data.source != "simulate":
        problem, remedy = "names showers of which no others can be simulated", "give the run of a preset"
        raise InputError(problem, field="data.source", value=run.data.source, remedy=remedy)
    data = run.data.model_copy(update={"showers": count, "seed": SEED, "validation_fraction": 0.01})
    cache = cache_folder(data)
    simulate(data, cache)
    shards = RUNS / "held-out" / hashlib.sha256(data.as_json().encode()).hexdigest()[:8]
    if not (shards / MANIFEST).is_file():
        shards.parent.mkdir(parents=True, exist_ok=True)
        preprocess_showers(data, cache, shards)
    return read_split(shards, "train")


def of_simulated(run: Run, dataset: Path) -> Iterator[tuple[str, Evaluation]]:
    """The decisions on simulated showers in the place of generated ones, as many for reference as a run has."""
    with open_shards(dataset) as shards:
        count = len(judging_showers(shards.manifest, run))
        training = shards.read("train")
    pool = held_out_showers(GEANT4_SHOWERS, run)
    for division in range(DIVISIONS):
        order = np.random.default_rng(division).permutation(len(pool))
        judging, judged = pool[order[:count]], pool[order[count:]]
        found = compare(judging, judged, training=training, untrained=None, data=run.data, validation=run.validation)
        yield sample_names(pool.source)["reference"], evaluate(found)


def of_deformed(run: Run, dataset: Path, networks: Path) -> Iterator[tuple[str, Evaluation]]:
    """The decisions on a trained network, the untrained one, mixtures of both, and deformed showers of the first."""
    with open_shards(dataset) as shards:
        reference = shards.read("validation", judging_showers(shards.manifest, run))
        training = shards.read("train")
    primaries: dict[str, Any] = draw_primaries(run, training, generated_showers(run))
    generated, untrained = (
        load_generator(networks, untrained=which).generate(**primaries, seed=run.validation.seed)
        for which in (False, True)
    )
    cases: dict[str, Showers] = {NORMAL: generated, "untrained": untrained}
    for part in PARTS.get(run.model.family, ()):
        broken, fresh = (load_generator(networks, untrained=which) for which in (False, True))
        layers = [getattr(one.network.get_layer(run.model.family), part) for one in (broken, fresh)]
        layers[0].set_weights(layers[1].get_weights())
        cases[f"{part} untrained"] = broken.generate(**primaries, seed=run.validation.seed)
    cases |= {name: change(generated) for name, change in deformations(training).items()}
    for name, showers in cases.items():
        found = compare(reference, showers, training=training, untrained=None, data=run.data, validation=run.validation)
        yield name, evaluate(found)


def counts(judged: Sequence[tuple[str, Evaluation]]) -> str:
    """Counts of the verdicts, and which gates rejected how often, Markdown."""
    lines = []
    for case in dict.fromkeys(name for name, _ in judged):
        chosen = [one for name, one in judged if name == case]
        decisions = Counter(one.decision for one in chosen)
        gates = Counter(gate.quantity for one in chosen for gate in one.gates if gate.decision == "rejected")
        named = ", ".join(f"{name} ({count})" if len(chosen) > 1 else name for name, count in gates.most_common())
        numbers = [str(decisions[word]) for word in ("accepted", "undecided", "rejected")]
        lines.append([case, str(len(chosen)), *numbers, named or "none"])
    return table(["generator", "judged", "accepted", "undecided", "rejected", "gates that rejected"], lines)


def error_rates(judged: Sequence[tuple[str, Evaluation]]) -> str:
    """What the counts say of the rates, with limits of 95% (Clopper and Pearson), and what was undecided.

    The normal run is neither right nor wrong: its networks may really differ by more than the tolerances.
    """
    simulated = sample_names(judged[0][1].reference_source)["reference"]
    same = [one for name, one in judged if name == simulated]
    bad = [one for name, one in judged if name not in (simulated, NORMAL)]
    rejected = sum(one.decision == "rejected" for one in same)
    accepted = sum(one.decision == "accepted" for one in bad)
    limits = [
        binomtest(count, len(some), alternative="less").proportion_ci(0.95).high
        for count, some in ((rejected, same), (accepted, bad))
    ]
    open_gates = Counter(gate.quantity for one in same for gate in one.gates if gate.decision == "undecided")
    undecided = ", ".join(f"{name} ({count})" for name, count in open_gates.most_common())
    return (
        f"{simulated} in the place of a generator ({same[0].showers.generated} showers) was rejected in {rejected} of "
        f"{len(same)} divisions of the same showers "
        f"(below {limits[0]:.0%} with 95% confidence if they were independent), {accepted} of {len(bad)} bad "
        f"generators were accepted (below {limits[1]:.0%})."
        + (f" Gates that were undecided for {simulated}: {undecided}." if undecided else "")
    )


def main() -> None:
    """Judge all cases, and print the text of docs/verdicts.md."""
    parser = argparse.ArgumentParser(prog="python -m tools.verdicts", description=__doc__)
    parser.add_argument("--run", type=Path, default=RUNS / "latest", help="folder of a finished run")
    folder = parser.parse_args().run
    run, dataset = load_run(folder / "run.yaml"), dataset_of(folder)
    judged = [*of_deformed(run, dataset, folder / TRAINED), *of_simulated(run, dataset)]
    sizes = judged[0][1].showers
    print(
        f"The preset {run.model.preset}, judged by {sizes.reference} held-out "
        f"{sample_names(judged[0][1].reference_source)['reference']} showers and {sizes.generated} "
        "generated ones.\n\n"
        f"{counts(judged)}\n\n{error_rates(judged)}\n\nMachine: {machine_text(describe_machine())}."
    )


if __name__ == "__main__":
    main()
