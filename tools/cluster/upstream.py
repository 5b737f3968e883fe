"""The upstream operators as host processes: with their own manifests, rights and webhooks."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import yaml

from caloscale.ports import free_ports, is_free
from tools.cluster.certificates import Authority, KeyPair
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


def install(plane: ControlPlane, name: str) -> None:
    """Apply an operator's manifests and start it; does not wait until it is ready."""
    folder = plane.folder / name
    (folder / "k8s-webhook-server" / "serving-certs").mkdir(parents=True)
    daemon = OPERATORS[name](plane, folder)
    plane.run(daemon, wait=False)


def ensure(plane: ControlPlane, name: str) -> None:
    """Install an operator unless it runs, and wait until it is ready."""
    if name not in plane.daemons:
        install(plane, name)
    plane.daemons[name].wait()


def _training_operator(plane: ControlPlane, folder: Path) -> Daemon:
    """training-operator for TFJobs; MPIJobs are the mpi-operator's, the other kinds nobody's."""
    webhook, health = free_ports(2)
    authority, pair = _webhook_certificate(folder, "training-operator-ca", "training-operator.kubeflow.svc")
    wanted = tfjobs_only(_without_pods(objects_of("training-operator")))
    secret = webhook_secret("training-operator-webhook-cert", "kubeflow", authority, pair)
    plane.apply_with_kinds([*_with_webhooks_at(wanted, webhook, authority), secret])
    command = ["--enable-scheme=tfjob", "--metrics-bind-address=0", f"--webhook-server-port={webhook}"]
    command += [f"--health-probe-bind-address=127.0.0.1:{health}", "--kube-api-qps=200", "--kube-api-burst=400"]
    command += ["--controller-threads=4"]

    def ready() -> bool:
        if not answers(health, "/readyz"):
            _TRAINING_OPERATOR_CERTIFICATE.parent.mkdir(parents=True, exist_ok=True)
            _TRAINING_OPERATOR_CERTIFICATE.touch()
            return False
        _remove_certificate()
        return True

    environment = _environment(plane, folder, "training-operator", "kubeflow")
    return plane.servers.daemon("training-operator", command, ready, **environment)


def _jobset(plane: ControlPlane, folder: Path) -> Daemon:
    """JobSet's controller."""
    webhook, health = free_ports(2)
    authority, pair = _webhook_certificate(folder, "jobset-ca", "jobset-webhook-service.jobset-system.svc")
    plane.apply_with_kinds(_with_webhooks_at(_without_pods(objects_of("jobset")), webhook, authority))
    configuration = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"port": webhook, "host": "127.0.0.1", "certDir": str(pair.certificate.parent)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
    }
    path = folder / "configuration.yaml"
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    environment = _environment(plane, folder, "jobset-controller-manager", "jobset-system")
    return plane.servers.daemon("jobset", [f"--config={path}"], lambda: answers(health, "/readyz"), **environment)


def _mpi_operator(plane: ControlPlane, folder: Path) -> Daemon:
    """mpi-operator for MPIJobs (v2beta1). Raises ClusterError: its port is taken."""
    if not is_free(MPI_PORT, ""):
        problem = f"another program listens on port {MPI_PORT}, which the mpi-operator takes for its health check"
        raise ClusterError(problem, remedy=f"end it (ss -ltnp 'sport = :{MPI_PORT}' names it), or use another machine")
    (health,) = free_ports(1)
    plane.apply_with_kinds(_with_webhooks_at(_without_pods(objects_of("mpi-operator")), 0, None))
    environment = _environment(plane, folder, "mpi-operator", "mpi-operator")
    command = [
        f"--kubeConfig={environment['KUBECONFIG']}",
        f"--monitoring-port={health}",
        "--lock-namespace=mpi-operator",
    ]
    command += ["--kube-api-qps=200", "--kube-api-burst=400"]
    return plane.servers.daemon("mpi-operator", command, lambda: answers(health, "/metrics"), **environment)


_KUEUE_KINDS = ("workload", "clusterqueue", "cohort", "resourceflavor", "tfjob", "jobset", "trainjob", "mpijob")
"""Kinds whose webhooks Kueue serves with this configuration; its manifest has those of all frameworks."""


def _kueue(plane: ControlPlane, folder: Path) -> Daemon:
    """Kueue for jobs with a queue's label."""
    webhook, health = free_ports(2)
    authority, pair = _webhook_certificate(folder, "kueue-ca", "kueue-webhook-service.kueue-system.svc")
    objects = _without_pods(kueue_objects())
    secret = webhook_secret("kueue-webhook-server-cert", "kueue-system", authority, pair)
    plane.apply_with_kinds([*_with_webhooks_at(objects, webhook, authority), secret])
    configuration = {
        **kueue_configuration(),
        "webhook": {"port": webhook, "host": "127.0.0.1", "certDir": str(pair.certificate.parent)},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
    }
    path = folder / "configuration.yaml"
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    environment = _environment(plane, folder, "kueue-controller-manager", "kueue-system")
    return plane.servers.daemon("kueue", [f"--config={path}"], lambda: answers(health, "/readyz"), **environment)


def _trainer(plane: ControlPlane, folder: Path) -> Daemon:
    """Kubeflow Trainer for TrainJobs, which needs JobSet's controller.

    Without the gate TrainJobStatus: its server takes the cluster's issuer and its certificate from files of a pod.
    """
    webhook, health = free_ports(2)
    authority, pair = _webhook_certificate(folder, "trainer-ca", f"{_TRAINER}.{_TRAINER_NAMESPACE}.svc")
    secret = webhook_secret("kubeflow-trainer-webhook-cert", _TRAINER_NAMESPACE, authority, pair)
    plane.apply_with_kinds([*_with_webhooks_at(_without_pods(objects_of("trainer")), webhook, authority), secret])
    configuration = {
        "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "certManagement": {
            "enable": False,
            "webhookServiceName": _TRAINER,
            "webhookSecretName": "kubeflow-trainer-webhook-cert",
        },
        "webhook": {"port": webhook, "host": "127.0.0.1"},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
        "clientConnection": {"qps": 200, "burst": 400},
    }
    path = folder / "configuration.yaml"
    path.write_text(yaml.safe_dump(configuration), encoding="utf-8")
    environment = _environment(plane, folder, _TRAINER, _TRAINER_NAMESPACE)
    return plane.servers.daemon("trainer", [f"--config={path}"], lambda: answers(health, "/readyz"), **environment)


_TRAINER, _TRAINER_NAMESPACE = "kubeflow-trainer-controller-manager", "kubeflow-system"

OPERATORS: MappingProxyType[str, Callable[[ControlPlane, Path], Daemon]] = MappingProxyType(
    {
        "training-operator": _training_operator,
        "jobset": _jobset,
        "mpi-operator": _mpi_operator,
        "kueue": _kueue,
        "trainer": _trainer,
    }
)


def objects_of(name: str) -> list[dict[str, Any]]:
    """The operator's own manifest."""
    documents = yaml.load_all(manifest(name).read_text(encoding="utf-8"), Loader=yaml.CSafeLoader)
    return [each for each in documents if each]


def kueue_configuration() -> dict[str, Any]:
    """Kueue's configuration, without ports."""
    return dict(yaml.safe_load((MODULE / "kueue" / "configuration.yaml").read_text(encoding="utf-8")))


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
    data = {file: base64.b64encode(path.read_bytes()).decode() for file, path in files.items()}
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
            bundle = base64.b64encode(authority.certificate.read_bytes()).decode()
            hook["clientConfig"] = {"url": f"https://127.0.0.1:{port}{path}", "caBundle": bundle}
    return objects


def _webhook_certificate(folder: Path, authority: str, host: str) -> tuple[Authority, KeyPair]:
    made = Authority(folder / "k8s-webhook-server" / "serving-certs", authority)
    return made, made.issue("tls", host, hosts=[host, "127.0.0.1"])


def _environment(plane: ControlPlane, folder: Path, service_account: str, namespace: str) -> dict[str, str]:
    # controller-runtime looks for its certificate below the folder for temporary files.
    return {
        "KUBECONFIG": str(plane.kubeconfig_of(service_account, namespace)),
        "TMPDIR": str(folder),
        "MY_POD_NAMESPACE": namespace,
    }


def _remove_certificate() -> None:
    _TRAINING_OPERATOR_CERTIFICATE.unlink(missing_ok=True)
    for folder in _TRAINING_OPERATOR_CERTIFICATE.parents[:2]:
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
