"""Every command that README.md and docs/ show, in the order of the pages, on what a tiny run has left.

The commands are those of the pages but for their size: runs get a tiny configuration, generations six showers. The
targets of make are only checked (`make --dry-run`). A block that needs a cluster, a cloud or large data is marked in
the page by ``<!-- skip: next "reason" -->``.
"""

from __future__ import annotations

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

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIALS = ("first-generator.md",)
"""Pages whose Python is run, too."""
SIZED = ("run", "simulate")
"""Commands that take a run configuration and would work for minutes."""


def sized(words: list[str]) -> list[str]:
    """The words of a caloscale command, of small size."""
    if "--count" in words:
        position = words.index("--count") + 1
        words = [*words[:position], "6", *words[position + 1 :]]
    return words + (AS_TINY if words[0] in SIZED else [])


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
        extra = re.fullmatch(r"caloscale\[(\w+)\]", words[2])
        assert extra is not None and extra[1] in project["optional-dependencies"], shlex.join(words)
        return
    else:
        raise AssertionError(f"the test does not know how to run {words[0]}: mark the block with <!-- skip: next -->")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{shlex.join(words)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=() if page.name == "README.md" else pytest.mark.long) for page in PAGES],
)
def test_the_commands_of_a_page_work(page: Path, after_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(after_run)
    monkeypatch.setenv("CALOSCALE_CACHE", str(after_run / "cache"))
    save = reporting.save_figures
    # The others are those of the pipeline, see test_local.py: drawing seventeen takes ten seconds.
    monkeypatch.setattr(reporting, "save_figures", lambda folder, drawings: save(folder, drawings[:1]))

    def evaluate(example: Example) -> None:
        for words in commands(example.parsed):
            execute(words, monkeypatch)

    parsers = [CodeBlockParser("bash", evaluate), SkipParser()]
    if page.name in TUTORIALS:
        parsers.append(PythonCodeBlockParser())
    sybil = Sybil(parsers=parsers)
    for example in sybil.parse(page).examples():
        with contextlib.suppress(SkipTest):
            example.evaluate()


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_every_block_names_its_language(page: Path) -> None:
    """A block without one would be tested by nobody."""
    fences = re.findall(r"^ *```(\w*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert [fence for fence in fences[::2] if not fence] == [] and not any(fences[1::2])
    assert set(fences[::2]) <= {"bash", "python", "yaml", "text"}


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=page.name, marks=() if page.name == "README.md" else pytest.mark.long) for page in PAGES],
)
def test_what_is_not_run_says_why(page: Path) -> None:
    skips = re.findall(r"<!-- skip: (.*?) -->", page.read_text(encoding="utf-8"))
    assert [skip for skip in skips if not re.fullmatch(r'(next|start) "[^"]{10,}"|end', skip)] == []
