"""``python -m tools.cluster nodes``: a cluster of real nodes for people who develop, by namespaces or by kind."""

import os
import platform
import shutil
import time
from pathlib import Path
from typing import Annotated

import typer

from caloscale.errors import InputError
from tools.cluster.build import build
from tools.cluster.errors import ClusterError
from tools.cluster.kind import VERSION, KindCluster, engine
from tools.cluster.native import NativeCluster, requirements, running_folder
from tools.cluster.native.plan import abandoned, programs_of, read_plan, remove_cluster, remove_orphans
from tools.cluster.programs import is_built
from tools.cluster.real import RealCluster

app = typer.Typer(add_completion=False, no_args_is_help=True, help="A cluster of real nodes on this machine.")
KINDS = ("native", "kind")
Which = Annotated[
    str, typer.Option("--cluster", help="native (root, Linux) or kind (Docker, Podman); empty: what this machine has.")
]


def choose(wanted: str = "") -> str:
    """native or kind: what was asked for; else what runs, kind where it is installed, native for root on Linux."""
    if wanted:
        if wanted not in KINDS:
            raise InputError("is no kind of cluster", field="CLUSTER", value=wanted, remedy="CLUSTER=native or kind")
        return wanted
    if read_plan(running_folder()) is not None:
        return "native"
    if engine() is not None and shutil.which("kind") is not None:
        return "kind"
    if platform.system() == "Linux" and os.geteuid() == 0:
        return "native"
    problem = "no cluster can run here: kind with Docker or Podman is not installed, and this is not root on Linux"
    remedy = f"go install sigs.k8s.io/kind@{VERSION} beside an engine, or sudo make cluster-up CLUSTER=native"
    raise ClusterError(problem, remedy=remedy)


def development_cluster(wanted: str = "") -> RealCluster:
    """The cluster that `make cluster-up` started; raises ClusterError when none runs."""
    if choose(wanted) == "native":
        return NativeCluster.attach()
    cluster = KindCluster()
    if not cluster.exists():
        raise ClusterError("no kind cluster runs", remedy="make cluster-up CLUSTER=kind")
    return cluster


@app.command()
def up(cluster: Which = "") -> None:
    """Start a cluster of three nodes and leave it running."""
    chosen = choose(cluster)
    if chosen == "native" and not is_built(nodes=True):
        requirements.check(programs=False)
        build(nodes=True)
    started = time.monotonic()
    made: RealCluster = NativeCluster(running_folder(), outlives_us=True) if chosen == "native" else KindCluster()
    made.start()
    print(f"up in {time.monotonic() - started:.0f} s: {', '.join(made.nodes)}; context {made.context}")
    if isinstance(made, NativeCluster):
        print("  " + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in made.seconds.items()))
    print(f"export KUBECONFIG={made.kubeconfig}")


@app.command()
def down(cluster: Which = "") -> None:
    """End it, and remove what clusters of killed tests left; nothing stays."""
    if choose(cluster) == "kind":
        KindCluster().stop()
        return
    ended = remove_cluster(running_folder())
    for folder in abandoned(running_folder().parent):
        remove_cluster(folder)
        print(f"removed {folder}")
    for bridge in remove_orphans():
        print(f"removed {bridge}")
    print(f"ended: {', '.join(ended)}" if ended else "nothing was running")


@app.command()
def status(cluster: Which = "") -> None:
    """Print what is missing, what runs, and how the nodes are."""
    if choose(cluster) == "native":
        try:
            requirements.check()
        except ClusterError as error:
            print(error)
        if not programs_of(running_folder()):
            print("no cluster of real nodes runs: make cluster-up")
            return
    found = development_cluster(cluster)
    print(found.kubectl("get", "nodes", "--label-columns=cloud.google.com/gke-nodepool"), end="")
    pods = found.kubectl("get", "pods", "--all-namespaces", "--output=wide")
    print(f"\n{pods}\nexport KUBECONFIG={found.kubeconfig}")


@app.command()
def ready(cluster: Which = "") -> None:
    """Exit code 0 when a cluster can be started here; else 1, with what is missing."""
    try:
        if choose(cluster) == "native":
            requirements.check()
    except ClusterError as error:
        print(error)
        raise typer.Exit(1) from error


@app.command("import")
def import_images(archives: list[Path], cluster: Which = "") -> None:
    """Put images from archives into all nodes."""
    found = development_cluster(cluster)
    for archive in archives:
        started = time.monotonic()
        names = found.import_image(archive)
        print(f"{archive.name}: {', '.join(names)} in {time.monotonic() - started:.1f} s")
