"""``python -m tools.cluster``: build the programs of a control plane, start one, end it, look at it."""

import shutil
import signal
import time
from pathlib import Path
from typing import Annotated

import psutil
import typer

from tools.cluster.build import build as build_programs
from tools.cluster.errors import ClusterError, run_app
from tools.cluster.kubeflow.server import UI
from tools.cluster.kubeflow.server import kubeflow as run_kubeflow
from tools.cluster.kubeflow.sources import build as build_kubeflow
from tools.cluster.machines import add_pool
from tools.cluster.native.plan import programs_of, remove_cluster
from tools.cluster.nodes import app as nodes_app
from tools.cluster.plane import ControlPlane
from tools.cluster.pools import Pool
from tools.cluster.programs import CONTROL_PLANE, NODE, folder, is_built
from tools.cluster.servers import CONTEXT, Settings

app = typer.Typer(add_completion=False, no_args_is_help=True, help="A Kubernetes control plane on this machine.")
app.add_typer(nodes_app, name="nodes")


def running_folder() -> Path:
    """Where the control plane lives that `up` starts: one for each user."""
    return folder().parent / "up"


@app.command()
def build(
    nodes: Annotated[bool, typer.Option(help="Also what real nodes need (kubelet, ...).")] = False,
    kueue: Annotated[bool, typer.Option(help="Also Kueue.")] = False,
    trainer: Annotated[bool, typer.Option(help="Also Kubeflow Trainer.")] = False,
) -> None:
    """Build the programs once into the cache (up to half an hour on two cores); an interrupted build resumes."""
    build_programs(nodes=nodes, additions=[name for name, wanted in (("kueue", kueue), ("trainer", trainer)) if wanted])


@app.command()
def built() -> None:
    """Exit code 0 when a control plane is built, 1 otherwise."""
    raise typer.Exit(0 if is_built() else 1)


@app.command()
def up(
    nodes: Annotated[int, typer.Option(min=0, help="Fake spot nodes with 8 V100 each.")] = 4,
    mpi: Annotated[bool, typer.Option(help="Also the mpi-operator.")] = False,
) -> None:
    """Start a control plane with fake nodes and leave it running."""
    if programs_of(running_folder()):
        raise ClusterError("a control plane is running already", remedy="python -m tools.cluster status, or down")
    shutil.rmtree(running_folder(), ignore_errors=True)
    operators = ("training-operator", "jobset", *(("mpi-operator",) if mpi else ()))
    plane = ControlPlane(running_folder(), operators=operators, settings=Settings(outlives_us=True))
    started = time.monotonic()
    plane.start()
    # As caloscale node-pools names them, and one machine for what is no run.
    for pool in (Pool("system", 1, accelerator=""), Pool("v100-8-spot", nodes, spot=True)):
        add_pool(plane.client(), pool)
    seconds, memory = time.monotonic() - started, sum(plane.memory_mib.values())
    print(f"up in {seconds:.1f} s with {memory:.0f} MiB; context {CONTEXT}\nexport KUBECONFIG={plane.kubeconfig}")


@app.command()
def down() -> None:
    """End the running control plane and remove all that it wrote."""
    ended = remove_cluster(running_folder())
    print(f"ended: {', '.join(ended)}" if ended else "nothing was running")


@app.command()
def status() -> None:
    """Print what is built and what runs."""
    for title, names, nodes in (("control plane", CONTROL_PLANE, False), ("real nodes", NODE, True)):
        state = "built" if is_built(nodes=nodes) else "not built"
        print(f"{title}: {state} ({', '.join(names)})")
    print(f"folder: {folder()}")
    running = programs_of(running_folder())
    for pid, name in running.items():
        memory = psutil.Process(pid).memory_info().rss / 2**20
        print(f"running: {name} (process {pid}, {memory:.0f} MiB)")
    if running:
        print(f"export KUBECONFIG={running_folder() / 'kubeconfig'}")


@app.command()
def kubeflow(
    clone: Annotated[str, typer.Option(help="A local clone of kubeflow/pipelines, in place of GitHub.")] = "",
) -> None:
    """Kubeflow Pipelines with its UI, until Ctrl-C; the first call builds it (an hour on two cores). Linux, root."""
    build_kubeflow(clone)
    with run_kubeflow():
        print(f"UI and API: {UI}\nCtrl-C ends it; nothing stays", flush=True)
        signal.pause()


if __name__ == "__main__":
    run_app(app)
