"""The programs of Kubeflow Pipelines and of Argo on this machine; their steps are pods of a real node."""

from __future__ import annotations

import json
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
from tools.cluster.kubeflow.sources import ARGO_PROGRAMS, PROGRAMS, VERSION, is_built, node, place
from tools.cluster.native import NativeCluster
from tools.cluster.native.cluster import advertise
from tools.cluster.native.configuration import host_service
from tools.cluster.pools import Pool
from tools.images import archives
from tools.images.archives import write_archive

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
NAMESPACE, BUCKET, KEY, SECRET = "kubeflow", "mlpipeline", "minio", "minio123"
SERVICES = {
    "seaweedfs": ("store",),
    "minio-service": ("store",),
    "ml-pipeline": ("apiserver", "grpc"),
    "metadata-grpc-service": ("metadata",),
}
"""Names under which steps and programs look for each other, and the ports there."""
MARIADB = "/usr/sbin/mariadbd"
IMAGE = f"caloscale/kubeflow:{VERSION}"
"""Of the programs that run in pods."""
ROOT = Path(__file__).resolve().parents[3]
_ENTER = """mount --bind "$1" /etc/hosts; mount -t tmpfs tmpfs /run; mkdir -p /run/secrets/kubeflow/tokens
printf unused > /run/secrets/kubeflow/tokens/persistenceagent-sa-token; shift; exec "$@"
"""


@contextmanager
def kubeflow() -> Iterator[Server]:
    """Everything from the control plane and a node with the trainer's image to the UI."""
    images = archives(["trainer-cpu"]).values()
    _check()
    with NativeCluster(pools=[Pool("steps", 1, accelerator="")], operators=()) as cluster:
        advertise(cluster.client(), cluster.nodes[0], Pool("v100", 1))
        server = Server(cluster)
        for archive in (*images, server.programs()):
            cluster.import_image(archive)
        server.objects()
        for daemon in (server.database(), server.objects_store(), server.metadata()):
            cluster.run(daemon)
        server.store().create_bucket(Bucket=BUCKET)
        for daemon in (server.apiserver(), *server.controllers(), server.ui()):
            cluster.run(daemon)
        yield server


class Server:
    """Objects in the cluster, and the programs as daemons that are not yet started."""

    def __init__(self, cluster: NativeCluster) -> None:
        self.cluster, self.source = cluster, place() / "source"
        self.address = cluster.network.host_address
        """Of this machine and its nodes alone: the parts ask one another at fixed ports."""
        self.url = f"http://{self.address}:{PORTS['ui']}"
        """The UI and, below /apis, the API."""
        self.folder = cluster.folder / "kubeflow"
        home = self.folder / "home"
        (home / ".kube").mkdir(parents=True)
        shutil.copyfile(cluster.kubeconfig, home / ".kube" / "config")
        self._hosts = self.folder / "hosts"
        domains = ("", f".{NAMESPACE}", f".{NAMESPACE}.svc", f".{NAMESPACE}.svc.cluster.local")
        names = " ".join(f"{name}{domain}" for name in SERVICES for domain in domains)
        self._hosts.write_text(f"127.0.0.1 localhost\n{self.address} {names}\n", encoding="utf-8")
        self._environment = {"HOME": str(home), "KUBECONFIG": str(cluster.kubeconfig), "POD_NAMESPACE": NAMESPACE}
        self._environment["TMPDIR"] = str(home)

    def programs(self) -> Path:
        """The image with the programs that run in pods."""
        names = (*PROGRAMS, *ARGO_PROGRAMS)
        files = {f"/usr/local/bin/{name}": place() / "bin" / name for name in names}
        return write_archive(self.folder / "programs.tar", IMAGE, files, entrypoint=["argoexec"], user="65532")

    def objects(self) -> None:
        """Kinds, namespace, the account of the steps with its rights, the key of the store, Argo's configuration."""
        manifests = self.source / "manifests" / "kustomize"
        kinds = [
            *(place() / "argo" / "manifests" / "base" / "crds" / "minimal").glob("argoproj.io_*.yaml"),
            manifests / "base" / "pipeline" / "cluster-scoped" / "scheduled-workflow-crd.yaml",
        ]
        self.cluster.apply_with_kinds([each for path in kinds for each in _documents(path)])
        controller = _documents(manifests / "third-party/argo/base/workflow-controller-configmap-patch.yaml")[0]
        controller["data"]["metricsConfig"] = "enabled: false\n"
        text = controller["data"]["artifactRepository"].replace("$(kfp-namespace).svc", NAMESPACE)
        controller["data"]["artifactRepository"] = text.replace("$(kfp-artifact-bucket-name)", BUCKET)
        secret = {"metadata": {"name": "mlpipeline-minio-artifact"}, "apiVersion": "v1", "kind": "Secret"}
        secret |= {"stringData": {"accesskey": KEY, "secretkey": SECRET}}
        runner = (
            manifests / "base/pipeline" / f"pipeline-runner-{part}.yaml" for part in ("sa", "role", "rolebinding")
        )
        self.cluster.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
        for name, ports in SERVICES.items():
            numbers = {port: ("TCP", PORTS[port], PORTS[port]) for port in ports}
            self.cluster.apply(host_service(name, NAMESPACE, self.address, numbers))
        account = [each for path in runner for each in _documents(path)]
        self.cluster.apply([controller, secret, *account], namespace=NAMESPACE)

    def database(self) -> Daemon:
        """MariaDB, without users: it listens on this machine alone."""
        data = self.folder / "mariadb"
        data.mkdir()
        command = [MARIADB, "--no-defaults", "--user=root", "--skip-grant-tables", f"--datadir={data}"]
        command += [f"--bind-address={self.address}", f"--port={PORTS['mariadb']}", f"--socket={data}/socket"]
        return self._daemon("mariadb", command)

    def objects_store(self) -> Daemon:
        """moto, in place of SeaweedFS: objects in memory."""
        command = [sys.executable, "-m", "moto.server", "-H", self.address, "-p", str(PORTS["store"])]
        return self._daemon("store", command, S3_IGNORE_SUBDOMAIN_BUCKETNAME="true")

    def metadata(self) -> Daemon:
        """ML Metadata for steps and for the UI."""
        command = [sys.executable, "-m", "tools.cluster.kubeflow.metadata", str(place() / "metadata")]
        command += [self.address, str(PORTS["metadata"]), str(PORTS["web"])]
        return self._daemon("metadata", command, "web")

    def apiserver(self) -> Daemon:
        """The API server of Kubeflow Pipelines."""
        configuration = json.loads((self.source / "backend/src/apiserver/config/config.json").read_text("utf-8"))
        del configuration["plugins"]
        mysql = {"Host": self.address, "Port": str(PORTS["mariadb"]), "User": "root", "Password": ""}
        configuration["DBConfig"]["MySQLConfig"] |= mysql
        store = {"Host": self.address, "Port": str(PORTS["store"]), "Secure": "false"}
        configuration["ObjectStoreConfig"] |= {**store, "AccessKey": KEY, "SecretAccessKey": SECRET}
        (self.folder / "config.json").write_text(json.dumps(configuration), encoding="utf-8")
        flags = {"http": "apiserver", "rpc": "grpc"}
        listen = [f"--{name}PortFlag={self.address}:{PORTS[port]}" for name, port in flags.items()]
        images = {"V2_DRIVER_IMAGE": IMAGE, "V2_LAUNCHER_IMAGE": IMAGE, "PUBLISH_LOGS": "true"}
        none = {f"ML_PIPELINE_VISUALIZATIONSERVER_SERVICE_{part}": "none" for part in ("HOST", "PORT")}
        return self._daemon("apiserver", [_program("apiserver"), f"--config={self.folder}", *listen], **images, **none)

    def controllers(self) -> Iterator[Daemon]:
        """Argo's controller, the one of recurring runs, and the agent that reports runs to the API server."""
        common = [f"--kubeconfig={self.cluster.kubeconfig}", f"--namespace={NAMESPACE}"]
        argo = [_program("workflow-controller"), *common, "--namespaced", f"--executor-image={IMAGE}"]
        yield self._daemon("workflow-controller", argo, LEADER_ELECTION_DISABLE="true")
        scheduled = [_program("scheduledworkflow"), *common, f"--metricsPort={PORTS['scheduledworkflow']}"]
        yield self._daemon("scheduledworkflow", scheduled, CRON_SCHEDULE_TIMEZONE="UTC")
        yield self._daemon("persistence", [_program("persistence"), *common])

    def ui(self) -> Daemon:
        """The node server with the React UI."""
        frontend = self.source / "frontend"
        parts = {"ML_PIPELINE_SERVICE": "apiserver", "METADATA_ENVOY_SERVICE_SERVICE": "web"}
        hosts = {f"{part}_HOST": self.address for part in parts}
        ports = {f"{part}_PORT": str(PORTS[port]) for part, port in parts.items()}
        store = {"MINIO_ACCESS_KEY": KEY, "MINIO_SECRET_KEY": SECRET, "MINIO_NAMESPACE": NAMESPACE}
        other = {"LISTEN": self.address, "FRONTEND_SERVER_NAMESPACE": NAMESPACE, "ARGO_ARCHIVE_LOGS": "true"}
        command = [str(node()), str(frontend / "server/dist/server.js"), str(frontend / "build"), str(PORTS["ui"])]
        return self._daemon("ui", command, **hosts, **ports, **store, **other)

    def store(self) -> Any:
        """A client of boto3 of the object store."""
        import boto3

        url = f"http://{self.address}:{PORTS['store']}"
        key = {"aws_access_key_id": KEY, "aws_secret_access_key": SECRET, "region_name": "us-east-1"}
        return boto3.client("s3", endpoint_url=url, **key)

    def _daemon(self, name: str, command: list[str], port: str = "", **environment: str) -> Daemon:
        """A program in mounts of its own, where the names of services are known."""
        line = ["unshare", "--mount", "--propagation=private", "sh", "-ec", _ENTER, "sh", str(self._hosts), *command]
        number = PORTS.get(port or name)
        log = self.cluster.servers.log_folder / f"{name}.log"
        variables = {**self._environment, "PYTHONPATH": str(ROOT), **environment}
        return Daemon(name, line, log, lambda: number is None or self._listens(number), variables)

    def _listens(self, port: int) -> bool:
        with socket.socket() as asked:
            return asked.connect_ex((self.address, port)) == 0


def _check() -> None:
    problems = []
    if not Path(MARIADB).is_file():
        problems.append("MariaDB is missing: apt-get install mariadb-server-core")
    if not is_built():
        problems.append(f"Kubeflow Pipelines {VERSION} is not built: python -m tools.cluster kubeflow")
    if problems:
        raise ClusterError("no Kubeflow here:" + "".join(f"\n  - {each}" for each in problems), remedy="mend these")


def _program(name: str) -> str:
    return str(place() / "bin" / name)


def _documents(path: Path) -> list[dict[str, Any]]:
    return [each for each in yaml.safe_load_all(path.read_text(encoding="utf-8")) if each]
