"""What a training is given to work with, and what it must not accept."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from caloscale.errors import CaloscaleError, HeldError, SupersededError, UnreachableError
from caloscale.stages.workspace import open_workspace
from caloscale.storage.objects import read_object, write_object
from caloscale.training.strategy import worker_of

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
    command: Callable, monkeypatch: pytest.MonkeyPatch, given: object, problem: str
) -> None:
    """Case tf-config-null, before anything else is looked at."""
    monkeypatch.setenv("TF_CONFIG", given if isinstance(given, str) else json.dumps(given))
    monkeypatch.setattr("os._exit", lambda code: (_ for _ in ()).throw(SystemExit(code)))
    done = command("train", "--preset", "compact", "--set", "data.showers=20", "--dataset", "ds", "-w", "w")
    assert done.code == 2 and "TF_CONFIG: " in done.err and problem in done.err


def test_a_tf_config_of_one_or_several_workers() -> None:
    def of(*hosts: str, index: int = 0) -> tuple[int, list[str]]:
        config = {"cluster": {"worker": hosts}, "task": {"type": "worker", "index": index}, "environment": "cloud"}
        return worker_of({"TF_CONFIG": json.dumps(config)})

    assert of("a:1") == (0, ["a:1"])
    assert of("a.b-c:2222", "[::1]:65535", index=1) == (1, ["a.b-c:2222", "[::1]:65535"])
    assert worker_of({"TF_CONFIG": ""}) == worker_of({"TF_CONFIG": "{}"}) == worker_of({}) == (0, [])


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process at work in the folder ``w``."""
    (tmp_path / "w").mkdir()
    code = (
        "from pathlib import Path; from caloscale.storage.lock import locked; import sys\n"
        f"with locked(Path({str(tmp_path / 'w')!r})): print('held', flush=True); sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_process_in_a_workspace_is_refused(
    command: Callable, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, holder: subprocess.Popen[str]
) -> None:
    """Case two-trainings-one-folder; nothing is changed there, and the lock of a killed process is free at once."""
    monkeypatch.chdir(tmp_path)
    for words in (("train", "-w", "w", "--dataset", "ds"), ("run", "--name", "w", "--runs", ".")):
        done = command(*words, "--preset", "compact", "--set", "data.showers=20")
        assert done.code == 2 and f"process {holder.pid} on {socket.gethostname()} is at work here" in done.err, words
    done = command("solve", "--preset", "proxy", "--name", "w", "--runs", ".")
    assert done.code == 2 and "is at work here" in done.err
    assert [path.name for path in (tmp_path / "w").iterdir()] == [".lock"]
    monkeypatch.setenv("CALOSCALE_ATTEMPT", "uid/2")
    monkeypatch.setattr("caloscale.stages.workspace.EARLIER_SECONDS", 0.0)
    with pytest.raises(UnreachableError) as error, open_workspace(tmp_path / "w"):
        pass
    assert error.value.exit_code == 144, "the process of an earlier attempt, which is ending: another attempt follows"
    holder.kill()
    holder.wait()
    with open_workspace(tmp_path / "w"), open_workspace(tmp_path / "w"):
        assert str(os.getpid()) in (tmp_path / "w" / ".lock").read_text()


@pytest.mark.parametrize("error", [HeldError("process 1 on far", "w"), SupersededError("process 1 on far", "w")])
def test_a_bucket_workspace_of_another_process_is_left_as_it_is(bucket_server: str, error: CaloscaleError) -> None:
    uri = f"{bucket_server}/left"
    write_object(b"theirs", f"{uri}/run.yaml")
    with pytest.raises(type(error)), open_workspace(uri) as folder:
        (folder / "run.yaml").write_text("ours")
        (folder / "more").write_text("ours")
        raise error
    assert (read_object(f"{uri}/run.yaml"), read_object(f"{uri}/more")) == (b"theirs", None)
