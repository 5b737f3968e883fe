"""Options of the commands that use a cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from caloscale.connection import Connection

Context = Annotated[
    str | None,
    typer.Option("--context", help="Context of the kubeconfig; absent: the current one, in a pod its own cluster."),
]
Namespace = Annotated[
    str | None,
    typer.Option("--namespace", "-n", help="Namespace of the run; absent: that of the context, in a pod its own."),
]
RunName = Annotated[str, typer.Argument(help="Name of the run.")]


def reach(context: str | None, namespace: str | None) -> tuple[Connection, str]:
    """The connection and the namespace that the options mean; raises ClusterError."""
    from caloscale.connection import active_namespace, connect

    return connect(context), namespace or active_namespace(context)
