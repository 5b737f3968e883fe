"""The command in this process: quicker than a process of its own, and the same way through errors."""

import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from caloscale.cli.main import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Done]:
    # What was measured on the machine that runs the tests is not in their plans.
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path_factory.mktemp("data")))

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["caloscale", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Done(code, *capsys.readouterr())

    return run
