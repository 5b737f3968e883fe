"""The upstream operators as host processes: with their own manifests, rights and webhooks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import yaml

from caloscale.ports import free_ports, is_free
from tools.cluster.certificates import Authority, encoded
from tools.cluster.daemons import Daemon, answers
from tools.cluster.errors import ClusterError
from tools.cluster.programs import MODULE, manifest

if TYPE_CHECKING:
    from tools.cluster.plane import ControlPlane

# A manifest's objects that only serve to run the operator as a pod, or reach it there.
_POD_OBJECTS = ("Deployment", "Service", "Secret", "APIService")
# training-operator waits until something lies here, and reads its certificate from $TMPDIR.
_TRAINING_OPERATOR_CERTIFICATE = Path("/tmp/k8s-webhook-server/serving-certs/tls.crt")  # noqa: S108

MPI_PORT = 8080
"""The mpi-operator 0.7 listens there on all addresses; no flag changes it."""
FOLDER = MODULE / "operators"
"""Of the table of operators, and of the configurations of those that read one."""


@dataclass(frozen=True)
class Operator:
    """An operator as its manifest describes it."""

    name: str
    namespace: str
    deployment: str
    authority: str = ""
    """Name by which it knows its authority; empty: it has no webhooks."""
    service: str = ""
    secret: str = ""
    kinds: Collection[str] = ()
    """Kinds whose webhooks it serves here, where its manifest has those of others, too; empty: all."""


_TABLE = yaml.safe_load((FOLDER / "table.yaml").read_text(encoding="utf-8"))
OPERATORS = MappingProxyType({row["name"]: Operator(**row) for row in _TABLE})


def install(plane: ControlPlane, name: str) -> None:
    """Apply an operator's manifests and start it; does not wait until it is ready."""
    folder = plane.folder / name
    (folder / "k8s-webhook-server" / "serving-certs").mkdir(parents=True)
    start = {"training-operator": _training_operator, "mpi-operator": _mpi_operator}.get(name, _configured)
    plane.run(start(plane, folder, OPERATORS[name]), wait=False)


def ensure(plane: ControlPlane, name: str) -> None:
    """Install an operator unless it runs, and wait until it is ready."""
    if name not in plane.daemons:
        install(plane, name)
    elif name in plane.ended_programs():  # the API server was away for too long; a Deployment would start it again
        plane.restart(name)
    plane.daemons[name].wait()


def _apply(plane: ControlPlane, folder: Path, operator: Operator, objects: list[dict[str, Any]], webhook: int) -> Path:
    """Apply an operator's objects with webhooks at a port of this machine, in place of a Service; returns the folder of
    their certificate."""
    host = f"{operator.service}.{operator.namespace}.svc"
    authority = Authority(folder / "k8s-webhook-server" / "serving-certs", operator.authority)
    pair = authority.issue("tls", host, hosts=[host, "127.0.0.1"])
    for each in objects:
        conversion = each.get("spec", {}).get("conversion", {}).get("webhook")
        for hook in [*each.get("webhooks", []), *([conversion] if conversion else [])]:
            path = hook["clientConfig"]["service"]["path"]
            bundle = encoded(authority.certificate)
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{webhook}{path}", "caBundle": bundle}
    # Operators that make their own certificate are content with one that is valid.
    files = {"ca.crt": authority.certificate, "ca.key": authority.files.key}
    files |= {"tls.crt": pair.certificate, "tls.key": pair.key}
    metadata = {"name": operator.secret, "namespace": operator.namespace}
    data = {file: encoded(path) for file, path in files.items()}
    plane.apply_with_kinds([*objects, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data}])
    return pair.certificate.parent


def _training_operator(plane: ControlPlane, folder: Path, operator: Operator) -> Daemon:
    """training-operator for TFJobs; MPIJobs are the mpi-operator's, the other kinds nobody's."""
    webhook, health = free_ports(2)
    objects = objects_of(operator)
    kinds = [each for each in objects if each["kind"] == "CustomResourceDefinition"]
    others = [each for each in kinds if each["spec"]["names"]["kind"] != "TFJob"]
    _apply(plane, folder, operator, [each for each in objects if each not in others], webhook)
    command = ["--enable-scheme=tfjob", "--metrics-bind-address=0", f"--webhook-server-port={webhook}"]
    command += [f"--health-probe-bind-address=127.0.0.1:{health}", "--kube-api-qps=200", "--kube-api-burst=400"]
    command += ["--controller-threads=4"]

    def ready() -> bool:
        if not answers(f"http://127.0.0.1:{health}/readyz"):
            _TRAINING_OPERATOR_CERTIFICATE.parent.mkdir(parents=True, exist_ok=True)
            _TRAINING_OPERATOR_CERTIFICATE.touch()
            return False
        _remove_certificate()
        return True

    return plane.servers.daemon(operator.name, command, ready, **_environment(plane, folder, operator))


def _mpi_operator(plane: ControlPlane, folder: Path, operator: Operator) -> Daemon:
    """mpi-operator for MPIJobs (v2beta1). Raises ClusterError: its port is taken."""
    if not is_free(MPI_PORT, ""):
        problem = f"another program listens on port {MPI_PORT}, which the mpi-operator takes for its health check"
        raise ClusterError(problem, remedy=f"end it (ss -ltnp 'sport = :{MPI_PORT}' names it), or use another machine")
    (health,) = free_ports(1)
    plane.apply_with_kinds(objects_of(operator))
    environment = _environment(plane, folder, operator)
    command = [f"--kubeConfig={environment['KUBECONFIG']}", f"--monitoring-port={health}"]
    command += [f"--lock-namespace={operator.namespace}", "--kube-api-qps=200", "--kube-api-burst=400"]
    ready = partial(answers, f"http://127.0.0.1:{health}/metrics")
    return plane.servers.daemon(operator.name, command, ready, **environment)


def _configured(plane: ControlPlane, folder: Path, operator: Operator) -> Daemon:
    """An operator with a file of settings: JobSet's controller, Kueue, Kubeflow Trainer (which needs JobSet's)."""
    webhook, health = free_ports(2)
    certificates = _apply(plane, folder, operator, objects_of(operator), webhook)
    path = folder / "configuration.yaml"
    settings = Template((FOLDER / f"{operator.name}.yaml").read_text(encoding="utf-8"))
    path.write_text(settings.substitute(webhook=webhook, health=health, certificates=certificates), encoding="utf-8")
    ready = partial(answers, f"http://127.0.0.1:{health}/readyz")
    command = [f"--config={path}"]
    return plane.servers.daemon(operator.name, command, ready, **_environment(plane, folder, operator))


def objects_of(operator: Operator) -> list[dict[str, Any]]:
    """The operator's own manifest, without the objects of its pod and the webhooks that it does not serve here."""
    documents = yaml.load_all(manifest(operator.name).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    objects = [each for each in documents if each and each["kind"] not in _POD_OBJECTS]
    for each in objects:
        if operator.kinds and "webhooks" in each:
            each["webhooks"] = [hook for hook in each["webhooks"] if _kinds_of(hook) & set(operator.kinds)]
    return objects


def _kinds_of(webhook: dict[str, Any]) -> set[str]:
    """The kind in the name of a webhook, such as vtfjob.kb.io or validator.tfjob.kubeflow.org, and another part."""
    first, second, *_ = webhook["name"].split(".")
    return {first[1:], second}


def _environment(plane: ControlPlane, folder: Path, operator: Operator) -> dict[str, str]:
    # controller-runtime looks for its certificate below the folder for temporary files.
    return {
        "KUBECONFIG": str(plane.kubeconfig_of(operator.deployment, operator.namespace)),
        "TMPDIR": str(folder),
        "MY_POD_NAMESPACE": operator.namespace,
    }


def _remove_certificate() -> None:
    _TRAINING_OPERATOR_CERTIFICATE.unlink(missing_ok=True)
    for folder in _TRAINING_OPERATOR_CERTIFICATE.parents[:2]:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
