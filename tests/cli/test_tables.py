"""Tables fit a terminal of 80 columns without wrapped cells; --wide shows the columns that are left out."""

import datetime as dt
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console, RenderableType

from caloscale.cli import cluster, tables
from caloscale.client.runs import RunOnCluster
from caloscale.sagips.saves import Problem, write_checkpoint, write_problem
from caloscale.showers.arrays import Showers
from caloscale.showers.hdf5.writer import write_showers
from caloscale.spec import dump_run, load_solver_run
from caloscale.status import RunCost, RunProgress, RunStatus
from tests.cli.test_plan import HELD, USAGE

PLAN = ("plan", "--preset", "variable-angle", "--as-of", "2026-11-21")
V100 = ("--set", "hardware.accelerator=nvidia-tesla-v100", "--set", "hardware.region=europe-west4")


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing makes a table narrow but its own columns."""
    monkeypatch.setattr(tables, "console", lambda: Console(width=300, highlight=False, markup=False))


def widest(shown: str) -> int:
    """Columns of the widest line of a table (text below it is wrapped by the terminal)."""
    return max(len(line.rstrip()) for line in shown.splitlines() if "   " in line or "─" in line)


@pytest.fixture
def usage(tmp_path: Path) -> Path:
    path = tmp_path / "usage.json"
    path.write_text(json.dumps(USAGE | {"attempts": [{"nodes": [HELD], "trainingSeconds": 6600}]}))
    return path


def solved_run(folder: Path) -> None:
    """A solver run with six parameters, as the proxy application has."""
    run = load_solver_run(preset="proxy", overrides=["solver.ranks=1"])
    (folder / "solved").mkdir()
    (folder / "solved/run.yaml").write_text(dump_run(run))
    write_problem(folder / "solved", Problem(tuple(f"p{number}" for number in range(6)), (0.5,) * 6))
    write_checkpoint(folder / "solved", 0, 12345, 98765.0, np.full((3, 6), 0.4, np.float32), {})


def finished_run(folder: Path) -> None:
    (folder / "run").mkdir()
    (folder / "run/usage.json").write_text(json.dumps(USAGE))


def file_of_showers(folder: Path) -> None:
    text = "a sentence about the simulation that is longer than a terminal is wide, as files of others have it, too"
    showers = Showers(np.ones((3, 4, 4, 4), np.float32), np.full(3, 10.0), np.full(3, 1.5))
    (folder / "showers").mkdir()
    write_showers(folder / "showers/showers-000.h5", showers, attributes={"description": text})


INPUTS = {"calibrate": finished_run, "ensemble": solved_run, "inspect": file_of_showers}
"""What a command reads."""


@pytest.mark.parametrize(
    "words",
    [
        (*PLAN, *V100),
        ("prices", "--as-of", "2026-11-21"),
        ("prices", "--machines"),
        ("bill", "usage.json"),
        ("calibrate", "run/usage.json", "-o", "own.csv"),
        ("ensemble", "solved"),
        ("study", "--list"),
        ("study", "scaling", "-o", "study"),
        ("inspect", "showers/showers-000.h5"),
    ],
    ids=["plan", "prices", "machines", "bill", "calibrate", "ensemble", "studies", "study", "inspect"],
)
def test_a_table_fits_80_columns_by_itself(command, usage, monkeypatch, words):
    monkeypatch.chdir(usage.parent)
    INPUTS.get(words[0], lambda folder: None)(usage.parent)
    done = command(*words)
    assert done.code == 0, done.err
    assert 30 < widest(done.out) <= 80, done.out


def test_a_study_is_a_line_and_wide_shows_its_whole_question(command):
    titles = json.loads(command("study", "--list", "--json").out)
    short, wide = (command("study", "--list", *more).out.splitlines() for more in ((), ("--wide",)))
    assert len(short) == len(wide) == len(titles) + 3
    for name, title in titles.items():
        assert any(line.split()[0] == name and title in line for line in wide[3:])


def test_wide_shows_all_columns(command, usage):
    assert "source" not in command("prices", "--sku", "v100", "--as-of", "2026-11-21").out
    assert "source" in command("prices", "--sku", "v100", "--as-of", "2026-11-21", "--wide").out
    meaning = "steps whose work was kept"
    assert meaning not in command("bill", usage).out and meaning in command("bill", usage, "--wide").out


@pytest.mark.integration
def test_wide_shows_what_others_leave_out(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for make in INPUTS.values():
        make(tmp_path)
    narrow, wide = (command("study", "scaling", "-o", "study", *w).out for w in ((), ("--wide",)))
    assert "efficiency, figures" not in narrow and "published" in narrow and "--wide" in narrow
    assert re.search(r"USD +speed-up +efficiency +figures", wide) and "--wide" not in wide
    shown = command("ensemble", "solved").out
    assert re.findall(r"(p\d) +\+0.200 *$", shown, re.MULTILINE) == [f"p{number}" for number in range(6)]  # one member
    (alone,) = json.loads(command("ensemble", "solved", "--json").out)
    assert alone["members"] == 1 and alone["residuals"]["std"] is alone["uncertainty"] is None
    narrow, wide = (command("inspect", "showers/showers-000.h5", *w).out for w in ((), ("--wide",)))
    assert "4 x 4 x 4" in narrow and "10 to 10" in narrow and "a sentence" not in narrow and "a sentence" in wide
    narrow, wide = (command("calibrate", "run", "-o", "own.csv", *w).out for w in ((), ("--wide",)))
    assert re.search(r"step s +90% interval", narrow) and re.search(r"step s +predicted +90% interval", wide)


def test_ensembles_name_their_runs_also_without_a_truth(command, tmp_path, monkeypatch):
    """Two seeds of one configuration at .4, and a run of measured events, whose truth is not known."""
    monkeypatch.chdir(tmp_path)
    for folder, truth in (("one", (0.5,) * 6), ("two", (0.5,) * 6), ("measured", None)):
        (tmp_path / folder).mkdir()
        solved_run(tmp_path / folder)
        write_problem(tmp_path / folder / "solved", Problem(tuple(f"p{number}" for number in range(6)), truth))
    other = tmp_path / "two/solved/run.yaml"
    other.write_text(other.read_text().replace("seed: 1", "seed: 2"))
    done = command("ensemble", "one/solved", "two/solved", "measured/solved")
    known, unknown = done.out.split("Normalised parameters")
    assert (
        "p5         +0.200 ± 0.000" in known and "p5         0.400" in unknown and "±" not in unknown.split("\n", 1)[1]
    )
    assert "\n1: one/solved, two/solved\n2: measured/solved\n" in unknown


def test_columns_that_are_kept_may_be_wider():
    columns, rows = ("a", "b", "c", "d"), [("x" * 30,) * 4]
    assert tables.surplus(columns, rows) == ("c", "d")
    assert tables.surplus(columns, rows, keep=("a", "d")) == ("b", "c")
    assert tables.surplus(columns, rows, keep=columns) == ()
    assert tables.surplus(columns, [("x",) * 4]) == ()


def test_the_table_of_runs_fits_and_has_the_message_below():
    moment = dt.datetime(2026, 11, 21, 23, 30, tzinfo=dt.UTC)
    progress = RunProgress(eta=moment, step=12345, steps=234567, epoch=12.3, epochs=120, showers_per_second=1234)
    message = "4 nodes with 8 free nvidia-tesla-v100 needed, 3 present: pool v100-8-spot is at 3/4"
    state = RunStatus(phase="Recovering", progress=progress, cost=RunCost(usd=1234.5), message=message, layout="16x8")
    runs = [RunOnCluster("variable-angle-batch-96", "physics", {}, state, "")]

    def shown(wide: bool) -> str:
        out: RenderableType = cluster._table(runs, "physics", wide=wide)
        console = Console(width=300, file=io.StringIO())
        console.print(out)
        return console.file.getvalue()

    narrow = shown(wide=False)
    assert widest(narrow) <= 80 and f"variable-angle-batch-96: {message}" in narrow
    assert all(column in shown(wide=True) for column in cluster.COLUMNS)
