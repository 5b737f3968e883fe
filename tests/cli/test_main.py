"""The command as its user sees it: help, exit codes, errors without tracebacks."""

import inspect
import json
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import typer

from caloscale.cli import cluster, measure, model, money, run, start
from caloscale.cli import main as program
from caloscale.cli.main import app
from caloscale.storage.lock import LOCK_NAME
from tests.processes import running, without

COMMANDS = sorted(typer.main.get_group(app).commands)
"""All of them; compared with the functions below."""


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
    shown = {line.split()[0] for line in out.splitlines() if line.startswith("  ") and line.strip()}
    assert set(COMMANDS) - shown == {"worker"}  # for pods only


def test_every_public_function_of_the_modules_of_commands_is_a_command() -> None:
    modules = (cluster, measure, model, money, run)
    functions = {
        name.replace("_", "-")
        for module in modules
        for name, made in vars(module).items()
        if inspect.isfunction(made) and made.__module__ == module.__name__ and not name.startswith("_")
    }
    assert {*COMMANDS, "import-prices"} == functions  # the last is prices import


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Their disks are full: TensorFlow, for one, cannot be imported then."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nonexistent"])
    monkeypatch.setattr(program, "app", tempfile.gettempdir)
    with pytest.raises(SystemExit, match="2"):
        program.main()
    assert "/nonexistent" in (error := capsys.readouterr().err) and "remedy: free space, or let TMPDIR" in error


def test_ctrl_c_while_the_command_is_loaded_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted:
        def find_spec(self, *_: object) -> None:
            raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "caloscale.cli.main")
    monkeypatch.setattr(sys, "meta_path", [Interrupted()])
    with pytest.raises(SystemExit, match="130"):
        start()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_one_that_is_stopped_says_that_the_command_can_be_repeated(tmp_path: Path, number: int, code: int) -> None:
    # More showers than are made before the signal comes, however late that is.
    many = ["--set", "data.simulation.engine=parametrised", "--set", "data.showers=1000000"]
    command = [sys.executable, "-m", "caloscale.cli.main", "simulate", "--preset", "compact", *many]
    with running([*command, "-o", str(tmp_path)], stderr=subprocess.PIPE) as process:
        assert process.stderr.readline()  # the progress display: it is at work
        process.send_signal(number)
        shown = process.stderr.read()
        assert process.wait() == code
    assert "resumes" in shown and "Traceback" not in shown


BAD = {
    "unknown key": ["run", "--preset", "compact", "--set", "train.epoch=3"],
    "wrong type": ["run", "--preset", "compact", "--set", "train.epochs=many"],
    "impossible geometry": ["simulate", "--preset", "compact", "--set", "data.geometry.depthMm=3"],
    "no such preset": ["run", "--preset", "tiny"],
    "no such accelerator": ["run", "--preset", "variable-angle", "--set", "hardware.accelerator=v10"],
    "no document": ["run"],
    "no such document": ["run", "absent.yaml"],
    "showers that are there": ["simulate", "--preset", "compact", "--set", "data.source=own"],
    "nothing to read": ["preprocess", "--preset", "compact"],
    "no such showers": ["preprocess", "--preset", "compact", "--showers", "absent.h5"],
    "no such file": ["inspect", "absent.h5"],
    "no dataset": ["train", "--preset", "compact", "--workspace", "w"],
    "no such study": ["study", "costs"],
    "step without a discriminator": ["bench", "step", "--preset", "flow"],
    "streams of a step": ["bench", "step", "--preset", "compact", "--streams", "2"],
    "no such command": ["fly"],
    "options of another command": ["prices", "--region", "us-central1", "import", "skus.json"],
    "bad name": ["run", "--preset", "compact", "--name", "../x"],
}


def left_in(folder: Path) -> list[Path]:
    """Files other than the lock, the run configuration and the records of stages."""
    kept = ("run.yaml", LOCK_NAME)
    return [p for p in folder.rglob("*") if p.is_file() and p.parts[-2] != "stages" and p.name not in kept]


@pytest.mark.parametrize("case", BAD)
def test_bad_input_ends_with_2_and_a_remedy(
    case: str, command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(*BAD[case])
    assert done.code == 2, done.err
    assert "Traceback" not in done.err
    assert "remedy" in done.err or "Usage" in done.err
    assert left_in(tmp_path) == []


def test_a_command_without_its_extra_names_the_package_and_its_installation(tmp_path: Path) -> None:
    """As after `pip install .` alone, which is enough for plans and clusters."""
    code = without("threadpoolctl", "tensorflow") + "from caloscale.cli import start; start()"
    process = [sys.executable, "-W", "ignore", "-c", code, "run", "--preset", "compact"]
    done = subprocess.run(process, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert "needs the package threadpoolctl" in done.stderr and "[train,cpu]" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_bench_without_tensorflow_names_its_installation(command: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its processes alone would load it."""
    monkeypatch.setattr("caloscale.installation._is_installed", lambda name: "tensorflow" not in name)
    done = command("bench", "step", "--preset", "variable-angle")
    assert (
        done.code == 2 and "not installed: tensorflow-cpu" in done.err and "install" in done.err.partition("remedy")[2]
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("profile", ".", "--batch", "4"), "--batch: has no effect on the profile that a training has kept"),
        (("compare", "one", "other", "--dataset", "shards"), "dataset: judges files, and all are runs"),
        (("report", "-w", "absent"), "absent/run.yaml: cannot be read"),
        (("report", "-w", "gs://bucket/run"), "is in a bucket"),
    ],
)
def test_options_without_effect_and_absent_runs_are_named(command: Callable, words: tuple[str, ...], says: str) -> None:
    done = command(*words)
    assert done.code == 2 and says in done.err and "remedy" in done.err


def test_a_comparison_as_json_leaves_the_page_that_is_named(
    command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none without a name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("caloscale.stages.comparison.compare_runs", lambda *_: ())
    monkeypatch.setattr("caloscale.report.comparison.comparison_drawings", lambda _: [])
    for words, pages in ((("-o", "page.html"), ["page.html"]), ((), [])):
        done = command("compare", "one", "other", "--json", *words)
        assert done.code == 0 and json.loads(done.out) == {"runs": [], "differences": {}}, done.err
        assert [path.name for path in tmp_path.glob("*.html")] == pages
        (tmp_path / "page.html").unlink(missing_ok=True)


@pytest.mark.parametrize("verb", ["train", "validate"])
def test_a_bucket_is_not_taken_for_a_folder(
    verb: str, command: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = command(verb, "--preset", "compact", "-w", "gs://bucket/run")
    assert done.code == 2 and "gs://bucket/run" in done.err and "remedy" in done.err
    assert list(tmp_path.iterdir()) == []


def commands_of(group, name: str = "caloscale"):
    """All commands with their names, those within others too."""
    for inner, command in group.commands.items():
        if not command.hidden:
            yield f"{name} {inner}", command
            if hasattr(command, "commands"):
                yield from commands_of(command, f"{name} {inner}")


def test_help_is_grouped_whole_and_within_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    group = typer.main.get_command(app)
    shown = group.get_help(group.make_context("caloscale", ["plan"], resilient_parsing=True))
    titles = ["Run locally:", "Models:", "Cost:", "Cluster:", "Solver:"]
    assert [line for line in shown.splitlines() if line in titles] == titles and "Commands:" not in shown
    listed = {program._name(command) for examples in program.COMMANDS.values() for command in examples}
    assert listed == {name for name, command in group.commands.items() if not command.hidden}
    for name, command in commands_of(group):
        text = command.get_help(command.make_context(name, [], resilient_parsing=True))
        assert max(map(len, text.splitlines())) <= 80 and "...\n" not in text.partition("\n")[2], name
        assert "Example: caloscale " in text and not re.search(r"<(str|path|int|float)( range)?>|<list\[", text), name


def test_the_examples_of_the_help_can_be_given() -> None:
    group = typer.main.get_command(app)
    for examples in program.COMMANDS.values():
        for command, example in examples.items():
            name, *words = example.split()
            assert name == program._name(command)
            group.commands[name].make_context(name, words)
