"""What a cluster leaves on the machine: nothing. The last file of this folder, for it ends the cluster."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from tests.control_plane.native.pods import SYSTEM
from tests.control_plane.native.traces import bridge_of, machine_traces, own_namespaces, own_processes, traces
from tools.cluster.errors import ClusterError
from tools.cluster.native import NativeCluster
from tools.cluster.native.plan import programs_of, remove_cluster

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def test_another_process_can_use_a_running_cluster(cluster: NativeCluster) -> None:
    found = NativeCluster.attach(cluster.folder)
    assert found.nodes == found.running_nodes() == cluster.nodes
    assert found.kubectl("get", "nodes", "--output=name") == cluster.kubectl("get", "nodes", "--output=name")
    assert found.inside(SYSTEM, "hostname") == f"{SYSTEM}\n"
    with pytest.raises(ClusterError, match="no node nobody\n  remedy: one of: system-0000"):
        found.lose_node("nobody")


def test_nothing_stays(cluster: NativeCluster, before: dict[str, set[str]]) -> None:
    """No process, namespace, mount, link, route, cgroup, folder, firewall rule."""
    print("\n" + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in cluster.seconds.items()))
    processes = own_processes(cluster.folder)
    had = (cluster.folder, bridge_of(cluster.folder), processes, own_namespaces(processes))
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


def test_a_killed_owner_leaves_no_process_and_the_rest_can_be_removed(
    before: dict[str, set[str]], tmp_path: Path
) -> None:
    script = """
        import sys, time
        from pathlib import Path
        from tools.cluster.native import NativeCluster
        from tools.cluster.pools import Pool
        cluster = NativeCluster(Path(sys.argv[1]), pools=[Pool("only", 1, accelerator="")], operators=())
        cluster.start()
        print("up", flush=True)
        time.sleep(600)
        """
    folder, root = tmp_path / "cluster", Path(__file__).parents[3]
    command = [sys.executable, "-c", textwrap.dedent(script), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "up\n"
        assert len(programs_of(folder)) == 6  # four of the control plane, CoreDNS, the node
        processes = own_processes(folder)
        had = (folder, bridge_of(folder), processes, own_namespaces(processes))
        os.kill(owner.pid, signal.SIGKILL)
    end = time.monotonic() + 20
    while "processes" in traces(*had) and time.monotonic() < end:
        time.sleep(0.1)
    assert "processes" not in traces(*had)
    assert "cgroups" in traces(*had)
    remove_cluster(folder)
    assert settled(*had) == {}
    assert machine_traces() == before
