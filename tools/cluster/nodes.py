"""``python -m tools.cluster nodes``: a cluster of real nodes for people who develop."""

import time
from pathlib import Path

import typer

from tools.cluster.build import build
from tools.cluster.errors import ClusterError
from tools.cluster.native import NativeCluster, requirements, running_folder
from tools.cluster.native.plan import abandoned, programs_of, remove_cluster, remove_orphans
from tools.cluster.programs import is_built

app = typer.Typer(add_completion=False, no_args_is_help=True, help="A cluster of real nodes on this machine.")


@app.command()
def up() -> None:
    """Start a cluster of three nodes and leave it running."""
    if not is_built(nodes=True):
        requirements.check(programs=False)
        build(nodes=True)
    started = time.monotonic()
    made = NativeCluster(running_folder(), outlives_us=True)
    made.start()
    print(f"up in {time.monotonic() - started:.0f} s: {', '.join(made.nodes)}; context {made.context}")
    print("  " + ", ".join(f"{what} {seconds:.1f} s" for what, seconds in made.seconds.items()))
    print(f"export KUBECONFIG={made.kubeconfig}")


@app.command()
def down() -> None:
    """End it, and remove what clusters of killed tests left; nothing stays."""
    ended = remove_cluster(running_folder())
    for folder in abandoned(running_folder().parent):
        remove_cluster(folder)
        print(f"removed {folder}")
    for bridge in remove_orphans():
        print(f"removed {bridge}")
    print(f"ended: {', '.join(ended)}" if ended else "nothing was running")


@app.command()
def status() -> None:
    """Print what is missing, what runs, and how the nodes are."""
    try:
        requirements.check()
    except ClusterError as error:
        print(error)
    if not programs_of(running_folder()):
        print("no cluster of real nodes runs: make cluster-up")
        return
    found = NativeCluster.attach()
    print(found.kubectl("get", "nodes", "--label-columns=cloud.google.com/gke-nodepool"), end="")
    pods = found.kubectl("get", "pods", "--all-namespaces", "--output=wide")
    print(f"\n{pods}\nexport KUBECONFIG={found.kubeconfig}")


@app.command()
def ready() -> None:
    """Exit code 0 when a cluster can be started here; else 1, with what is missing."""
    try:
        requirements.check()
    except ClusterError as error:
        print(error)
        raise typer.Exit(1) from error


@app.command("import")
def import_images(archives: list[Path]) -> None:
    """Put images from archives into all nodes."""
    found = NativeCluster.attach()
    for archive in archives:
        started = time.monotonic()
        names = found.import_image(archive)
        print(f"{archive.name}: {', '.join(names)} in {time.monotonic() - started:.1f} s")
