"""The programs of a cluster: which there are, of which version, and where they lie once built."""

import functools
import hashlib
import re
from collections.abc import Collection
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from caloscale.storage.cache import cache_root
from tools.cluster.errors import ClusterError

MODULE = Path(__file__).resolve().parent
KUBERNETES = "k8s.io/kubernetes"

# Program: its main package. In this order they are built: what a control plane needs comes first.
CONTROL_PLANE = MappingProxyType(
    {
        "etcd": "go.etcd.io/etcd/server/v3",
        "kubectl": f"{KUBERNETES}/cmd/kubectl",
        "kube-apiserver": f"{KUBERNETES}/cmd/kube-apiserver",
        "kube-controller-manager": f"{KUBERNETES}/cmd/kube-controller-manager",
        "kube-scheduler": f"{KUBERNETES}/cmd/kube-scheduler",
        "kwok": "sigs.k8s.io/kwok/cmd/kwok",
        "training-operator": "github.com/kubeflow/training-operator/cmd/training-operator.v1",
        "jobset": "sigs.k8s.io/jobset",
        "mpi-operator": "github.com/kubeflow/mpi-operator/cmd/mpi-operator",
        "operator-verify": "github.com/operator-framework/api/cmd/operator-verify",
    }
)
# Real nodes need these on top.
NODE = MappingProxyType(
    {
        "kubelet": f"{KUBERNETES}/cmd/kubelet",
        "kube-proxy": f"{KUBERNETES}/cmd/kube-proxy",
        "coredns": "./cmd/coredns",
        "pause": "./cmd/pause",
    }
)
# Manifests that are rendered from the modules' own kustomize bases: name -> (module, folder in it).
UPSTREAM = MappingProxyType(
    {
        "training-operator": ("github.com/kubeflow/training-operator", "manifests/overlays/standalone"),
        "jobset": ("sigs.k8s.io/jobset", "config/default"),
        "mpi-operator": ("github.com/kubeflow/mpi-operator", "manifests/overlays/standalone"),
    }
)


class Addition(NamedTuple):
    """An operator with a Go module of its own: it needs newer libraries of Kubernetes than the other programs."""

    program: str
    """Its main package."""
    manifest: tuple[str, str]
    """Its kustomize base: module, folder in it."""


ADDITIONS = MappingProxyType(
    {
        "kueue": Addition("sigs.k8s.io/kueue/cmd/kueue", ("sigs.k8s.io/kueue", "config/default")),
        "trainer": Addition(
            "github.com/kubeflow/trainer/v2/cmd/trainer-controller-manager",
            ("github.com/kubeflow/trainer/v2", "manifests/overlays/manager"),
        ),
    }
)
"""By name, which is that of the folder of its module, of its program and of its manifest."""


@functools.cache
def version(module: str, folder: Path = MODULE) -> str:
    """The version of a module that a go.mod pins, such as ``v1.34.4``; raises ClusterError for one that it does not."""
    text = (folder / "go.mod").read_text(encoding="utf-8")
    found = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", text, re.MULTILINE)
    if found is None:
        raise ClusterError(f"{folder / 'go.mod'} does not name {module}", remedy="add it with go get -tool")
    return found.group(1)


def folder(module: Path = MODULE) -> Path:
    """Where a module's programs lie: in the user's cache (or $CALOSCALE_CACHE), by the hash of what is pinned."""
    pinned = b"".join((module / name).read_bytes() for name in ("go.mod", "go.sum"))
    return cache_root() / module.name / hashlib.sha256(pinned).hexdigest()[:16]


def program(name: str) -> Path:
    """A built program; raises ClusterError with how to get it."""
    path = folder(_module(name)) / "bin" / name
    if not path.is_file():
        option = "--nodes " if name in NODE else f"--{name} " if name in ADDITIONS else ""
        remedy = f"python -m tools.cluster build {option}(once, up to half an hour)"
        raise ClusterError(f"{name} is not built", remedy=remedy)
    return path


def manifest(name: str) -> Path:
    """The rendered manifest of an upstream operator; raises ClusterError with how to get it."""
    path = folder(_module(name)) / "manifests" / f"{name}.yaml"
    if not path.is_file():
        raise ClusterError(f"the manifest of {name} is not rendered", remedy="python -m tools.cluster build")
    return path


def is_built(*, nodes: bool = False, additions: Collection[str] = ()) -> bool:
    """Whether all programs and manifests of a control plane (and of real nodes, and of ADDITIONS) are there."""
    wanted = [folder() / "bin" / name for name in (*CONTROL_PLANE, *(NODE if nodes else ()))]
    wanted += [folder() / "manifests" / f"{name}.yaml" for name in UPSTREAM]
    for name in additions:
        wanted += [folder(_module(name)) / "bin" / name, folder(_module(name)) / "manifests" / f"{name}.yaml"]
    return all(path.is_file() for path in wanted)


def _module(name: str) -> Path:
    return MODULE / name if name in ADDITIONS else MODULE
