"""Runs the benches that have no result yet and writes docs/benchmarks.md from the results.

    python -m tools.benchmark [SECTION ...] [--again] [--write-only]

Results are kept in runs/bench, so an interrupted round resumes where it was; --again measures anew. Each section of
the page stands between two marks; what is written outside of them stays.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from caloscale.bench.machine import describe_machine
from caloscale.bench.results import (
    AllReduceBench,
    BenchMachine,
    ConvolutionsBench,
    GenerateBench,
    InputBench,
    StepBench,
)
from caloscale.bench.tables import Bench, bench_tables, machine_text
from caloscale.profiling.result import Profile
from caloscale.report.run_figures import profile_table
from caloscale.storage.atomic import atomic_writer
from tools.acceptance import section as acceptance_section
from tools.benchmark_runs import runs_section, table
from tools.compact_ablation import section as ablation_section
from tools.hybrid import section as hybrid_section
from tools.physics_benchmark import section as physics_section
from tools.verdicts import section as verdicts_section

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "runs" / "bench"
SEEDS = (1, 2, 3)
TITLE = """# Benchmarks

`make bench` measures and writes this page; `make bench BENCH="step profile"` only some sections. Each section says its
command and its machine. The reference is the published step or generator, layer by layer in plain Keras, in one
tf.function with TensorFlow's default threads (`bench/reference_networks.py`, `bench/reference_step.py`). Contenders are
processes of their own and take turns; figures are medians over the rounds with their quartiles.
"""


@dataclass(frozen=True)
class Measurement:
    """A command whose result is kept. printed: the result is what it prints, else the file that ``--output`` names."""

    name: str
    command: tuple[str, ...]
    printed: bool = False
    module: str = ""
    """Absent: a command of caloscale."""
    made: bool = False
    """A target of make that knows where its result belongs."""

    @property
    def result(self) -> Path:
        """Where the result is kept."""
        return RESULTS / f"{self.name}.json"

    def run(self) -> None:
        """Measure."""
        print(f"$ {self.text}", flush=True)
        RESULTS.mkdir(parents=True, exist_ok=True)
        if self.made:
            subprocess.run(["make", *self.command], check=True, cwd=ROOT)
            return
        called = [sys.executable, "-m", self.module or "caloscale.cli.main", *self.command]
        if self.printed:
            out = subprocess.run([*called, "--json"], check=True, stdout=subprocess.PIPE, text=True).stdout
            kept = {"printed": json.loads(out), "machine": describe_machine().model_dump(mode="json", by_alias=True)}
            with atomic_writer(self.result) as temporary:
                temporary.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")
        else:
            subprocess.run([*called, "--output", str(self.result)], check=True, cwd=ROOT)

    @property
    def text(self) -> str:
        """The command as one types it."""
        if self.made:
            return shlex.join(["make", *self.command])
        return shlex.join([*(("python", "-m", self.module) if self.module else ("caloscale",)), *self.command])


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    name: str
    title: str
    measurements: tuple[Measurement, ...]
    write: Callable[[Measurement], str]
    page: Path = PAGE
    """Where it stands."""


def bench(*command: str) -> Measurement:
    """A measurement by ``caloscale bench``."""
    words = [word for word in command if not word.startswith("--")]
    return Measurement("-".join(words), ("bench", *command))


def write_bench(measurement: Measurement) -> str:
    """The table of a bench in Markdown."""
    text = measurement.result.read_text(encoding="utf-8")
    kinds: dict[str, type[Bench]] = {
        "step": StepBench,
        "convolutions": ConvolutionsBench,
        "generate": GenerateBench,
        "input": InputBench,
        "allreduce": AllReduceBench,
    }
    made = kinds[json.loads(text)["bench"]].model_validate_json(text)
    parts = []
    for shown in bench_tables(made):
        rows = table(list(shown.columns), [list(row) for row in shown.texts()])
        parts += [f"### {shown.caption}", f"`{measurement.text}`", rows, shown.note]
    return "\n\n".join([*parts, f"Machine: {machine_text(made.machine)}."]) + "\n"


def write_profile(measurement: Measurement) -> str:
    """The table of a profile in Markdown."""
    kept = json.loads(measurement.result.read_text(encoding="utf-8"))
    profile, machine = Profile.model_validate(kept["printed"]), BenchMachine.model_validate(kept["machine"])
    shares = profile_table(profile)
    return (
        f"### {profile.preset}, {profile.precision}, {profile.steps} steps of {profile.batch} showers, "
        "% of the step\n\n"
        f"`{measurement.text}`\n\n{table(list(shares.columns), [list(row) for row in shares.texts()])}\n\n"
        f"{profile.seconds_per_step:.3g} s a step while it is profiled: {profile.gflops:.3g} GFLOP/s, within "
        f"convolutions and products {profile.matrix_gflops:.3g} GFLOP/s, measured peak {profile.peak_gflops:.3g} "
        f"GFLOP/s. {profile.statement}\n\nMachine: {machine_text(machine)}.\n"
    )


def write_load(measurement: Measurement) -> str:
    """What the operator bears, in Markdown."""
    found = json.loads(measurement.result.read_text(encoding="utf-8"))
    phases = ", ".join(f"{count} {phase}" for phase, count in found["phases"].items())
    rows = [
        ["how the runs ended", phases],
        ["time to drain", f"{found['secondsToDrain']:.0f} s"],
        ["writes to the API server in a run's life", f"{found['writesPerRun']:.1f}"],
        ["most memory of the operator", f"{found['peakMemoryMiB']:.0f} MiB"],
        ["its processor time", f"{found['processorSeconds']:.0f} s"],
    ]
    for title, what in (("reconcile", "a reconcile"), ("eventToStatus", "from an event of the cluster to the status")):
        half, most = (found[f"{title}P{part}Seconds"] for part in (50, 99))
        # JSON's Infinity: beyond the last bound of the histogram
        ends = f"99% below {most:g} s" if math.isfinite(most) else "more than 1% above 30 s"
        start = f"half below {half:g} s, " if math.isfinite(half) else "more than half above 30 s, "
        rows.append([what, f"{start}{ends} (of {found[f'{title}Count']:.0f})"])
    each = "a node" if found["nodesPerRun"] == 1 else f"{found['nodesPerRun']} nodes"
    if found["runSeconds"] is None:
        title = f"{found['runs']} active runs"
        scene = (
            "The times are those while the runs are active: each reports every 15 s, and every second one of them ends."
        )
    else:
        title = f"{found['runs']} runs created at once"
        scene = f"Fake workers run {found['runSeconds']} s."
    return (
        f"### {title}, {each} each, on {found['nodes']} nodes with 8 GPUs\n\n"
        f"`{measurement.text}`\n\n{table(['what', 'figure'], rows)}\n\n{scene} Control plane, fake nodes and "
        "operator share this machine.\n\n"
        f"Machine: {machine_text(BenchMachine.model_validate(found['machine']))}.\n"
    )


NOTED = {
    "imagesIntoNodesSeconds": "images into the nodes that need them",
    "deploySeconds": "operator deployed",
    "applyToFirstStepSeconds": "`kubectl apply` of a run to its first step",
    "lose_a_nodeToNextStepSeconds": "a node killed without notice, back after 30 s, to the next step of the run",
    "drain_a_nodeToNextStepSeconds": "a node drained, then open again, to the next step",
    "run_out_of_memoryToNextStepSeconds": "a worker out of memory, to the next step",
}


def write_smoke(measurement: Measurement) -> str:
    """What the smoke tests noted, in Markdown."""
    found = json.loads(measurement.result.read_text(encoding="utf-8"))
    seconds = found["seconds"]
    rows = [[what, f"{seconds[name]:.0f} s"] for name, what in NOTED.items() if name in seconds]
    return (
        f"### Trainings on the cluster\n\n`{measurement.text}`\n\n"
        f"{table(['what', 'time'], rows)}\n\n"
        "The compact network on two workers, checkpoints every 3 s. The time to the next step has in it that the loss "
        "is noticed, the run's back-off, new pods when the node is back, TensorFlow's start and the compilation of the "
        f"step.\n\n{_all_reduces(seconds)}Machine: {machine_text(BenchMachine.model_validate(found['machine']))}.\n"
    )


def _all_reduces(seconds: dict[str, Any]) -> str:
    """What the test of the all-reduces noted; empty when it did not run."""
    if "allReduceBytes" not in seconds:
        return ""
    size = seconds["allReduceBytes"] / 2**20
    packed, separate = (1e3 * seconds[f"allReduce{way}Seconds"] for way in ("Packed", "PerVariable"))
    return (
        f"The all-reduces of a variable-angle step ({size:.1f} MiB) between two pods on two nodes take {packed:.0f} ms "
        f"packed and {separate:.0f} ms for each variable (median). The nodes are namespaces of one machine: their "
        "network is a bridge, and they share its processors.\n\n"
    )


SECTIONS = (
    Section(
        "step",
        "The training step",
        (
            bench("step", "--preset", "variable-angle", "--precision", "float32", "--batch", "8"),
            bench("step", "--preset", "variable-angle", "--precision", "bfloat16", "--batch", "8"),
            bench("step", "--preset", "fixed-angle", "--precision", "float32", "--batch", "8"),
            bench("step", "--preset", "fixed-angle", "--precision", "bfloat16", "--batch", "8"),
            bench("step", "--preset", "compact", "--precision", "float32", "--batch", "32"),
            bench("step", "--preset", "compact", "--precision", "bfloat16", "--batch", "32"),
        ),
        write_bench,
    ),
    Section(
        "convolutions",
        "Convolutions, layer by layer",
        tuple(
            bench("convolutions", "--preset", preset, "--precision", precision, "--batch", "8")
            for preset, precision in (
                ("variable-angle", "float32"),
                ("variable-angle", "bfloat16"),
                ("fixed-angle", "float32"),
            )
        ),
        write_bench,
    ),
    Section(
        "profile",
        "Where the time of a step goes",
        tuple(
            Measurement(f"profile-{preset}", ("profile", "--preset", preset, "--batch", batch), printed=True)
            for preset, batch in (("compact", "32"), ("variable-angle", "8"))
        ),
        write_profile,
    ),
    Section(
        "generate",
        "Generation",
        (
            bench("generate", "--preset", "variable-angle", "--batch", "16"),
            bench("generate", "--preset", "compact", "--batch", "64"),
            bench("generate", "--preset", "variable-angle", "--batch", "1", "--threads", "1"),
            bench("generate", "--preset", "compact", "--batch", "1", "--threads", "1"),
        ),
        write_bench,
    ),
    Section(
        "input",
        "The input pipeline",
        (bench("input", "--preset", "variable-angle", "--batch", "8"), bench("input", "--preset", "compact")),
        write_bench,
    ),
    Section("allreduce", "All-reduces", (bench("allreduce", "--preset", "variable-angle"),), write_bench),
    Section(
        "operator",
        "The operator under load",
        tuple(
            Measurement(f"operator-{runs}", options, module="tools.operator_load")
            for runs, options in (
                ("50-live", ("--nodes", "60", "--runs", "50", "--live")),
                (50, ("--nodes", "60", "--runs", "50")),
                (500, ("--nodes", "1000", "--runs", "500", "--nodes-per-run", "2")),
                ("500-live", ("--nodes", "1000", "--runs", "500", "--nodes-per-run", "2", "--live")),
            )
        ),
        write_load,
    ),
    Section("smoke", "Real nodes (root)", (Measurement("smoke", ("smoke",), made=True),), write_smoke),
    Section(
        "physics",
        "The classifiers of the CaloChallenge (90 minutes)",
        (Measurement("physics", (), module="tools.physics_benchmark"),),
        lambda one: physics_section(json.loads(one.result.read_text(encoding="utf-8")), "make bench BENCH=physics"),
    ),
    Section(
        "compact",
        "What the parts of the compact network give (hours)",
        (Measurement("compact", (), module="tools.compact_ablation"),),
        lambda one: ablation_section(json.loads(one.result.read_text(encoding="utf-8")), "make bench BENCH=compact"),
    ),
    Section(
        "hybrid",
        "Geant4 with a generator in the calorimeter (half an hour)",
        (Measurement("hybrid", (), module="tools.hybrid"),),
        lambda one: hybrid_section(json.loads(one.result.read_text(encoding="utf-8")), "make bench BENCH=hybrid"),
    ),
)
VERDICTS_PAGE = ROOT / "docs" / "verdicts.md"
ON_VERDICTS = (
    Section(
        "verdicts",
        "Operating characteristics",
        (Measurement("verdicts", (), module="tools.verdicts"),),
        lambda one: verdicts_section(json.loads(one.result.read_text(encoding="utf-8")), "make bench BENCH=verdicts"),
        page=VERDICTS_PAGE,
    ),
    Section(
        "acceptance",
        "False acceptance of each gate",
        (Measurement("acceptance", (), module="tools.acceptance"),),
        lambda one: acceptance_section(
            json.loads(one.result.read_text(encoding="utf-8")), "make bench BENCH=acceptance"
        ),
        page=VERDICTS_PAGE,
    ),
)
RUNS = "runs"


def measure(sections: Sequence[Section], *, again: bool) -> list[str]:
    """Run what has no result; commands that failed."""
    failed = []
    for measurement in (one for section in sections for one in section.measurements):
        if again or not measurement.result.is_file():
            try:
                measurement.run()
            except subprocess.CalledProcessError as error:
                failed.append(f"{measurement.text}: exit code {error.returncode}")
    return failed


def run_seeds(*, again: bool) -> list[Path]:
    """Folders of finished runs with each seed; those that are missing are made."""
    folders = []
    for seed in SEEDS:
        folder = ROOT / "runs" / f"seed-{seed}"
        folders.append(folder)
        if again or not (folder / "summary.json").is_file():
            command = ("--preset", "compact", "--set", f"train.seed={seed}", "--name", folder.name)
            if again:
                shutil.rmtree(folder, ignore_errors=True)
            subprocess.run([sys.executable, "-m", "pipelines.train_calorimeter_gan", *command], check=True, cwd=ROOT)
    return folders


def with_section(page: str, name: str, title: str, content: str) -> str:
    """The page with the content between the marks of a section; at its end when it has none."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- end of bench:{name} -->"
    block = f"{begin}\n## {title}\n\n{content.strip()}\n{end}"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if pattern.search(page):
        return pattern.sub(lambda _: block, page)
    return page.rstrip() + f"\n\n{block}\n"


def write_page(page: str, sections: Sequence[Section], runs: Sequence[Path]) -> str:
    """The page with all sections that have results."""
    for section in sections:
        written = [section.write(one) for one in section.measurements if one.result.is_file()]
        if written:
            page = with_section(page, section.name, section.title, "\n".join(written))
    if runs and all((run / "summary.json").is_file() for run in runs):
        page = with_section(page, RUNS, "Whole runs", runs_section(runs))
    return page


def main(arguments: Sequence[str]) -> int:
    """Measure and write; exit code 1 when a bench failed."""
    names = [*(section.name for section in (*SECTIONS, *ON_VERDICTS)), RUNS]
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"of {', '.join(names)}; absent: all")
    parser.add_argument("--again", action="store_true", help="measure anew what has a result")
    parser.add_argument("--write-only", action="store_true", help="measure nothing")
    asked = parser.parse_args(list(arguments))
    unknown = set(asked.sections) - set(names)
    if unknown:
        parser.error(f"no such section: {', '.join(sorted(unknown))}; one of {', '.join(names)}")
    chosen = [one for one in (*SECTIONS, *ON_VERDICTS) if not asked.sections or one.name in asked.sections]
    failed = [] if asked.write_only else measure(chosen, again=asked.again)
    runs = [ROOT / "runs" / f"seed-{seed}" for seed in SEEDS]
    if not asked.write_only and (not asked.sections or RUNS in asked.sections):
        runs = run_seeds(again=asked.again)
    page = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else TITLE
    with atomic_writer(PAGE) as temporary:
        temporary.write_text(write_page(page, SECTIONS, runs), encoding="utf-8")
    with atomic_writer(VERDICTS_PAGE) as temporary:
        temporary.write_text(write_page(VERDICTS_PAGE.read_text(encoding="utf-8"), ON_VERDICTS, ()), encoding="utf-8")
    print(PAGE.relative_to(ROOT))
    for problem in failed:
        print(f"failed: {problem}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
