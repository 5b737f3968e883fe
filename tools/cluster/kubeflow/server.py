"""The programs of Kubeflow Pipelines and of Argo beside a control plane of this project."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tools.cluster.daemons import Daemon
from tools.cluster.errors import ClusterError
from tools.cluster.kubeflow.pods import ROOT, Pods, contained
from tools.cluster.kubeflow.sources import VERSION, is_built, node, place
from tools.cluster.plane import ControlPlane
from tools.cluster.servers import Settings

ADDRESS = "127.88.0.1"
"""Of this machine alone, and not that of other programs: the parts ask one another at fixed ports."""
PORTS = {
    "mariadb": 3306,
    "store": 9000,
    "metadata": 8080,
    "web": 9090,
    "apiserver": 8888,
    "grpc": 8887,
    "ui": 3000,
    "workflow-controller": 6060,  # health, of all addresses
    "scheduledworkflow": 9091,  # metrics, of all addresses
}
UI = f"http://{ADDRESS}:{PORTS['ui']}"
"""The UI and, below /apis, the API."""
NAMESPACE, BUCKET, KEY, SECRET = "kubeflow", "mlpipeline", "minio", "minio123"
NAMES = ("seaweedfs", "minio-service", "ml-pipeline", "metadata-grpc-service")
MARIADB = "/usr/sbin/mariadbd"


@contextmanager
def kubeflow() -> Iterator[ControlPlane]:
    """Everything from the control plane, which is given, to the UI."""
    _check()
    with ControlPlane(operators=(), settings=Settings(has_fake_nodes=False)) as plane:
        server = Server(plane)
        server.objects()
        for daemon in (server.database(), server.store(), server.metadata()):
            plane.run(daemon)
        store().create_bucket(Bucket=BUCKET)
        for daemon in (server.apiserver(), *server.controllers(), server.ui()):
            plane.run(daemon)
        pods = Pods(plane, NAMESPACE, server.step_environment(), server.mounts)
        pods.start()
        try:
            yield plane
        finally:
            pods.stop()


class Server:
    """Objects in the cluster, and the programs as daemons that are not yet started."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane, self.source = plane, place() / "source"
        self.folder = plane.folder / "kubeflow"
        home = self.folder / "home"
        (home / ".kube").mkdir(parents=True)
        shutil.copyfile(plane.kubeconfig, home / ".kube" / "config")
        hosts, token = self.folder / "hosts", self.folder / "token"
        domains = ("", f".{NAMESPACE}", f".{NAMESPACE}.svc", f".{NAMESPACE}.svc.cluster.local")
        names = " ".join(f"{name}{domain}" for name in NAMES for domain in domains)
        hosts.write_text(f"127.0.0.1 localhost\n{ADDRESS} {names}\n", encoding="utf-8")
        token.mkdir()
        (token / "persistenceagent-sa-token").write_text("unused", encoding="utf-8")
        self.mounts = {"/etc/hosts": hosts, str(plane.folder): plane.folder, str(place()): place()}
        self._own = {**self.mounts, "/var/run/secrets/kubeflow/tokens": token}
        self._environment = {"HOME": str(home), "KUBECONFIG": str(plane.kubeconfig), "POD_NAMESPACE": NAMESPACE}

    def objects(self) -> None:
        """Kinds, namespace, the account of the steps with its rights, the key of the store, Argo's configuration."""
        manifests = self.source / "manifests" / "kustomize"
        kinds = [
            *(place() / "argo" / "manifests" / "base" / "crds" / "minimal").glob("argoproj.io_*.yaml"),
            manifests / "base" / "pipeline" / "cluster-scoped" / "scheduled-workflow-crd.yaml",
        ]
        self.plane.apply_with_kinds([each for path in kinds for each in _documents(path)])
        controller = _documents(manifests / "third-party/argo/base/workflow-controller-configmap-patch.yaml")[0]
        controller["data"]["metricsConfig"] = "enabled: false\n"
        text = controller["data"]["artifactRepository"].replace("$(kfp-namespace).svc", NAMESPACE)
        controller["data"]["artifactRepository"] = text.replace("$(kfp-artifact-bucket-name)", BUCKET)
        secret = {"metadata": {"name": "mlpipeline-minio-artifact"}, "apiVersion": "v1", "kind": "Secret"}
        secret |= {"stringData": {"accesskey": KEY, "secretkey": SECRET}}
        runner = [
            manifests / "base" / "pipeline" / f"pipeline-runner-{part}.yaml" for part in ("sa", "role", "rolebinding")
        ]
        self.plane.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
        self.plane.apply(
            [controller, secret, *(each for path in runner for each in _documents(path))], namespace=NAMESPACE
        )

    def database(self) -> Daemon:
        """MariaDB, without users: it listens on this machine alone."""
        data = self.folder / "mariadb"
        data.mkdir()
        options = [
            f"--datadir={data}",
            f"--bind-address={ADDRESS}",
            f"--socket={data}/socket",
            f"--port={PORTS['mariadb']}",
        ]
        return self._daemon("mariadb", [MARIADB, "--no-defaults", "--user=root", "--skip-grant-tables", *options])

    def store(self) -> Daemon:
        """moto, in place of SeaweedFS: objects in memory."""
        command = [sys.executable, "-m", "moto.server", "-H", ADDRESS, "-p", str(PORTS["store"])]
        return self._daemon("store", command, S3_IGNORE_SUBDOMAIN_BUCKETNAME="true")

    def metadata(self) -> Daemon:
        """ML Metadata for steps and for the UI."""
        ports = [str(PORTS["metadata"]), str(PORTS["web"])]
        command = [sys.executable, "-m", "tools.cluster.kubeflow.metadata", str(place() / "metadata"), ADDRESS, *ports]
        return self._daemon("metadata", command, "web")

    def apiserver(self) -> Daemon:
        """The API server of Kubeflow Pipelines."""
        configuration = json.loads((self.source / "backend/src/apiserver/config/config.json").read_text("utf-8"))
        del configuration["plugins"]
        mysql = {"Host": ADDRESS, "Port": str(PORTS["mariadb"]), "User": "root", "Password": ""}
        configuration["DBConfig"]["MySQLConfig"] |= mysql
        store = {"Host": ADDRESS, "Port": str(PORTS["store"]), "Secure": "false"}
        configuration["ObjectStoreConfig"] |= {**store, "AccessKey": KEY, "SecretAccessKey": SECRET}
        (self.folder / "config.json").write_text(json.dumps(configuration), encoding="utf-8")
        listen = [
            f"--{name}PortFlag={ADDRESS}:{PORTS[port]}" for name, port in (("http", "apiserver"), ("rpc", "grpc"))
        ]
        images = {"V2_DRIVER_IMAGE": "driver", "V2_LAUNCHER_IMAGE": "launcher", "PUBLISH_LOGS": "true"}
        none = {f"ML_PIPELINE_VISUALIZATIONSERVER_SERVICE_{part}": "none" for part in ("HOST", "PORT")}
        return self._daemon("apiserver", [_program("apiserver"), f"--config={self.folder}", *listen], **images, **none)

    def controllers(self) -> Iterator[Daemon]:
        """Argo's controller, the one of recurring runs, and the agent that reports runs to the API server."""
        common = [f"--kubeconfig={self.plane.kubeconfig}", f"--namespace={NAMESPACE}"]
        argo = [_program("workflow-controller"), *common, "--namespaced", "--executor-image=argoexec"]
        yield self._daemon("workflow-controller", argo, LEADER_ELECTION_DISABLE="true")
        scheduled = [_program("scheduledworkflow"), *common, f"--metricsPort={PORTS['scheduledworkflow']}"]
        yield self._daemon("scheduledworkflow", scheduled, CRON_SCHEDULE_TIMEZONE="UTC")
        yield self._daemon("persistence", [_program("persistence"), *common])

    def ui(self) -> Daemon:
        """The node server with the React UI."""
        frontend = self.source / "frontend"
        parts = {"ML_PIPELINE_SERVICE": "apiserver", "METADATA_ENVOY_SERVICE_SERVICE": "web"}
        hosts = {f"{part}_HOST": ADDRESS for part in parts}
        ports = {f"{part}_PORT": str(PORTS[port]) for part, port in parts.items()}
        store = {"MINIO_ACCESS_KEY": KEY, "MINIO_SECRET_KEY": SECRET, "MINIO_NAMESPACE": NAMESPACE}
        other = {"LISTEN": ADDRESS, "FRONTEND_SERVER_NAMESPACE": NAMESPACE, "ARGO_ARCHIVE_LOGS": "true"}
        command = [str(node()), str(frontend / "server/dist/server.js"), str(frontend / "build"), str(PORTS["ui"])]
        return self._daemon("ui", command, **hosts, **ports, **store, **other)

    def step_environment(self) -> dict[str, str]:
        """Variables of the steps: this checkout's Python and the programs that Argo's and Kubeflow's images contain."""
        port = str(self.plane.servers.ports["api"])
        path = f"{place() / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {"PATH": path, "HOME": "/root", "KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}

    def _daemon(self, name: str, command: list[str], port: str = "", **environment: str) -> Daemon:
        line = contained(command, self.folder / name, self._own, str(ROOT))
        number = PORTS.get(port or name)
        log = self.plane.servers.log_folder / f"{name}.log"
        return Daemon(
            name,
            line,
            log,
            lambda: number is None or _listens(number),
            {**self._environment, **environment},
        )


def _check() -> None:
    problems = []
    if os.geteuid():
        problems.append("not root: the steps run in namespaces")
    if not Path(MARIADB).is_file():
        problems.append("MariaDB is missing: apt-get install mariadb-server-core")
    if not is_built():
        problems.append(f"Kubeflow Pipelines {VERSION} is not built: python -m tools.cluster kubeflow")
    problems += [f"{ADDRESS}:{port} is in use" for port in PORTS.values() if _listens(port)]
    if problems:
        raise ClusterError("no Kubeflow here:" + "".join(f"\n  - {each}" for each in problems), remedy="mend these")


def store() -> Any:
    """A client of boto3 of the object store."""
    import boto3

    url = f"http://{ADDRESS}:{PORTS['store']}"
    key = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
    return boto3.client("s3", endpoint_url=url, **key)


def _program(name: str) -> str:
    return str(place() / "bin" / name)


def _documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]


def _listens(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex((ADDRESS, port)) == 0
