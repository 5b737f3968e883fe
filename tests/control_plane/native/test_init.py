"""The first process of a node, in namespaces of its own but without a node's programs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tools.cluster.native.machine import INIT, UNSHARE

MAY_UNSHARE = subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode == 0
pytestmark = pytest.mark.skipif(not MAY_UNSHARE, reason="namespaces are root's")

Boot = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def boot(tmp_path: Path) -> Iterator[Boot]:
    started: list[subprocess.Popen[bytes]] = []

    def start(**changes: object) -> subprocess.Popen[bytes]:
        machine = {
            "hostname": "somewhere",
            "environment": {"PATH": os.environ["PATH"], "GIVEN": "yes"},
            "mounts": [],
            "port": "lo",
            "network": [["ip", "link", "set", "lo", "up"]],
            "values": {"/proc/sys/net/ipv4/ip_forward": "1"},
            "programs": [],
        }
        path = tmp_path / "machine.json"
        path.write_text(json.dumps({**machine, **changes}), encoding="utf-8")
        with (tmp_path / "log").open("wb") as log:
            command = [*UNSHARE, sys.executable, "-I", "-S", str(INIT), str(path)]
            started.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def wait_until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def program(tmp_path: Path, script: str, **more: object) -> dict[str, object]:
    return {"name": "shell", "command": ["sh", "-c", script], "log": str(tmp_path / "shell.log"), **more}


def test_a_program_runs_in_the_node_and_is_started_again(boot: Boot, tmp_path: Path) -> None:
    log = tmp_path / "shell.log"
    outside = Path("/proc/sys/net/ipv4/ip_forward").read_text(encoding="utf-8")
    tell = "echo $$ $(hostname) $GIVEN $(cat /proc/sys/net/ipv4/ip_forward)"
    boot(programs=[program(tmp_path, f"{tell}; test -e {tmp_path}/again && exec sleep 60; exit 3")])
    wait_until(lambda: log.is_file() and log.read_text(encoding="utf-8").count("\n") == 1, "it runs")
    (tmp_path / "again").touch()
    wait_until(lambda: log.read_text(encoding="utf-8").count("\n") == 2, "it is started again")
    for line in log.read_text(encoding="utf-8").splitlines():
        pid, *shown = line.split()
        assert int(pid) < 100  # counted in the node
        assert shown == ["somewhere", "yes", "1"]
    assert "shell ended with 3; started again" in (tmp_path / "log").read_text(encoding="utf-8")
    assert Path("/proc/sys/net/ipv4/ip_forward").read_text(encoding="utf-8") == outside


def test_the_next_program_waits_until_the_one_before_is_ready(boot: Boot, tmp_path: Path) -> None:
    first = program(
        tmp_path,
        f"sleep 0.3; touch {tmp_path}/ready; exec sleep 60",
        ready=["test", "-e", f"{tmp_path}/ready"],
        after=[["cp", f"{tmp_path}/ready", f"{tmp_path}/after"]],
    )
    second = program(tmp_path, f"ls {tmp_path}/ready {tmp_path}/after && exec sleep 60")
    boot(programs=[first, second])
    log = tmp_path / "shell.log"
    wait_until(lambda: log.is_file() and log.read_text(encoding="utf-8") != "", "the second runs")
    assert log.read_text(encoding="utf-8").split() == [f"{tmp_path}/after", f"{tmp_path}/ready"]


def test_with_the_outermost_process_all_end(boot: Boot, tmp_path: Path) -> None:
    """SIGKILL, as when a machine is lost; also what a program started in the background."""
    process = boot(programs=[program(tmp_path, "(setsid sleep 4711 &) ; echo; exec sleep 4712")])
    log = tmp_path / "shell.log"
    wait_until(lambda: log.is_file() and log.read_text(encoding="utf-8") != "", "it runs")

    def sleeping() -> list[int]:
        all_children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        return [child.pid for child in all_children if child.name() == "sleep"]

    wait_until(lambda: len(sleeping()) == 2, "both run")
    pids = sleeping()
    process.kill()
    process.wait()
    wait_until(lambda: not any(psutil.pid_exists(pid) for pid in pids), "both are gone")


def test_a_machine_that_cannot_be_set_up_ends_and_says_why(boot: Boot, tmp_path: Path) -> None:
    process = boot(mounts=[["mount", "--bind", "/nowhere", "/run"]])
    assert process.wait(30) == 1
    assert "mount --bind /nowhere /run: " in (tmp_path / "log").read_text(encoding="utf-8")
