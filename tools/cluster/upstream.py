"""The upstream operators as host processes: with their own manifests, rights and webhooks."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from string import Template
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import yaml

from caloscale.ports import free_ports, is_free
from tools.cluster.certificates import Authority, KeyPair, encoded
from tools.cluster.daemons import Daemon, answers
from tools.cluster.errors import ClusterError
from tools.cluster.programs import MODULE, manifest

if TYPE_CHECKING:
    from tools.cluster.plane import ControlPlane

# A manifest's objects that only serve to run the operator as a pod.
_POD_OBJECTS = ("Deployment", "Service", "Secret")
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
    plane.daemons[name].wait()


def _apply(plane: ControlPlane, folder: Path, operator: Operator, objects: list[dict[str, Any]], webhook: int) -> Path:
    """Apply an operator's objects with webhooks at a port of this machine; returns the folder of their certificate."""
    host = f"{operator.service}.{operator.namespace}.svc"
    authority = Authority(folder / "k8s-webhook-server" / "serving-certs", operator.authority)
    pair = authority.issue("tls", host, hosts=[host, "127.0.0.1"])
    secret = webhook_secret(operator.secret, operator.namespace, authority, pair)
    plane.apply_with_kinds([*_with_webhooks_at(_without_pods(objects), webhook, authority), secret])
    return pair.certificate.parent


def _training_operator(plane: ControlPlane, folder: Path, operator: Operator) -> Daemon:
    """training-operator for TFJobs; MPIJobs are the mpi-operator's, the other kinds nobody's."""
    webhook, health = free_ports(2)
    _apply(plane, folder, operator, tfjobs_only(objects_of(operator.name)), webhook)
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
    plane.apply_with_kinds(_with_webhooks_at(_without_pods(objects_of(operator.name)), 0, None))
    environment = _environment(plane, folder, operator)
    command = [f"--kubeConfig={environment['KUBECONFIG']}", f"--monitoring-port={health}"]
    command += [f"--lock-namespace={operator.namespace}", "--kube-api-qps=200", "--kube-api-burst=400"]
    return plane.servers.daemon(
        operator.name, command, lambda: answers(f"http://127.0.0.1:{health}/metrics"), **environment
    )


_KUEUE_KINDS = ("workload", "clusterqueue", "cohort", "resourceflavor", "tfjob", "jobset", "trainjob", "mpijob")
"""Kinds whose webhooks Kueue serves with this configuration; its manifest has those of all frameworks."""


def _configured(plane: ControlPlane, folder: Path, operator: Operator) -> Daemon:
    """An operator with a file of settings: JobSet's controller, Kueue, Kubeflow Trainer (which needs JobSet's)."""
    webhook, health = free_ports(2)
    objects = kueue_objects() if operator.name == "kueue" else objects_of(operator.name)
    certificates = _apply(plane, folder, operator, objects, webhook)
    path = folder / "configuration.yaml"
    settings = Template((FOLDER / f"{operator.name}.yaml").read_text(encoding="utf-8"))
    path.write_text(settings.substitute(webhook=webhook, health=health, certificates=certificates), encoding="utf-8")
    environment = _environment(plane, folder, operator)
    return plane.servers.daemon(
        operator.name, [f"--config={path}"], lambda: answers(f"http://127.0.0.1:{health}/readyz"), **environment
    )


def objects_of(name: str) -> list[dict[str, Any]]:
    """The operator's own manifest."""
    documents = yaml.load_all(manifest(name).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return [each for each in documents if each]


def kueue_objects() -> list[dict[str, Any]]:
    """Kueue's objects, with the webhooks of the kinds in its configuration alone; without its API of positions."""
    objects = [each for each in objects_of("kueue") if each["kind"] != "APIService"]
    for each in objects:
        if "webhooks" in each:
            each["webhooks"] = [hook for hook in each["webhooks"] if hook["name"].split(".")[0][1:] in _KUEUE_KINDS]
    return objects


def tfjobs_only(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """training-operator's objects without the other kinds of jobs and their webhooks."""
    for each in objects:
        if "webhooks" in each:
            each["webhooks"] = [hook for hook in each["webhooks"] if "tfjob" in hook["name"]]
    return [
        each
        for each in objects
        if each["kind"] != "CustomResourceDefinition" or each["spec"]["names"]["kind"] == "TFJob"
    ]


def webhook_secret(name: str, namespace: str, authority: Authority, pair: KeyPair) -> dict[str, Any]:
    """The secret with a webhook's certificate; operators that make their own are content with one that is valid."""
    files = {"ca.crt": authority.certificate, "ca.key": authority.files.key}
    files |= {"tls.crt": pair.certificate, "tls.key": pair.key}
    data = {file: encoded(path) for file, path in files.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "data": data}


def _without_pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in objects if each["kind"] not in _POD_OBJECTS]


def _with_webhooks_at(objects: list[dict[str, Any]], port: int, authority: Authority | None) -> list[dict[str, Any]]:
    """Webhooks are reached as host processes instead of through a Service."""
    for each in objects:
        conversion = each.get("spec", {}).get("conversion", {}).get("webhook")
        for hook in [*each.get("webhooks", []), *([conversion] if conversion else [])]:
            assert authority is not None
            path = hook["clientConfig"]["service"]["path"]
            bundle = encoded(authority.certificate)
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
    return objects


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
