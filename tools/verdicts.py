"""Operating characteristics of the verdict: what the gates of a preset decide on good and on bad generators.

    python -m tools.verdicts [--run FOLDER] [--preset flow]

Judged by the gates of the preset are the networks of a run, the same ones untrained or with an untrained part, their
showers deformed (caloscale.bench.deformations), and other Geant4 showers in the place of generated ones.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from caloscale.bench.deformations import deformations
from caloscale.bench.results import describe_machine, machine_text
from caloscale.physics import Evaluation, compare, evaluate
from caloscale.showers.arrays import Showers
from caloscale.spec import Run, load_run
from caloscale.spec.workspace_layout import DATASET, TRAINED
from tools import table
from tools.trained_runs import GEANT4_SHOWERS, NO_LIMIT, held_out_showers, trained

PRESET = "flow"
NORMAL = "normal run"
GEANT4 = "Geant4"
DIVISIONS = 10
"""Random divisions of the Geant4 showers into reference and `generator`."""
PARTS = {"flow": ("layer_flow", "marginals")}
"""By family: layers of the generator that are replaced by untrained ones, one at a time."""


def row(case: str, evaluation: Evaluation) -> dict[str, Any]:
    """The decisions on one generator."""
    return {
        "case": case,
        "decision": evaluation.decision,
        "gates": {gate.quantity: gate.decision for gate in evaluation.gates},
        "showers": [evaluation.showers.reference, evaluation.showers.generated],
        "statements": [gate.statement for gate in evaluation.gates],
    }


def of_geant4(run: Run, preset: str, dataset: Path) -> Iterator[dict[str, Any]]:
    """The decisions on Geant4 showers in the place of generated ones, as many for reference as a run has."""
    from caloscale.showers.tfrecord.shard_folder import open_shards
    from caloscale.stages.validation import judging_showers

    with open_shards(dataset) as shards:
        count = len(judging_showers(shards.manifest, run))
        training = shards.read("train", np.arange(shards.manifest.splits["train"]))
    pool = held_out_showers(GEANT4_SHOWERS, preset=preset)
    for division in range(DIVISIONS):
        order = np.random.default_rng(division).permutation(len(pool))
        judging, judged = pool[order[:count]], pool[order[count:]]
        found = compare(judging, judged, training=training, untrained=None, data=run.data, validation=run.validation)
        yield row(GEANT4, evaluate(found))


def of_deformed(run: Run, dataset: Path, networks: Path) -> Iterator[dict[str, Any]]:
    """The decisions on a trained network, the untrained one, mixtures of both, and deformed showers of the first."""
    from caloscale.inference import load_generator
    from caloscale.showers.tfrecord.shard_folder import open_shards
    from caloscale.stages.validation import draw_primaries, generated_showers, judging_showers

    with open_shards(dataset) as shards:
        reference = shards.read("validation", judging_showers(shards.manifest, run))
        training = shards.read("train", np.arange(shards.manifest.splits["train"]))
    primaries = draw_primaries(run, training, generated_showers(run))
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
        yield row(name, evaluate(found))


def counts(rows: Sequence[dict[str, Any]]) -> str:
    """Counts of the verdicts, and which gates rejected how often, Markdown."""
    lines = []
    for case in dict.fromkeys(one["case"] for one in rows):
        chosen = [one for one in rows if one["case"] == case]
        decisions = Counter(one["decision"] for one in chosen)
        gates = Counter(name for one in chosen for name, decision in one["gates"].items() if decision == "rejected")
        named = ", ".join(f"{name} ({count})" if len(chosen) > 1 else name for name, count in gates.most_common())
        numbers = [str(decisions[word]) for word in ("accepted", "undecided", "rejected")]
        lines.append([case, str(len(chosen)), *numbers, named or "none"])
    return table(["generator", "judged", "accepted", "undecided", "rejected", "gates that rejected"], lines)


def error_rates(rows: Sequence[dict[str, Any]]) -> str:
    """What the counts say of the rates, with limits of 95% (Clopper and Pearson), and what was undecided.

    The normal run is neither right nor wrong: its networks may really differ by more than the tolerances.
    """
    same = [one for one in rows if one["case"] == GEANT4]
    bad = [one for one in rows if one["case"] not in (GEANT4, NORMAL)]
    rejected = sum(one["decision"] == "rejected" for one in same)
    accepted = sum(one["decision"] == "accepted" for one in bad)
    limits = [
        binomtest(count, len(some), alternative="less").proportion_ci(0.95).high
        for count, some in ((rejected, same), (accepted, bad))
    ]
    open_gates = Counter(name for one in same for name, word in one["gates"].items() if word == "undecided")
    undecided = ", ".join(f"{name} ({count})" for name, count in open_gates.most_common())
    return (
        f"Geant4 in the place of a generator ({same[0]['showers'][1]} showers) was rejected in {rejected} of "
        f"{len(same)} divisions of the same showers "
        f"(below {limits[0]:.0%} with 95% confidence if they were independent), {accepted} of {len(bad)} bad "
        f"generators were accepted (below {limits[1]:.0%})."
        + (f" Gates that were undecided for Geant4: {undecided}." if undecided else "")
    )


def main(arguments: Sequence[str]) -> int:
    """Judge all cases, and print the text of docs/verdicts.md."""
    parser = argparse.ArgumentParser(prog="python -m tools.verdicts", description=__doc__)
    parser.add_argument("--preset", default=PRESET)
    parser.add_argument("--run", type=Path, help="folder of a run of the preset; absent: it is made in runs/trained")
    asked = parser.parse_args(list(arguments))
    run, folder = load_run(preset=asked.preset), asked.run or trained(preset=asked.preset, overrides=[NO_LIMIT])
    dataset = folder / DATASET
    rows = [*of_deformed(run, dataset, folder / TRAINED), *of_geant4(run, asked.preset, dataset)]
    reference, generated = rows[0]["showers"]
    print(
        f"The preset {asked.preset}, judged by {reference} held-out Geant4 showers and {generated} generated ones.\n\n"
        f"{counts(rows)}\n\n{error_rates(rows)}\n\nMachine: {machine_text(describe_machine())}."
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
