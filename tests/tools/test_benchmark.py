"""docs/benchmarks.md: sections between marks, commands that exist."""

import json

import pytest
import typer

from caloscale.bench.results import Bench, BenchMachine, ContenderFigures, Geant4Time, Spread, bench_table
from caloscale.cli.main import app
from tools import benchmark

MACHINE = BenchMachine(
    processor="A processor",
    instructions=("avx2",),
    cores=2,
    memory_gib=4,
    versions={},
    date="2000-01-01",
    load_average=0,
)


def spread(value):
    return Spread(median=value, low=0.9 * value, high=1.1 * value, rounds=7)


def step_bench():
    contenders = tuple(
        ContenderFigures(
            name=name,
            precision="float32",
            milliseconds_per_shower=spread(times),
            ratio=spread(1000 / times),
            gflops=106,
            peak_memory_mib=1500,
        )
        for name, times in (("ours", 500.0), ("reference", 1000.0))
    )
    return Bench(bench="step", preset="compact", batch=8, contenders=contenders, peak_gflops=180, machine=MACHINE)


def test_every_command_of_the_page_is_one():
    verbs = typer.main.get_command(app).commands
    for measurement in (one for section in benchmark.SECTIONS for one in section.measurements):
        program, verb, *arguments = measurement.command.split()
        if program == "make":
            assert f"\n{verb}: " in (benchmark.ROOT / "Makefile").read_text()
        else:
            context = verbs[verb].make_context(verb, list(arguments))
            assert "--preset" not in arguments or context.params["preset"] in measurement.result.stem
    names = [one.result for section in benchmark.SECTIONS for one in section.measurements]
    assert len(set(names)) == len(names)


def test_a_section_is_put_between_its_marks_and_the_rest_stays():
    page = benchmark.with_section("# Title\n\nBy hand.\n", "step", "Steps", "one")
    page = benchmark.with_section(page + "\nAlso by hand.\n", "input", "Input", "two")
    again = benchmark.with_section(page, "step", "Steps", r"three \1 and a $")
    assert again == page.replace("one", r"three \1 and a $")
    assert again.startswith("# Title\n\nBy hand.\n") and "\nAlso by hand.\n" in again
    assert again.index("## Steps") < again.index("## Input")


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "RESULTS", tmp_path)
    return tmp_path


def test_the_page_has_what_was_measured_and_only_that(results):
    section = benchmark.SECTIONS[0]
    first = section.measurements[0]
    first.result.write_text(step_bench().model_dump_json(by_alias=True))
    page = benchmark.write_page("# Title\n", benchmark.SECTIONS)
    assert f"`{first.command}`" in page and "A processor" in page and "| 2.00 (1.80 to 2.20) |" in page
    assert page.count("<!-- bench:") == 2 and section.measurements[1].command not in page
    assert benchmark.write_page(page, benchmark.SECTIONS) == page


def test_what_has_a_result_is_not_measured_again(results, monkeypatch):
    section = benchmark.SECTIONS[0]
    for measurement in section.measurements:
        measurement.result.write_text("{}")
    monkeypatch.setattr(benchmark.Measurement, "run", lambda self: pytest.fail(self.command))
    assert benchmark.measure([section]) == []


def test_the_tables():
    step = step_bench()
    assert Bench.model_validate_json(step.model_dump_json(by_alias=True)) == step
    table = bench_table(step)
    assert table.rows[0] == ("ours", "float32", "500 (450 to 550)", "2.00 (1.80 to 2.20)", "106.0", "1500")
    absent = ContenderFigures(name="onnx", precision="float32", problem="is not installed")
    geant4 = Geant4Time(showers=8, seconds_per_shower=5, energy_gev=(10, 500))
    changes = {"bench": "generate", "contenders": (*step.contenders, absent), "geant4": geant4, "streams": 2}
    generation = bench_table(step.model_copy(update=changes))
    assert [row[4] for row in generation.rows] == ["10", "5", ""]
    assert "5.000 s per shower of 10-500 GeV" in generation.note
    assert all(len(row) == len(shown.columns) for shown in (table, generation) for row in shown.rows)


def test_real_nodes(results):
    """What was not measured on this machine (a fault that its cluster cannot be given, say) has no row."""
    machine = MACHINE.model_dump(mode="json", by_alias=True)
    seconds = {"applyToFirstStepSeconds": 29.1, "lose_a_nodeToNextStepSeconds": 60.3}
    (results / "smoke.json").write_text(json.dumps({"seconds": seconds, "machine": machine}))
    page = benchmark.write_page("# Title\n", benchmark.SECTIONS)
    assert "`make smoke`" in page and "to its first step | 29 s |" in page
    assert "drained" not in page


def test_versions_are_listed_once(results):
    machine = MACHINE.model_copy(update={"versions": {"numpy": "2.4.6"}})
    measured = step_bench().model_copy(update={"machine": machine}).model_dump_json(by_alias=True)
    for measurement in benchmark.STEPS[:2]:
        measurement.result.write_text(measured)
    page = benchmark.write_page("# Title\n", benchmark.SECTIONS)
    assert page.count("A processor") == 1 and "- The training step: numpy 2.4.6\n" in page
    assert benchmark.write_page(page, benchmark.SECTIONS) == page
