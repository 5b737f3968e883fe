"""Which angle the generator gets and which one its showers are compared with: the three choices, trained and compared.

    python -m tools.angle_target --output FILE [--preset compact] [--seeds 3] [--showers 10000] [--set FIELD=VALUE]

- measured: the primary's angle is the input, the angle measured from the cells of the Monte Carlo shower the target.
- primary: the primary's angle is input and target.
- published: the measured angle is input and target (`angtype: mtheta` of the published code). A shower that does not
  exist yet has no measured angle, so that these networks, too, generate from the primary's.

A choice is made in the training shards alone (runs/trained/angle-*); the showers that select the epoch and those that
judge are the same for all. Finished trainings and comparisons are used again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

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
from tools.trained_runs import ROOT, held_out_showers, trained

CHOICES: Mapping[str, Mapping[str, str]] = {
    "measured": {},
    "primary": {"measured_angle_rad": "angle_rad"},
    "published": {"angle_rad": "measured_angle_rad"},
}
"""By name: which number of a training shower is replaced by which other. In a shard `angle_rad` is the input and
`measured_angle_rad` the target."""
SHOWERS = 10_000


def options(arguments: Sequence[str]) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(prog="python -m tools.angle_target", description=__doc__)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--preset", default="compact")
    parser.add_argument("--seeds", type=int, default=3, help="trainings of each choice")
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
                    showers = Prepared(batch["cells"], **{name: batch[source] for name, source in names.items()})
                    for index in range(len(showers)):
                        write(serialise(showers, index))
            shards.append(shard.model_copy(update={"bytes": file.stat().st_size, "sha256": sha256_of(file)}))
        changed = manifest.model_copy(update={"shards": tuple(shards)})
        (folder / MANIFEST).write_text(changed.model_dump_json(by_alias=True, indent=2) + "\n", encoding="utf-8")


def trained_with(choice: str, preset: str, overrides: Sequence[str]) -> Path:
    """Folder with the networks of a choice; they are trained, or their training is resumed, if they are not there."""
    original = trained(preset=preset, overrides=overrides)
    if not CHOICES[choice]:
        return original
    folder = original.with_name(f"{original.name}-{choice}")
    if not (folder / DATASET / MANIFEST).is_file():
        folder.mkdir(exist_ok=True)
        with_angles(original / DATASET, folder / DATASET, CHOICES[choice])
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
        lines.append([choice, str(len(found)), *(pooled([one[name] for one in found]) for name in (*columns, "auc"))])
    return table(["target", "seeds", *columns.values(), "AUC"], lines)


def section(result: Mapping[str, Any], command: str) -> str:
    """What docs/benchmarks.md says of a result."""
    changed = f" All with {', '.join(result['overrides'])}." if result["overrides"] else ""
    return (
        f"`{command}`: the preset {result['preset']}, judged by {result['showers']:,} held-out showers "
        f"({result['source']}) and as many generated ones.{changed}\n\n{choices_table(result['rows'])}\n\n"
        "*measured* (ours): the primary's angle is the generator's input, the angle measured from the Monte Carlo "
        "shower the target. *primary*: the primary's angle for both. *published*: the measured angle for both; "
        "the networks generate from the primary's angle. Angle spread: of the measured about the primary's angle; "
        "slope: of the measured against the primary's angle; both, widths and spread of the response as ratios to "
        "Monte Carlo (1: equal). Means over the seeds with 95% intervals from the bootstrap and the scatter of the "
        f"seeds.\n\nMachine: {machine_text(BenchMachine.model_validate(result['machine']))}.\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Train and compare what is missing and write the table."""
    asked = options(arguments)
    real: Showers = held_out_showers(asked.showers, preset=asked.preset, overrides=asked.overrides)
    rows = []
    for choice in CHOICES:
        for seed in range(1, asked.seeds + 1):
            overrides = [*asked.overrides, f"train.seed={seed}"]
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
