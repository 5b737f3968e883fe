"""Which angle the generator gets and which one its showers are compared with: the choices, trained and compared.

    python -m tools.angle_target --output FILE [--preset compact] [--seeds 2] [--showers 10000] [--set FIELD=VALUE]

- energy-score: the energy score compares the measured angles of generated and Monte Carlo showers. No target enters.

With the published losses (train.energyScoreWeight 0) the measured angle of a generated shower has a target:

- measured: the angle measured from the cells of the Monte Carlo shower; the primary's angle is the input.
- primary: the primary's angle, which is the input as well.
- published: the measured angle, which is the input as well (`angtype: mtheta` of the published code). A shower that
  does not exist yet has no measured angle, so that these networks, too, generate from the primary's.

A choice of angles is made in the training shards alone; the showers that select the epoch and those that judge are the
same for all, and so is the number of steps. Finished trainings and comparisons are used again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from caloscale.bench.machine import describe_machine
from caloscale.bench.results import BenchMachine
from caloscale.bench.tables import machine_text
from caloscale.showers.arrays import Showers
from caloscale.showers.tfrecord.manifest import MANIFEST, read_manifest, sha256_of
from caloscale.showers.tfrecord.records import SCALARS, Prepared, read_batches, serialise, shard_writer
from caloscale.spec import load_run
from caloscale.spec.workspace_layout import DATASET
from caloscale.storage.atomic import atomic_writer
from tools.benchmark_runs import table
from tools.compact_ablation import COLUMNS, compare_showers, pooled
from tools.trained_runs import NO_LIMIT, ROOT, held_out_showers, trained

PUBLISHED_LOSSES = "train.energyScoreWeight=0"


class Choice(NamedTuple):
    """What is trained."""

    title: str
    replaced: Mapping[str, str]
    """Which number of a training shower is replaced by which other. In a shard `angle_rad` is the input and
    `measured_angle_rad` the target."""
    overrides: tuple[str, ...]


CHOICES = {
    "energy-score": Choice("energy score, no target (ours)", {}, ()),
    "measured": Choice("measured", {}, (PUBLISHED_LOSSES,)),
    "primary": Choice("primary", {"measured_angle_rad": "angle_rad"}, (PUBLISHED_LOSSES,)),
    "published": Choice("measured, also as input", {"angle_rad": "measured_angle_rad"}, (PUBLISHED_LOSSES,)),
}
SHOWERS = 10_000


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.angle_target", description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--preset", default="compact")
    parser.add_argument("--seeds", type=int, default=2, help="trainings of each choice")
    parser.add_argument("--showers", type=int, default=SHOWERS, help="held-out and generated showers, each")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="FIELD=VALUE", help="of all")
    return parser.parse_args(list(arguments))


def with_angles(dataset: Path, target: Path, replaced: Mapping[str, str]) -> None:
    """Shards like those of ``dataset`` in the folder ``target``, with numbers of the training showers replaced.

    replaced: names of `SCALARS`, and the one whose values each gets. Order and cells stay.
    """
    manifest = read_manifest(dataset)
    with atomic_writer(target, replace_folder=True) as folder:
        folder.mkdir()
        shards = []
        for shard in manifest.shards:
            file = folder / shard.file
            names = {name: replaced.get(name, name) if shard.split == "train" else name for name in SCALARS}
            with shard_writer(file) as write:
                for batch in read_batches(dataset / shard.file, manifest.shape):
                    showers = Prepared(batch["cells"], {name: batch[source] for name, source in names.items()})
                    for index in range(len(showers)):
                        write(serialise(showers, index))
            shards.append(shard.model_copy(update={"bytes": file.stat().st_size, "sha256": sha256_of(file)}))
        changed = manifest.model_copy(update={"shards": tuple(shards)})
        (folder / MANIFEST).write_text(changed.model_dump_json(by_alias=True, indent=2) + "\n", encoding="utf-8")


def trained_with(choice: str, preset: str, overrides: Sequence[str]) -> Path:
    """Folder with the networks of a choice; they are trained, or their training is resumed, if they are not there."""
    original, replaced = trained(preset=preset, overrides=overrides), CHOICES[choice].replaced
    if not replaced:
        return original
    folder = original.with_name(f"{original.name}-{choice}")
    if not (folder / DATASET / MANIFEST).is_file():
        folder.mkdir(exist_ok=True)
        with_angles(original / DATASET, folder / DATASET, replaced)
    if not (folder / "trained").is_file():
        options = [word for override in overrides for word in ("--set", override)]
        command = ("train", "--preset", preset, "--workspace", str(folder), *options)
        subprocess.run([sys.executable, "-m", "caloscale.cli.main", *command], check=True, cwd=ROOT)
        (folder / "trained").touch()
    return folder


def choices_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """A row for each choice, Markdown."""
    columns = {name: COLUMNS[name] for name in ("angleSpread", "angleSlope", "transverseWidth x", "responseSpread")}
    lines = []
    for choice in dict.fromkeys(row["choice"] for row in rows):
        found = [row["found"] for row in rows if row["choice"] == choice]
        lines.append(
            [
                CHOICES[choice].title,
                str(len(found)),
                *(pooled([one[name] for one in found]) for name in (*columns, "auc")),
            ]
        )
    return table(["target", "seeds", *columns.values(), "AUC"], lines)


def section(result: Mapping[str, Any], command: str) -> str:
    """What docs/benchmarks.md says of a result."""
    changed = f" All with {', '.join(result['overrides'])}." if result["overrides"] else ""
    return (
        f"`{command}`: the preset {result['preset']}, judged by {result['showers']:,} held-out showers "
        f"({result['source']}) and as many generated ones.{changed}\n\n{choices_table(result['rows'])}\n\n"
        "Target of the measured angle of a generated shower. Energy score: it is compared with that of the Monte Carlo "
        "shower of the same primary and with that of another generated one, and no target enters the loss. Below: the "
        "published losses (`train.energyScoreWeight=0`) with the angle measured from the Monte Carlo shower as target, "
        "with the primary's angle, and with the measured angle as target and input (published), where the networks "
        "generate from the primary's angle. Angle spread: of the measured about the primary's angle; "
        "slope: of the measured against the primary's angle; both, widths and spread of the response as ratios to "
        "Monte Carlo (1: equal). All trainings make the same number of steps. Means over the seeds with 95% "
        "intervals from the bootstrap and the scatter of the seeds.\n\n"
        f"Machine: {machine_text(BenchMachine.model_validate(result['machine']))}.\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Train and compare what is missing and write the table."""
    asked = options(arguments)
    real: Showers = held_out_showers(asked.showers, preset=asked.preset, overrides=asked.overrides)
    rows = []
    for seed in range(1, asked.seeds + 1):
        for choice in CHOICES:
            overrides = [NO_LIMIT, *CHOICES[choice].overrides, *asked.overrides, f"train.seed={seed}"]
            folder = trained_with(choice, asked.preset, overrides)
            found = compare_showers(folder, load_run(preset=asked.preset, overrides=overrides), real, asked.showers)
            rows.append({"choice": choice, "seed": seed, "run": folder.name, "found": found})
            print(f"{choice}, seed {seed}: angle spread {found['angleSpread']['value']}", flush=True)
    result = {
        "preset": asked.preset,
        "source": real.source,
        "showers": len(real),
        "overrides": asked.overrides,
        "rows": rows,
        "machine": describe_machine().model_dump(mode="json", by_alias=True),
    }
    with atomic_writer(asked.output) as temporary:
        temporary.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(choices_table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
