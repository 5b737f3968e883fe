"""``python -m tools.cluster``: build the programs of a cluster, and run one until Ctrl-C."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

from tools.cluster.access import Access
from tools.cluster.build import build as build_programs
from tools.cluster.errors import run_app
from tools.cluster.kubeflow.server import kubeflow as run_kubeflow
from tools.cluster.kubeflow.sources import build as build_kubeflow
from tools.cluster.native import NativeCluster, requirements
from tools.cluster.plane import ControlPlane
from tools.cluster.pools import Pool, add_pool
from tools.cluster.programs import is_built

app = typer.Typer(add_completion=False, no_args_is_help=True, help="A Kubernetes control plane on this machine.")


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


@contextmanager
def running(cluster: Access) -> Iterator[None]:
    """A cluster that is started, and once the block has ended, too, runs until Ctrl-C or SIGTERM; nothing stays."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    started = time.monotonic()
    with cluster, suppress(KeyboardInterrupt):
        yield
        print(f"up in {time.monotonic() - started:.0f} s; Ctrl-C ends it, and nothing stays")
        print(f"export KUBECONFIG={cluster.kubeconfig}", flush=True)
        signal.pause()


@app.command()
def up(nodes: Annotated[int, typer.Option(min=0, help="Fake spot nodes with 8 V100 each.")] = 4) -> None:
    """A control plane with fake nodes, until Ctrl-C."""
    plane = ControlPlane()
    with running(plane):
        # As caloscale node-pools names them, and one machine for what is no run.
        for pool in (Pool("system", 1, accelerator=""), Pool("v100-8-spot", nodes, spot=True)):
            add_pool(plane.client(), pool)


@app.command()
def nodes(
    images: Annotated[list[Path] | None, typer.Argument(help="Archives whose images the nodes get.")] = None,
) -> None:
    """A cluster of three real nodes, until Ctrl-C. Linux, root."""
    if not is_built(nodes=True):
        requirements.check(programs=False)
        build_programs(nodes=True)
    cluster = NativeCluster()
    with running(cluster):
        for archive in images or ():
            print(f"{archive.name}: {', '.join(cluster.import_image(archive))}")


@app.command()
def ready() -> None:
    """Exit code 0 when `nodes` can start a cluster here; else an error with what is missing."""
    requirements.check()


@app.command()
def kubeflow(
    clone: Annotated[str, typer.Option(help="A local clone of kubeflow/pipelines, in place of GitHub.")] = "",
) -> None:
    """Kubeflow Pipelines with its UI, until Ctrl-C; the first call builds it (an hour on two cores). Linux, root."""
    build_kubeflow(clone)
    with run_kubeflow() as server, suppress(KeyboardInterrupt):
        print(f"UI and API: {server.url}; Ctrl-C ends it, and nothing stays", flush=True)
        signal.pause()


if __name__ == "__main__":
    run_app(app)
