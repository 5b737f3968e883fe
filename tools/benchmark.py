"""Runs the benches that have no result yet and writes their tables into docs/benchmarks.md.

    python -m tools.benchmark [SECTION ...]

Results are kept in runs/bench: an interrupted round resumes where it was, and what is removed there is measured again.
What is measured is between two marks of the page; the text around them is written by hand.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from caloscale.bench.results import Bench, BenchMachine, bench_table, machine_text
from caloscale.storage.atomic import write_text
from tools import table

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "benchmarks.md"
RESULTS = ROOT / "runs" / "bench"


@dataclass(frozen=True)
class Measurement:
    """A command whose result is kept: in the file that its --output names, a target of make knows where."""

    command: str

    @property
    def result(self) -> Path:
        """Where the result is kept."""
        words = (word for word in self.command.split()[1:] if not word.startswith("--"))
        return RESULTS / f"{'-'.join(words).removeprefix('bench-')}.json"

    def run(self) -> None:
        """Measure."""
        print(f"$ {self.command}", flush=True)
        RESULTS.mkdir(parents=True, exist_ok=True)
        program, *words = self.command.split()
        ours = (sys.executable, "-m", "caloscale.cli.main", *words, "--output", str(self.result))
        subprocess.run((program, *words) if program == "make" else ours, check=True, cwd=ROOT)


@dataclass(frozen=True)
class Section:
    """A section of the page."""

    name: str
    title: str
    measurements: tuple[Measurement, ...]
    write: Callable[[Sequence[Measurement]], str]
    """The text of those that have a result."""


def write_benches(measurements: Sequence[Measurement]) -> str:
    """The tables of benches in Markdown, with the machines once."""
    parts, machines = [], []
    for measurement in measurements:
        result = Bench.model_validate_json(measurement.result.read_text(encoding="utf-8"))
        machines.append(result.machine)
        shown = bench_table(result)
        rows = table(list(shown.columns), [list(row) for row in shown.texts()])
        parts += [f"### {shown.caption}", f"`{measurement.command}`", rows, shown.note]
    return "\n\n".join([*parts, f"Machine: {machine_text(*machines)}."])


NOTED = {
    "imagesIntoNodesSeconds": "images into the nodes that need them",
    "deploySeconds": "operator deployed",
    "applyToFirstStepSeconds": "`kubectl apply` of a run to its first step",
    "lose_a_nodeToNextStepSeconds": "a node killed without notice, back after 30 s, to the next step of the run",
    "drain_a_nodeToNextStepSeconds": "a node drained, then open again, to the next step",
    "run_out_of_memoryToNextStepSeconds": "a worker out of memory, to the next step",
}


def write_smoke(measurements: Sequence[Measurement]) -> str:
    """What the smoke tests noted, in Markdown."""
    (measurement,) = measurements
    found = json.loads(measurement.result.read_text(encoding="utf-8"))
    seconds, machine = found["seconds"], BenchMachine.model_validate(found["machine"])
    rows = [[what, f"{seconds[name]:.0f} s"] for name, what in NOTED.items() if name in seconds]
    return f"`{measurement.command}`\n\n{table(['what', 'time'], rows)}\n\nMachine: {machine_text(machine)}."


STEPS = tuple(
    Measurement(f"caloscale bench step --preset {preset} --precision {precision} --batch {batch}")
    for preset, batch in (("variable-angle", 8), ("fixed-angle", 8), ("compact", 32))
    for precision in ("float32", "bfloat16")
)
GENERATIONS = tuple(
    Measurement(f"caloscale bench generate --preset {options}")
    for options in ("variable-angle --batch 16", "compact --batch 64", "compact --batch 1 --threads 1")
)
SECTIONS = (
    Section("step", "The training step", STEPS, write_benches),
    Section("generate", "Generation", GENERATIONS, write_benches),
    Section("smoke", "Real nodes (root)", (Measurement("make smoke"),), write_smoke),
)


def measure(sections: Sequence[Section]) -> list[str]:
    """Run what has no result; commands that failed."""
    failed = []
    for measurement in (one for section in sections for one in section.measurements):
        if not measurement.result.is_file():
            try:
                measurement.run()
            except subprocess.CalledProcessError as error:
                failed.append(f"{measurement.command}: exit code {error.returncode}")
    return failed


def with_section(page: str, name: str, title: str, content: str) -> str:
    """The page with the content between the marks of a section; at its end when it has none."""
    begin, end = f"<!-- bench:{name} -->", f"<!-- end of bench:{name} -->"
    block = f"{begin}\n## {title}\n\n{content.strip()}\n{end}"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    if pattern.search(page):
        return pattern.sub(lambda _: block, page)
    return page.rstrip() + f"\n\n{block}\n"


def write_page(page: str, sections: Sequence[Section]) -> str:
    """The page with all sections that have results."""
    packages: dict[str, dict[str, None]] = {}
    for section in sections:
        measured = [one for one in section.measurements if one.result.is_file()]
        if measured:
            page = with_section(page, section.name, section.title, section.write(measured))
        for one in measured:
            versions = json.loads(one.result.read_text(encoding="utf-8"))["machine"]["versions"]
            packages.setdefault(", ".join(" ".join(item) for item in versions.items()), {})[section.title] = None
    lines = (f"- {', '.join(titles)}: {versions}" for versions, titles in packages.items())
    return with_section(page, "versions", "Versions", "\n".join(lines)) if packages else page


def main() -> None:
    """Measure and write; exit code 1 when a bench failed."""
    names = [section.name for section in SECTIONS]
    parser = argparse.ArgumentParser(prog="python -m tools.benchmark", description=__doc__)
    help = f"of {', '.join(names)}; absent: all"
    parser.add_argument("sections", nargs="*", choices=names, metavar="SECTION", help=help)
    asked = parser.parse_args()
    chosen = [one for one in SECTIONS if not asked.sections or one.name in asked.sections]
    failed = measure(chosen)
    write_text(PAGE, write_page(PAGE.read_text(encoding="utf-8"), SECTIONS))
    print(PAGE.relative_to(ROOT))
    if failed:
        sys.exit("\n".join(f"failed: {problem}" for problem in failed))


if __name__ == "__main__":
    main()
