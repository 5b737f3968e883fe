"""An inverse problem on real nodes: ranks in the pods of an MPIJob, started over ssh, and what becomes of lost ones."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from caloscale.cluster import names
from tests.control_plane.operator.conftest import claim_with_volume
from tests.smoke.runs import BUCKET, COUNT, NAMESPACE, RealCluster, Runs, hardware_of
from tools.cluster.native.cluster import advertise
from tools.cluster.native.configuration import DEFAULT_POOLS, SHARED
from tools.cluster.pools import Pool
from tools.images import ImageError, archives

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

RANKS, EPOCHS, SAVED = 4, 1500, 100
KILL_A_RANK = """
import os, pathlib, signal
ranks = [each.parent.name for each in pathlib.Path("/proc").glob("[0-9]*/cmdline")
         if b"caloscale.sagips.rank\\0" in each.read_bytes() and b"mpi4py" in each.read_bytes()]
os.kill(int(ranks[-1]), signal.SIGKILL)
"""
"""In a worker's pod, which has no program for it."""


@pytest.fixture(scope="module")
def solver(cluster: RealCluster) -> Iterator[Runs]:
    """The solver's image in all nodes, a claim in the folder that they share, and two accelerators on each of two."""
    try:
        (archive,) = archives(["solver"]).values()
        folder = cluster.shared_folder
    except (ImageError, AttributeError) as error:
        pytest.skip(f"{error}; make smoke does it all")
    cluster.import_image(archive)
    place = folder / "solver"
    place.mkdir(mode=0o777)
    place.chmod(0o777)
    cluster.apply(claim_with_volume("solver", NAMESPACE, volume="solver", path=f"{SHARED}/solver"))
    (pool,) = (each for each in DEFAULT_POOLS if each.accelerator)
    _offer(cluster, replace(pool, per_node=RANKS // 2))
    yield Runs(cluster, BUCKET, "")
    _offer(cluster, pool)


def _offer(cluster: RealCluster, pool: Pool) -> None:
    for node in cluster.get("nodes")["items"]:
        if names.GKE_ACCELERATOR in node["metadata"]["labels"]:
            name = node["metadata"]["name"]
            cluster.kubectl("label", "node", name, "--overwrite", f"{COUNT}={pool.per_node}")
            advertise(cluster.client(), name, pool)


def test_ranks_on_two_nodes_solve_although_a_rank_and_the_launcher_are_lost(solver: Runs) -> None:
    name, cluster = "inverse", solver.cluster
    hardware = hardware_of(cluster.get("nodes")["items"])
    spec = {
        "solver": {"ranks": RANKS, "epochs": EPOCHS, "saveEvery": 20, "threads": 1},
        "hardware": {field: value for field, value in hardware.items() if field != "advertised"},
        "cluster": {"volumeClaim": "solver"},
        "recovery": {"backoff": "1s"},
    }
    metadata = {"name": name, "namespace": NAMESPACE}
    cluster.apply([{"apiVersion": names.API_VERSION, "kind": names.KIND, "metadata": metadata, "spec": spec}])
    solver.trains(name, SAVED)
    workers = [pod for pod in solver.pods(name) if "-worker-" in pod["metadata"]["name"]]
    assert len({pod["spec"]["nodeName"] for pod in workers}) == len(workers) == 2

    victim = ["exec", workers[1]["metadata"]["name"], "-n", NAMESPACE, "--"]
    cluster.kubectl(*victim, "/opt/caloscale/bin/python", "-c", KILL_A_RANK)
    status = solver.until(name, lambda s: len(s["attempts"]) == 2, "another attempt after a rank was killed")
    assert status["attempts"][0]["exitCode"] == 138 and "resumes from epoch" in status["attempts"][0]["message"]
    first = status["attempts"][1]["firstStep"]
    assert first >= SAVED

    solver.trains(name, first + SAVED)
    (launcher,) = (p["metadata"]["name"] for p in solver.pods(name) if "-2-launcher-" in p["metadata"]["name"])
    cluster.kubectl("delete", "pod", launcher, "-n", NAMESPACE)
    status = solver.until(name, lambda s: len(s["attempts"]) == 3, "another attempt after the launcher was deleted")
    assert status["attempts"][1]["reason"] == "WorkerLost"

    status = solver.ends(name)
    assert status["progress"]["step"] == EPOCHS and status["restarts"] == 2 and status["layout"] == "2x2"
    folder = cluster.shared_folder / "solver" / "runs" / name
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert (summary["ranks"], summary["epochs"], summary["groups"]) == (RANKS, EPOCHS, 2)  # the groups are the nodes
    assert len(summary["residuals"]["mean"]) == 6
    last = folder / "checkpoints" / f"epoch-{EPOCHS:08d}"
    assert {path.name for path in last.iterdir()} == {f"rank-{rank:05d}.npz" for rank in range(RANKS)}
    assert (folder / "report.html").stat().st_size > 10_000
    log = cluster.kubectl("get", "pods", "-n", NAMESPACE, "-l", f"{names.RUN_LABEL}={name}", "--output=name")
    assert "launcher" in log  # its log stays to be read; the workers have gone
