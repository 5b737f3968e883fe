"""Two operators, of which the leading one is stopped and comes back."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.control_plane.operator.conftest import Runs
from tests.control_plane.operator.process import SYSTEM, OperatorProcess
from tools.cluster import ControlPlane

Add = Callable[..., list[str]]


@pytest.mark.integration
@pytest.mark.parametrize("times", [1, pytest.param(20, marks=[pytest.mark.long, pytest.mark.timeout(3600)])])
def test_a_stopped_leader_is_replaced_and_ends_when_it_comes_back(
    times: int, runs: Runs, add_nodes: Add, operator: OperatorProcess, control_plane: ControlPlane, tmp_path: Path
) -> None:
    """A run is made while its leader is stopped; the next one launches it, and the first one comes back to end."""
    add_nodes(pool="v100", count=2 * times)
    runs.fake_pods(None)
    leader = operator
    for number in range(times):
        (tmp_path / str(number)).mkdir()
        standby = OperatorProcess(control_plane, tmp_path / str(number), POD_NAME=f"standby-{number}")
        standby.start(wait=False)
        control_plane.wait_until(
            lambda standby=standby: "another operator is active" in standby.log.read_text(), "it waits"
        )
        leader.signal(signal.SIGSTOP)
        try:
            runs.create(f"r{number}")
            runs.phase(f"r{number}", "Running")
        finally:
            leader.signal(signal.SIGCONT)
        assert leader.wait() == 1
        lease = runs.server.get("Lease", SYSTEM, "caloscale-operator")
        assert lease is not None and lease["spec"]["holderIdentity"] == f"standby-{number}"
        leader = standby
    waiting = OperatorProcess(control_plane, tmp_path, POD_NAME="waiting")
    waiting.start(wait=False)
    control_plane.wait_until(lambda: "another operator is active" in waiting.log.read_text(), "it waits")
    assert waiting.stop() == 0 and leader.stop() == 0
    operator.start()
    for number in range(times):
        assert len(runs.status(f"r{number}")["attempts"]) == 1
    jobs = runs.plane.get("tfjobs", "-n", runs.namespace)["items"]
    assert sorted(job["metadata"]["name"] for job in jobs) == sorted(f"r{number}-1" for number in range(times))
