"""What `make deploy` and `make undeploy` say to the server; it is never asked."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(("given", "dry"), [("", False), ("0", False), ("1", True)])
def test_only_a_value_other_than_zero_makes_a_trial(given: str, dry: bool) -> None:
    command = ["make", "--dry-run", "deploy", f"DRY_RUN={given}"]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (line,) = [each for each in shown.splitlines() if "tools.deploy" in each]
    assert line.endswith("--dry-run") is dry
