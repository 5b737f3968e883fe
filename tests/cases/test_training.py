"""What a training is given to work with, and what it must not accept."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from caloscale.training.strategy import worker_of
from tests.cli.conftest import command  # noqa: F401 (a fixture)

TASK = {"type": "worker", "index": 0}
MALFORMED: list[tuple[object, str]] = [
    ("no json", "not JSON"),
    ([], "no object"),
    (None, "no object"),
    ({"cluster": [], "task": TASK}, "no object"),
    ({"cluster": {"worker": None}, "task": TASK}, "list of addresses"),
    ({"cluster": {"worker": "a:1"}, "task": TASK}, "list of addresses"),
    ({"cluster": {"worker": {"0": "a:1"}}, "task": TASK}, "list of addresses"),
    ({"cluster": {"worker": [1]}, "task": TASK}, "list of addresses"),
    ({"cluster": {"worker": ["a"]}, "task": TASK}, "list of addresses"),
    ({"cluster": {"worker": ["a:0"]}, "task": TASK}, "list of addresses"),
    ({"cluster": {"worker": ["a:70000"]}, "task": TASK}, "list of addresses"),
    ({"cluster": {"worker": ["a b:1"]}, "task": TASK}, "list of addresses"),
    ({"cluster": {"worker": ["a:1", "b:1", "a:1"]}, "task": TASK}, "one address for two workers"),
    ({"cluster": {"worker": ["a:1"], "chief": ["c:1"]}, "task": TASK}, "workers only"),
    ({"cluster": {"worker": ["a:1", "b:1"]}}, "no task"),
    ({"cluster": {"worker": ["a:1", "b:1"]}, "task": None}, "no task"),
    ({"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker"}}, "no task"),
    ({"cluster": {"worker": ["a:1", "b:1"]}, "task": {**TASK, "type": "evaluator"}}, "no task"),
    ({"cluster": {"worker": ["a:1", "b:1"]}, "task": {**TASK, "index": True}}, "no task"),
    ({"cluster": {"worker": ["a:1", "b:1"]}, "task": {**TASK, "index": 1.5}}, "no task"),
    ({"cluster": {"worker": ["a:1", "b:1"]}, "task": {**TASK, "index": -1}}, "index -1 for 2"),
    ({"cluster": {"worker": ["a:1", "b:1"]}, "task": {**TASK, "index": 2}}, "index 2 for 2"),
]


@pytest.mark.parametrize(("given", "problem"), MALFORMED)
def test_a_malformed_tf_config_is_refused(
    command: Callable,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    given: object,
    problem: str,
) -> None:
    """Case tf-config-null, before anything else is looked at."""
    monkeypatch.setenv("TF_CONFIG", given if isinstance(given, str) else json.dumps(given))
    monkeypatch.setattr("os._exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
    done = command("train", "--preset", "compact", "--set", "data.showers=20", "--dataset", "ds", "-w", "w")
    assert done.code == 2 and "TF_CONFIG: " in done.err and problem in done.err


def test_a_tf_config_of_one_or_several_workers() -> None:
    def of(*hosts: str, index: int = 0) -> tuple[int, int]:
        config = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}, "environment": "cloud"}
        return worker_of({"TF_CONFIG": json.dumps(config)})

    assert of("a:1") == (0, 1) and of("a.b-c:2222", "[::1]:65535", index=1) == (1, 2)
    assert worker_of({"TF_CONFIG": ""}) == worker_of({"TF_CONFIG": "{}"}) == worker_of({}) == (0, 1)
