"""The command as its user sees it: help, exit codes, errors without tracebacks."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

VERBS = (
    "run",
    "simulate",
    "preprocess",
    "train",
    "validate",
    "report",
    "profile",
    "bench",
    "inspect",
    "plan",
    "bill",
    "prices",
    "calibrate",
    "study",
    "submit",
)


def caloscale(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "caloscale.cli.main", *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


def test_help_loads_nothing_heavy() -> None:
    """Half a second is the goal; what costs it are imports, so these are what is checked."""
    program = (
        "import sys; sys.argv = ['caloscale', '--help']\n"
        "from caloscale.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'tensorflow', 'keras', 'matplotlib', 'scipy', 'sklearn', 'kfp', 'google.cloud', 'h5py'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip().endswith("[]")
    assert all(verb in out for verb in VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(verb: str) -> None:
    done = caloscale(verb, "--help")
    assert done.returncode == 0
    assert "Usage" in done.stdout


def test_ctrl_c_says_that_one_can_go_on(tmp_path: Path) -> None:
    command = ["simulate", "--preset", "compact", "--set", "data.simulation.engine=parametrised", "-o", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-m", "caloscale.cli.main", *command], stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        process.stderr.readline()  # the progress display: it is at work
        process.send_signal(signal.SIGINT)
        told = process.stderr.read()
        assert process.wait(60) == 130
    assert "goes on from here" in told and "Traceback" not in told


BAD = {
    "unknown key": ["run", "--preset", "compact", "--set", "train.epoch=3"],
    "wrong type": ["run", "--preset", "compact", "--set", "train.epochs=many"],
    "impossible geometry": ["simulate", "--preset", "compact", "--set", "data.geometry.depthMm=3"],
    "no such preset": ["run", "--preset", "tiny"],
    "no such accelerator": ["run", "--preset", "variable-angle", "--set", "hardware.accelerator=v10"],
    "no document": ["run"],
    "no such document": ["run", "absent.yaml"],
    "showers that are there": ["simulate", "--preset", "compact", "--set", "data.source=own"],
    "showers that are there, all": [
        "simulate",
        "--preset",
        "compact",
        "--set",
        "data.source=own",
        "--set",
        "data.showers=null",
    ],
    "nothing to read": ["preprocess", "--preset", "compact"],
    "no such showers": ["preprocess", "--preset", "compact", "--showers", "absent.h5"],
    "no such file": ["inspect", "absent.h5"],
    "no dataset": ["train", "--preset", "compact", "--workspace", "w"],
    "no such study": ["study", "costs"],
    "no such verb": ["fly"],
    "bad name": ["run", "--preset", "compact", "--name", "../x"],
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_2_and_a_remedy(case: str, tmp_path: Path) -> None:
    done = caloscale(*BAD[case], cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "remedy" in done.stderr or "Usage" in done.stderr
    left = [p for p in tmp_path.rglob("*") if p.is_file() and p.parts[-2] != "stages" and p.name != "run.yaml"]
    assert left == []


@pytest.mark.parametrize("verb", ["train", "validate"])
def test_a_bucket_is_not_taken_for_a_folder(verb: str, tmp_path: Path) -> None:
    done = caloscale(verb, "--preset", "compact", "-w", "gs://bucket/run", cwd=tmp_path)
    assert done.returncode == 2 and "gs://bucket/run" in done.stderr and "remedy" in done.stderr
    assert list(tmp_path.iterdir()) == []
