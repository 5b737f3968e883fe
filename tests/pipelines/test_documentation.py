"""Every command that README.md and docs/ show, in the order of the pages, on what a tiny run has left.

The commands are those of the pages but for their size: runs get a tiny configuration, generations six showers. The
targets of make are only checked (`make --dry-run`). A block that needs a cluster, a cloud or large data is marked in
the page by ``<!-- skip: next "reason" -->``; tests/control_plane runs those that submit a run. Tutorials are run as a
whole: a block of YAML or CSV behind the line ``<!-- file: NAME -->`` becomes that file, Python runs, and text
is compared with what was printed since the last one.
"""

import contextlib
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from unittest import SkipTest

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

from caloscale.cli.main import main
from caloscale.stages import reporting
from tests.pipelines.conftest import AS_TINY, ROOT, RUN, commands

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs/tutorials").glob("*.md"))]
PAGES.append(ROOT / "docs/reference/python.md")
MARKS = {"README.md": pytest.mark.integration, "thirty-two-gpus.md": ()}
"""Pages that are quick; the others are run by make test-long."""
EACH_PAGE = [pytest.param(page, id=page.name, marks=MARKS.get(page.name, pytest.mark.long)) for page in PAGES]
SIZED = ("run", "simulate")
"""Commands that take a run configuration and would work for minutes."""
PURE = ("plan", "bill")
"""Commands whose output depends on their input alone: the pages show it exactly, that of others but for its numbers."""


def sized(words: list[str]) -> list[str]:
    """The words of a caloscale command, of small size."""
    if "--count" in words:
        position = words.index("--count") + 1
        words = [*words[:position], "6", *words[position + 1 :]]
    if words[0] == "generate":  # the small training has other energies than that of `make run`, and would refuse these
        words = [*words, "--extrapolate"]
    if words[0] == "solve":
        return [*words, "--set", "solver.epochs=4"]
    return words + (AS_TINY if words[0] in SIZED else [])


def absent_line(shown: str, printed: str, *, numbers: bool) -> str | None:
    """The first line of a page that was not printed behind those before it; ``...`` stands for any text of a line."""

    def lines(text: str) -> list[str]:
        text = text if numbers else re.sub(r"\d[\d,.]*(e[+-]?\d+)?", "0", text)
        return [" ".join(line.split()) for line in text.splitlines()]

    left = iter(lines(printed))
    for line in lines(shown):
        pattern = re.escape(line).replace(r"\ \.\.\.", ".*").replace(r"\.\.\.", ".*")
        if line != "..." and not any(re.fullmatch(pattern, one) for one in left):
            return line
    return None


def test_text_of_a_page_is_compared() -> None:
    assert absent_line("a  1\n...\nc", "x\na 1\nb\nc\nd", numbers=True) is None
    assert absent_line("a 1\na 2 ...", "a 1\na 2 b", numbers=True) is None
    assert absent_line("a 1", "a 2", numbers=True) == "a 1"
    assert absent_line("a 1.5e-06", "a 2", numbers=False) is None
    assert absent_line("c\na", "a\nc", numbers=False) == "a"


def execute(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command as its page shows it; fails when its exit code is not 0."""
    while re.fullmatch(r"\w+=.*", words[0]):
        name, _, value = words[0].partition("=")
        monkeypatch.setenv(name, value)
        words = words[1:]
    if words == RUN:
        return  # by the fixture `by_command`, with which the page begins
    if words[0] == "caloscale":
        monkeypatch.setattr(sys, "argv", ["caloscale", *sized(words[1:])])
        try:
            main()
        except SystemExit as end:
            assert not end.code, f"exit code {end.code}: {shlex.join(words)}"
        return
    if words[0] == "make":
        words = ["make", "--dry-run", *words[1:]]
    elif words[0].endswith("python"):
        words = [sys.executable, *words[1:]]
    elif words[:2] == ["pip", "install"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        extra = re.fullmatch(r"\.\[(\w+)\]", words[3])
        assert words[2] == "-e" and extra is not None and extra[1] in project["optional-dependencies"], words
        return
    else:
        raise AssertionError(f"the test does not know how to run {words[0]}: mark the block with <!-- skip: next -->")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", EACH_PAGE)
def test_the_commands_of_a_page_work(
    page: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    plans_alone = page.name == "thirty-two-gpus.md"
    follow(page, tmp_path if plans_alone else request.getfixturevalue("after_run"), monkeypatch, capsys)


@pytest.mark.integration
def test_the_commands_before_the_training_of_own_detector_work(
    after_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    follow(ROOT / "docs/tutorials/own-detector.md", after_run, monkeypatch, capsys, until="caloscale run")


def follow(
    page: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    until: str | None = None,
) -> None:
    """Do what a page shows in a folder, until the first block with a command."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("CALOSCALE_CACHE", str(folder / "cache"))
    # What was measured on the machine that runs the tests is not in the plans of the pages.
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    save = reporting.save_figures
    # The others are those of the pipeline, see test_local.py: drawing seventeen takes ten seconds.
    monkeypatch.setattr(reporting, "save_figures", lambda where, drawings: save(where, drawings[:1]))
    monkeypatch.syspath_prepend(folder)  # what PYTHONPATH=. does for a process
    exact = True

    def run_commands(example: Example) -> None:
        nonlocal exact
        words_of_all = commands(example.parsed)
        exact = all(words[:1] == ["caloscale"] and words[1] in PURE for words in words_of_all)
        capsys.readouterr()
        for words in words_of_all:
            execute(words, monkeypatch)

    def compare(example: Example) -> None:
        printed = "\n".join(capsys.readouterr())
        assert absent_line(example.parsed, printed, numbers=exact) is None, f"{page.name}:{example.line}\n{printed}"

    parsers = [CodeBlockParser("bash", run_commands), SkipParser()]
    if page.parent.name in ("tutorials", "reference"):
        parsers += [PythonCodeBlockParser(), CodeBlockParser("text", compare)]
        for name, content in re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
            (folder / name).write_text(content, encoding="utf-8")
    sybil = Sybil(parsers=parsers)
    for example in sybil.parse(page).examples():
        if until and until in str(example.parsed):
            return
        with contextlib.suppress(SkipTest):
            example.evaluate()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_block_names_its_language(page: Path) -> None:
    """A block without one would be tested by nobody."""
    fences = re.findall(r"^ *```(\w*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [fence for fence in fences[::2] if not fence] == [] and not any(fences[1::2])
    assert set(fences[::2]) <= {"bash", "python", "yaml", "text"}


@pytest.mark.parametrize("page", EACH_PAGE)
def test_what_is_not_run_says_why(page: Path) -> None:
    skips = re.findall(r"<!-- skip: (.*?) -->", page.read_text(encoding="utf-8"))
    assert [skip for skip in skips if not re.fullmatch(r'(next|start) "[^"]{10,}"|end', skip)] == []
