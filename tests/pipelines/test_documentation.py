"""Every command that README.md and docs/ show, in the order of the pages, on what a tiny run has left.

The commands are those of the pages but for their size: runs get a tiny configuration, generations six showers. The
targets of make are only checked (`make --dry-run`). A block that needs a cluster, a cloud or large data is marked in
the page by ``<!-- skip: next "reason" -->``.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from unittest import SkipTest

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, SkipParser

from caloscale.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SMALL = (
    *("data.showers=48", "data.validationFraction=0.25", "data.simulation.showersPerFile=16", "data.energyGev=[5, 9]"),
    *("train.epochs=1", "train.batchPerReplica=8", "validation.showers=64", "validation.energyBins=1"),
    *("validation.bootstraps=20", "validation.gates=[]"),
)
SIZED = ("run", "simulate")
"""Commands that take a run configuration and would work for minutes."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a user after `make run`: runs/latest, showers of their own, and the files that the pages name."""
    home = tmp_path_factory.mktemp("home")
    for name in ("pipelines", "components", "Makefile", "docker", "pyproject.toml", "constraints.txt"):
        (home / name).symlink_to(ROOT / name)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (home / "run.yaml").write_text(readme.split("```yaml\n")[1].split("```")[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("CALOSCALE_CACHE", str(home / "cache"))
        execute(["caloscale", "run", "run.yaml"], patch)
    simulated = sorted((home / "cache").rglob("*.h5"))
    shutil.copy(simulated[0], home / "showers.h5")
    (home / "mine").mkdir()
    for number, file in enumerate(simulated):
        shutil.copy(file, home / "mine" / f"showers-{number:03}.h5")
    yield home


def commands(block: str) -> list[list[str]]:
    """The commands of a block, as lists of words, without comments."""
    joined = block.replace("\\\n", " ")
    lines = [part for line in joined.splitlines() for part in re.split(r"\s&&\s", line)]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


def sized(words: list[str]) -> list[str]:
    """The words of a caloscale command, of small size."""
    if "--count" in words:
        place = words.index("--count") + 1
        words = [*words[:place], "6", *words[place + 1 :]]
    return words + [word for override in (SMALL if words[0] in SIZED else ()) for word in ("--set", override)]


def execute(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a command as its page shows it; fails when its exit code is not 0."""
    while re.fullmatch(r"\w+=.*", words[0]):
        name, _, value = words[0].partition("=")
        monkeypatch.setenv(name, value)
        words = words[1:]
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
def test_the_commands_of_a_page_work(page: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    monkeypatch.setenv("CALOSCALE_CACHE", str(home / "cache"))

    def evaluate(example: Example) -> None:
        for words in commands(example.parsed):
            execute(words, monkeypatch)

    sybil = Sybil(parsers=[CodeBlockParser("bash", evaluate), SkipParser()])
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


def test_every_command_is_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["caloscale", "--help"])
    with pytest.raises(SystemExit):
        main()
    known = re.findall(r"^  ([a-z-]+)  ", capsys.readouterr().out.partition("Commands:")[2], re.MULTILINE)
    assert len(known) > 15
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [name for name in known if f"`{name}`" not in readme] == []
