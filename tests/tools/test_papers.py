"""The papers' statements: states, reasons and commands of docs/papers.yaml, and the counts of the page."""

import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from caloscale.cli.main import app
from caloscale.spec import load_run, load_solver_run
from caloscale.studies.sweep import study_names
from tools.generate import papers_page, run_cost

ROOT = Path(__file__).resolve().parents[2]
DATA: dict[str, Any] = yaml.safe_load((ROOT / "docs/papers.yaml").read_text(encoding="utf-8"))
STATEMENTS = [
    pytest.param(statement, id=f"{document['letter']}{number}")
    for document in DATA["documents"]
    for number, statement in enumerate(document["statements"], 1)
]
COMMAND = typer.main.get_command(app)


@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_statement_has_a_known_state_a_reason_and_a_command(statement: dict[str, str]) -> None:
    assert all(isinstance(value, str) and value.strip() and "|" not in value for value in statement.values())
    assert statement["state"] in DATA["states"]
    assert ("why" in statement) == (statement["state"] != "reproduced")
    assert ("machine" in statement) == ("command" in statement)
    if "command" in statement:
        assert statement["machine"] in DATA["machines"]
        if "commit" in statement:
            require_past_script(statement["command"], statement["commit"])
        else:
            require_command(statement["command"])
    else:
        assert statement["state"] in ("not done", "not possible here")


def require_command(text: str) -> None:
    """Assert that a command of the product, a target of make or tests exist, and that its arguments are valid."""
    program, *arguments = shlex.split(text)
    if program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "pytest":
        files = [argument for argument in arguments if argument.startswith("tests/")]
        assert files and all((ROOT / file).exists() for file in files)
        if "-m" in arguments:
            mark = f"mark.{arguments[arguments.index('-m') + 1]}"
            assert any(mark in (ROOT / file).read_text(encoding="utf-8") for file in files)
    elif program == "python":
        assert arguments[0] == "-m" and (ROOT / f"{arguments[1].replace('.', '/')}.py").is_file()
    else:
        assert program == "caloscale"
        context = COMMAND.make_context("caloscale", arguments[:1], resilient_parsing=True)
        command = COMMAND.get_command(context, arguments[0])  # type: ignore[attr-defined]
        assert command is not None, f"caloscale has no command {arguments[0]}"
        known = {option for parameter in command.params for option in parameter.opts}
        assert {argument for argument in arguments if argument.startswith("-")} <= known
        if arguments[0] == "study":
            assert arguments[1] in study_names()
        elif "--preset" in arguments:
            preset = arguments[arguments.index("--preset") + 1]
            overrides = [value for option, value in pairwise(arguments) if option == "--set"]
            (load_solver_run if arguments[0] == "solve" else load_run)(preset=preset, overrides=overrides)


def require_past_script(text: str, commit: str) -> None:
    """Assert that a commit, if the clone reaches so far back, has a script of tools/ that today's tree has not."""
    script = f"{text.removeprefix('python -m ').split()[0].replace('.', '/')}.py"
    assert not (ROOT / script).exists()
    git = ("git", "-C", str(ROOT))
    if subprocess.run([*git, "cat-file", "-e", f"{commit}^{{commit}}"], capture_output=True, check=False).returncode:
        pytest.skip(f"the clone does not have {commit}")
    subprocess.run([*git, "cat-file", "-e", f"{commit}:{script}"], check=True)


@pytest.mark.parametrize(
    "text",
    [
        "caloscale nothing",
        "caloscale study nothing",
        "make nothing",
        "pytest tests/no.py",
        "pytest -m no tests/tools/test_papers.py",
        "caloscale solve --none",
        "python -m tools.no",
    ],
)
def test_what_does_not_exist_is_noticed(text: str) -> None:
    with pytest.raises(AssertionError):
        require_command(text)


def test_each_command_has_its_minutes_or_a_reason() -> None:
    minutes = DATA["minutes"]
    statements = [each.values[0] for each in STATEMENTS]
    assert minutes.keys() == {one["command"] for one in statements if "command" in one}
    for command, spent in minutes.items():
        assert spent.strip() if isinstance(spent, str) else 0 < spent < 1e4, command


USD_PER_CORE_MINUTE = (2 * 0.031611 + 7.5 * 0.004237) / 2 / 60  # us-central1, on demand, of 2026-01-01
USD_PER_GPU_MINUTE = (0.26996 + 2.2356) / 60  # a3-highgpu-1g in us-east4, spot


def test_the_page_counts_its_statements_and_adds_up_its_commands() -> None:
    one = {"says": "a", "paper": "b", "ours": "c"}
    reproduced = one | {"machine": "any", "state": "reproduced", "command": "make a"}
    smaller = one | {"state": "smaller", "why": "w"}
    ran = [smaller | {"machine": "gpu", "command": "make b"}, smaller | {"machine": "any", "command": "make c"}]
    document = {"title": "t", "source": "s"}
    page = papers_page(
        {
            "states": {"reproduced": "equal", "smaller": "less"},
            "machines": {
                "any": {"what": "two cores", "pricedAs": {"machineType": "n1-standard-2"}},
                "gpu": {"what": "a GPU", "pricedAs": DATA["machines"]["h200"]["pricedAs"]},
            },
            "about": "Minutes.",
            "pricesOf": DATA["pricesOf"],
            "minutes": {"make a": 600, "make b": 60, "make c": "unknown"},
            "documents": [
                document | {"letter": "A", "statements": [reproduced] * 3},
                document | {"letter": "B", "statements": [*ran, smaller]},
            ],
        }
    )
    assert "6 statements" in page
    assert "| reproduced | equal | 3 | 0 | 3 |" in page and "| smaller | less | 0 | 3 | 3 |" in page
    cores, gpu = 600 * USD_PER_CORE_MINUTE, 60 * USD_PER_GPU_MINUTE
    assert f"|A3|a|b|c|reproduced|`make a`|600|{cores:.4f}|" in page
    assert f"|B1|a|b|c|smaller: w|`make b` (gpu)|60|{gpu:.4f}|" in page
    assert "|B2|a|b|c|smaller: w|`make c`|unknown||" in page and "|B3|a|b|c|smaller: w||||" in page
    assert f"2 of 3 commands have a time, together 11.0 h and {cores + gpu:.2f} USD." in page
    assert "n1-standard-2 at 0.0950 USD an hour (us-central1, on-demand, seen on 2026-01-01)" in page


def test_time_and_money_of_a_run() -> None:
    assert run_cost("not recorded", 1) == ("not recorded", "")
    assert run_cost(0.02, 0.0008) == ("0.02", "0.00002")
    assert run_cost(3.14, 0.001) == ("3.1", "0.0031")
