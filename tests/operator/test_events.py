"""Events: the table of the reference names every reason that the operator's modules can give an event."""

import ast
import csv
from pathlib import Path
from typing import get_args

from caloscale.operator import outcomes
from caloscale.status import Reason

FOLDER = Path(outcomes.__file__).parent


def reasons(call: ast.Call) -> set[str]:
    """The reasons that a call of event() or finish("Failed", ...) names."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("event", "finish"):
        return set()
    first, second = call.args[:2]
    if call.func.attr == "finish" and not (isinstance(first, ast.Constant) and first.value == "Failed"):
        return set()
    return {second.value} if isinstance(second, ast.Constant) else set()


def test_every_event_is_in_the_table() -> None:
    modules = [ast.parse(path.read_text()) for path in FOLDER.glob("*.py")]
    calls = [node for module in modules for node in ast.walk(module) if isinstance(node, ast.Call)]
    named = set().union(*map(reasons, calls))
    assert {"Waiting", "Launched", "RestartBudget"} <= named
    ends = set(get_args(Reason)) - {"Completed"}  # a run that succeeds has no event
    table = csv.DictReader((FOLDER / "events.csv").read_text(encoding="utf-8").splitlines())
    assert named | ends | set(outcomes.REFUSALS) | {"Suspending"} == {row["reason"] for row in table}
