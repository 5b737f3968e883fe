"""Tables fit a terminal of 80 columns without wrapped cells; --wide shows the columns that are left out."""

from __future__ import annotations

import datetime as dt
import io
import json
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from caloscale.cli import status, tables
from caloscale.client.runs import RunOnCluster
from caloscale.status import RunCost, RunProgress, RunStatus
from tests.cli.test_plan import HELD, USAGE

PLAN = ("plan", "--preset", "variable-angle", "--as-of", "2026-11-21")
V100 = ("--set", "hardware.accelerator=nvidia-tesla-v100", "--set", "hardware.region=europe-west4")


def widest(shown: str) -> int:
    """Columns of the widest line of a table (text below it is wrapped by the terminal)."""
    return max(len(line.rstrip()) for line in shown.splitlines() if "   " in line or "─" in line)


@pytest.fixture
def usage(tmp_path: Path) -> Path:
    path = tmp_path / "usage.json"
    path.write_text(json.dumps(USAGE | {"attempts": [{"nodes": [HELD], "trainingSeconds": 6600}]}))
    return path


@pytest.mark.parametrize(
    "words",
    [
        (*PLAN, *V100),
        ("prices", "--as-of", "2026-11-21"),
        ("prices", "--machines"),
        ("bill", "usage.json"),
    ],
    ids=["plan", "prices", "machines", "bill"],
)
def test_a_table_fits_80_columns_by_itself(command, usage, monkeypatch, words):
    """The terminal is wider, so nothing makes the table narrow but its own columns."""
    monkeypatch.chdir(usage.parent)
    monkeypatch.setattr(tables, "console", lambda: Console(width=300, highlight=False, markup=False))
    done = command(*words)
    assert done.code == 0, done.err
    assert 40 < widest(done.out) <= 80, done.out


def test_wide_shows_all_columns(command, usage, monkeypatch):
    monkeypatch.setattr(tables, "console", lambda: Console(width=300, highlight=False, markup=False))
    assert "source" not in command("prices", "--sku", "v100", "--as-of", "2026-11-21").out
    assert "source" in command("prices", "--sku", "v100", "--as-of", "2026-11-21", "--wide").out
    meaning = "steps whose work was kept"
    assert meaning not in command("bill", usage).out and meaning in command("bill", usage, "--wide").out


def test_the_table_of_runs_fits_and_has_the_message_below():
    moment = dt.datetime(2026, 11, 21, 23, 30, tzinfo=dt.UTC)
    progress = RunProgress(eta=moment, step=12345, steps=234567, epoch=12.3, epochs=120, showers_per_second=1234)
    message = "4 nodes with 8 free nvidia-tesla-v100 needed, 3 present: pool v100-8-spot is at 3/4"
    state = RunStatus(phase="Recovering", progress=progress, cost=RunCost(usd=1234.5), message=message, layout="16x8")
    runs = [RunOnCluster("variable-angle-batch-96", "physics", {}, state, "")]

    def shown(wide: bool) -> str:
        out: RenderableType = status._table(runs, "physics", wide=wide)
        console = Console(width=300, file=io.StringIO())
        console.print(out)
        return console.file.getvalue()

    narrow = shown(wide=False)
    assert widest(narrow) <= 80 and f"variable-angle-batch-96: {message}" in narrow
    assert all(column in shown(wide=True) for column in status.COLUMNS)
