"""What a cluster leaves on the machine: nothing. The last file of this folder, for it ends the cluster."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.control_plane.native.traces import machine_traces, own_namespaces, processes_below, traces
from tools.cluster.errors import ClusterError
from tools.cluster.native import NativeCluster
from tools.cluster.pools import Pool

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_a_node_that_there_is_not_is_refused(cluster: NativeCluster) -> None:
    with pytest.raises(ClusterError, match="no node nobody\n  remedy: one of: system-0000"):
        cluster.lose_node("nobody")


def test_nothing_stays(cluster: NativeCluster, before: dict[str, set[str]]) -> None:
    """No process, namespace, mount, link, route, cgroup, folder, firewall rule."""
    processes = processes_below(os.getpid())
    had = (cluster.folder, cluster.network.bridge, processes, own_namespaces(processes))
    wanted = {"processes", "namespaces", "links", "routes", "cgroups", "folders"}
    assert set(traces(*had)) == wanted  # and mounts, which are the nodes' own
    assert len(had[3]) >= 5 * len(cluster.nodes)
    started = time.monotonic()
    cluster.stop()
    print(f"ended in {time.monotonic() - started:.1f} s")
    assert settled(*had) == {}
    assert machine_traces() == before


def settled(folder: Path, bridge: str, processes: set[int], namespaces: set[str]) -> dict[str, set[str]]:
    """What is left after a while: the kernel clears a network of its links when it likes."""
    end = time.monotonic() + 20
    while (left := traces(folder, bridge, processes, namespaces)) and time.monotonic() < end:
        time.sleep(0.2)
    return left


def test_a_killed_owner_leaves_no_process_and_the_next_cluster_removes_the_rest(before: dict[str, set[str]]) -> None:
    script = """
        import time
        from tools.cluster.native import NativeCluster
        from tools.cluster.pools import Pool
        cluster = NativeCluster(pools=[Pool("only", 1, accelerator="")], operators=())
        cluster.start()
        print(cluster.folder, cluster.network.bridge, flush=True)
        time.sleep(600)
        """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]) as owner:
        folder, bridge = owner.stdout.readline().split()
        processes = processes_below(owner.pid)
        had = (Path(folder), bridge, processes, own_namespaces(processes))
        os.kill(owner.pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while "processes" in traces(*had) and time.monotonic() < end:
        time.sleep(0.1)
    assert "processes" not in traces(*had)
    assert {"cgroups", "folders", "links"} <= set(traces(*had))
    with NativeCluster(pools=[Pool("other", 1, accelerator="")], operators=()) as following:
        assert (following.network.bridge, following.nodes) == (bridge, ["other-0000"])
    assert settled(*had) == {}
    assert machine_traces() == before
