"""Runs the benches that have no result yet and writes docs/benchmarks.md from the results.

    python -m tools.benchmark [SECTION ...] [--again] [--write-only]

Results are kept in runs/bench, so an interrupted round resumes where it was; --again measures anew. Each section of
the page stands between two marks; what is written outside of them stays.
"""

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
from types import ModuleType
from typing import Any

from caloscale.bench.results import Bench, BenchMachine, bench_table, machine_text
from caloscale.storage.atomic import write_text
from tools import acceptance, physics_benchmark, verdicts
from tools.benchmark_runs import runs_section, table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "runs" / "bench"
SEEDS = (1, 2, 3)
TITLE = """# Benchmarks

`make bench` measures and writes this page; `make bench BENCH="step generate"` only some sections. Each section has its
command and its machine. The reference is the published step or generator, layer by layer in plain Keras, in one
tf.function with TensorFlow's default threads (`bench/reference_networks.py`, `bench/reference_step.py`). Contenders are
separate processes and run alternately; figures are medians over the rounds with their quartiles.
"""


@dataclass(frozen=True)
class Measurement:
    """A command whose result is kept, in the file that its ``--output`` names."""

    name: str
    command: tuple[str, ...]
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
    write: Callable[[Sequence[Measurement]], str]
    """The text of those that have a result."""
    page: Path = PAGE
    """Where it stands."""


def bench(*command: str) -> Measurement:
    """A measurement by ``caloscale bench``."""
    words = [word for word in command if not word.startswith("--")]
    return Measurement("-".join(words), ("bench", *command))


def each(write: Callable[[Measurement], str]) -> Callable[[Sequence[Measurement]], str]:
    """A section with a part for each measurement."""
    return lambda measurements: "\n".join(write(one) for one in measurements)


def by_script(name: str, title: str, script: ModuleType, page: Path = PAGE) -> Section:
    """A section that a module of tools measures and writes."""

    def write(measurement: Measurement) -> str:
        result = json.loads(measurement.result.read_text(encoding="utf-8"))
        return str(script.section(result, f"make bench BENCH={name}"))

    return Section(name, title, (Measurement(name, (), module=script.__name__),), each(write), page)


def write_benches(measurements: Sequence[Measurement]) -> str:
    """The tables of benches in Markdown, with the machines once."""
    parts, machines = [], []
    for measurement in measurements:
        result = Bench.model_validate_json(measurement.result.read_text(encoding="utf-8"))
        machines.append(result.machine)
        shown = bench_table(result)
        rows = table(list(shown.columns), [list(row) for row in shown.texts()])
        parts += [f"### {shown.caption}", f"`{measurement.text}`", rows, shown.note]
    return "\n\n".join([*parts, f"Machine: {machine_text(*machines)}."]) + "\n"


def write_loads(measurements: Sequence[Measurement]) -> str:
    """What the operator bears: a column for each load."""
    results = [json.loads(one.result.read_text(encoding="utf-8")) for one in measurements]
    loads = zip(measurements, results, strict=True)
    columns = [f"{_load(result)}<br>`{one.text}`" for one, result in loads]
    rows = [
        ["how the runs ended", *(", ".join(f"{n} {phase}" for phase, n in one["phases"].items()) for one in results)],
        ["time to drain", *(f"{one['secondsToDrain']:.0f} s" for one in results)],
        ["writes to the API server in a run's life", *(f"{one['writesPerRun']:.1f}" for one in results)],
        ["most memory of the operator", *(f"{one['peakMemoryMiB']:.0f} MiB" for one in results)],
        ["its processor time", *(f"{one['processorSeconds']:.0f} s" for one in results)],
        ["a reconcile, half / 99% below", *(_percentiles(one, "reconcile") for one in results)],
        ["from an event to the status", *(_percentiles(one, "eventToStatus") for one in results)],
    ]
    machines = (BenchMachine.model_validate(one["machine"]) for one in results)
    return (
        f"{table(['', *columns], rows)}\n\nNodes have 8 GPUs. Control plane, fake nodes and operator share this "
        "machine. [The process of the operator](operator-process.md#measured) has clusters that others use, too.\n\n"
        f"Machine: {machine_text(*machines)}.\n"
    )


def _load(result: dict[str, Any]) -> str:
    """What the operator had to do."""
    each_run = "a node each" if result["nodesPerRun"] == 1 else f"{result['nodesPerRun']} nodes each"
    return f"{result['runs']} runs of {result['runSeconds']} s created at once, {each_run}, on {result['nodes']}"


def _percentiles(result: dict[str, Any], name: str) -> str:
    """The medians and 99th percentiles of a histogram; JSON's Infinity is beyond its last bound, 30 s."""
    bounds = (result[f"{name}P{part}Seconds"] for part in (50, 99))
    shown = " / ".join(f"{bound:g} s" if math.isfinite(bound) else "above 30 s" for bound in bounds)
    return f"{shown} (of {result[f'{name}Count']:.0f})"


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
        "The compact network on two workers, checkpoints every 3 s. The time to the next step includes the detection "
        "of the loss, the run's back-off, new pods when the node is back, TensorFlow's start and the compilation."
        f"\n\nMachine: {machine_text(BenchMachine.model_validate(found['machine']))}.\n"
    )


STEPS = tuple(
    bench("step", "--preset", preset, "--precision", precision, "--batch", batch)
    for preset, batch in (("variable-angle", "8"), ("fixed-angle", "8"), ("compact", "32"))
    for precision in ("float32", "bfloat16")
)
GENERATIONS = tuple(
    bench("generate", "--preset", preset, "--batch", batch, *threads)
    for threads, batches in (((), ("16", "64")), (("--threads", "1"), ("1", "1")))
    for preset, batch in zip(("variable-angle", "compact"), batches)
)
LOADS = tuple(
    Measurement(f"operator-{runs}", ("--nodes", nodes, "--runs", runs, *more), module="tools.operator_load")
    for runs, nodes, more in (("50", "60", ()), ("500", "1000", ("--nodes-per-run", "2")))
)
SECTIONS = (
    Section("step", "The training step", STEPS, write_benches),
    Section("generate", "Generation", GENERATIONS, write_benches),
    Section("operator", "The operator under load", LOADS, write_loads),
    Section("smoke", "Real nodes (root)", (Measurement("smoke", ("smoke",), made=True),), each(write_smoke)),
    by_script("physics", "The classifiers of the CaloChallenge (90 minutes)", physics_benchmark),
)
VERDICTS_PAGE = ROOT / "docs" / "verdicts.md"
ON_VERDICTS = (
    by_script("verdicts", "Operating characteristics", verdicts, page=VERDICTS_PAGE),
    by_script("acceptance", "False acceptance of each gate", acceptance, page=VERDICTS_PAGE),
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
    packages: dict[str, list[str]] = {}
    for section in sections:
        measured = [one for one in section.measurements if one.result.is_file()]
        if measured:
            page = with_section(page, section.name, section.title, section.write(measured))
        for one in measured:
            versions = json.loads(one.result.read_text(encoding="utf-8"))["machine"]["versions"]
            packages.setdefault(", ".join(" ".join(item) for item in versions.items()), []).append(section.title)
    if packages:
        lines = (f"- {', '.join(dict.fromkeys(titles))}: {versions}" for versions, titles in packages.items())
        page = with_section(page, "versions", "Versions", "\n".join(lines))
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
    write_text(PAGE, write_page(page, SECTIONS, runs))
    write_text(VERDICTS_PAGE, write_page(VERDICTS_PAGE.read_text(encoding="utf-8"), ON_VERDICTS, ()))
    print(PAGE.relative_to(ROOT))
    for problem in failed:
        print(f"failed: {problem}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
