"""Pods as processes of this machine, in place of a kubelet and images: root on Linux.

A container is a process in mount and PID namespaces of its own. It sees the files of this machine, except that /tmp and
/run are its own and that its volumes are mounted; its image is not used. `exec` into a container is not offered: where
Argo would signal one that way, the containers of a workflow that is terminated get SIGTERM from here.
"""

from __future__ import annotations

import base64
import datetime as dt
import http.server
import re
import ssl
import subprocess
import threading
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException

from tools.cluster.plane import ControlPlane

NODE = "processes"
ARGO = {"group": "argoproj.io", "version": "v1alpha1", "plural": "workflows"}
ROOT = Path(__file__).resolve().parents[3]
_ENTER = """set -e
root=$1; directory=$2; mounts=$3; shift 3
mount --make-rprivate /; mount -t tmpfs tmpfs "$root"
for each in /*; do case $each in
  /tmp) mkdir -m 1777 "$root/tmp" ;;
  /run) mkdir "$root/run" ;;
  *) if [ -L "$each" ]; then cp -P "$each" "$root$each"
     elif [ -d "$each" ]; then mkdir "$root$each"; mount --rbind "$each" "$root$each"; fi ;;
esac; done
while read -r source target; do
  if [ -d "$source" ]; then mkdir -p "$root$target"
  elif [ ! -e "$root$target" ]; then mkdir -p "$(dirname "$root$target")"; touch "$root$target"; fi
  mount --rbind "$source" "$root$target"
done < "$mounts"
mount -t proc proc "$root/proc"
exec chroot "$root" /bin/sh -c 'cd "$0" && exec "$@"' "$directory" "$@"
"""


def contained(command: list[str], folder: Path, mounts: Mapping[str, Path], directory: str = "/") -> list[str]:
    """The command line that runs a command in namespaces with these mounts (path in the container: path here)."""
    (folder / "root").mkdir(parents=True, exist_ok=True)
    # /var/run leads to /run, whose files are the container's own
    targets = {re.sub("^/var/run(?=/)", "/run", target): source for target, source in mounts.items()}
    listed = sorted({str(ROOT): ROOT, **targets}.items())
    (folder / "mounts").write_text("".join(f"{source} {target}\n" for target, source in listed), encoding="utf-8")
    inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-c", _ENTER, "sh"]
    return [*inside, str(folder / "root"), directory, str(folder / "mounts"), *command]


class Pods:
    """A node of a control plane whose pods of one namespace are processes here; they end with this program."""

    def __init__(self, plane: ControlPlane, namespace: str, environment: Mapping[str, str], mounts: Mapping[str, Path]):
        self._plane, self._namespace, self._environment, self._mounts = plane, namespace, dict(environment), mounts
        self._folder = plane.folder / "pods"
        self._core = client.CoreV1Api(plane.client())
        self._custom = client.CustomObjectsApi(self._core.api_client)
        self._running: dict[str, dict[str, subprocess.Popen[bytes]]] = {}
        self._seen: set[str] = set()
        self._ended = threading.Event()

    def start(self) -> None:
        """Make the node, which serves the logs of its pods, and take the pods that the scheduler gives it."""
        pair = self._plane.servers.authority.issue(NODE, NODE, hosts=["127.0.0.1"])
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self._log_handler())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.certificate, pair.key)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._core.create_node({"metadata": {"name": NODE}})
        for target in (self._server.serve_forever, self._keep_alive, self._take_pods):
            threading.Thread(target=self._repeat, args=(target,), daemon=True).start()

    def stop(self) -> None:
        """Kill all processes."""
        self._ended.set()
        self._server.server_close()
        for processes in list(self._running.values()):
            for process in processes.values():
                process.kill()

    def _repeat(self, target: Callable[[], None]) -> None:
        """Again and again; what fails, such as a request to the API server, is written down and tried again."""
        while not self._ended.wait(3):
            try:
                target()
            except Exception:
                if not self._ended.is_set():
                    traceback.print_exc()

    def _keep_alive(self) -> None:
        """Say that the node is ready, and end the containers of workflows that are terminated."""
        self._core.patch_node_status(NODE, {"status": _node_status(self._server.server_port)})
        for workflow in self._custom.list_namespaced_custom_object(namespace=self._namespace, **ARGO)["items"]:
            if workflow["spec"].get("activeDeadlineSeconds") == 0 or workflow["spec"].get("shutdown"):
                selector = f"workflows.argoproj.io/workflow={workflow['metadata']['name']}"
                for pod in self._core.list_namespaced_pod(self._namespace, label_selector=selector).items:
                    for process in self._running.pop(pod.metadata.uid, {}).values():
                        with suppress(psutil.NoSuchProcess):  # it has ended
                            for inside in psutil.Process(process.pid).children():
                                inside.terminate()

    def _take_pods(self) -> None:
        for event in watch.Watch().stream(self._core.list_namespaced_pod, self._namespace, timeout_seconds=300):
            pod, uid = event["raw_object"], event["raw_object"]["metadata"]["uid"]
            if pod["spec"].get("nodeName") != NODE or event["type"] == "DELETED":
                continue
            if pod["metadata"].get("deletionTimestamp"):
                for process in self._running.pop(uid, {}).values():
                    process.kill()
                self._delete(pod)
            elif uid not in self._seen:
                self._seen.add(uid)
                threading.Thread(target=self._run, args=(pod,), daemon=True).start()

    def _delete(self, pod: dict[str, Any]) -> None:
        try:
            self._core.delete_namespaced_pod(pod["metadata"]["name"], self._namespace, grace_period_seconds=0)
        except ApiException as error:
            if error.status != 404:
                raise

    def _run(self, pod: dict[str, Any]) -> None:
        """From Pending to Succeeded or Failed: init containers one by one, then the others side by side."""
        folder = self._folder / pod["metadata"]["uid"]
        volumes = {volume["name"]: self._volume(volume, folder, pod) for volume in pod["spec"].get("volumes", [])}
        initial, main, codes = pod["spec"].get("initContainers", []), pod["spec"]["containers"], {}
        started = _now()
        for container in initial:
            codes[container["name"]] = self._start(container, folder, volumes, pod).wait()
        if not any(codes.values()):
            processes = {each["name"]: self._start(each, folder, volumes, pod) for each in main}
            self._running[pod["metadata"]["uid"]] = processes
            self._report(pod, "Running", initial, main, codes, started)
            codes |= {name: process.wait() for name, process in processes.items()}
        self._report(pod, "Failed" if any(codes.values()) else "Succeeded", initial, main, codes, started)

    def _start(
        self, container: dict[str, Any], folder: Path, volumes: dict[str, Path], pod: dict[str, Any]
    ) -> subprocess.Popen[bytes]:
        mounts = dict(self._mounts)
        for mount in container.get("volumeMounts", []):
            source = volumes[mount["name"]] / mount.get("subPath", "")
            if "subPath" in mount:
                source.mkdir(exist_ok=True)
            mounts[mount["mountPath"]] = source
        environment = dict(self._environment)
        for entry in container.get("env", []):
            environment[entry["name"]] = _expanded(self._value(entry, pod), environment)
        command = [_expanded(word, environment) for word in (*container.get("command", []), *container.get("args", []))]
        line = contained(command, folder / container["name"], mounts, container.get("workingDir", "/"))
        with (folder / f"{container['name']}.log").open("wb") as log:
            return subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)

    def _value(self, entry: dict[str, Any], pod: dict[str, Any]) -> str:
        source = entry.get("valueFrom", {})
        if "fieldRef" in source:
            return _field(source["fieldRef"]["fieldPath"], pod)
        if "secretKeyRef" in source:
            return self._secret(source["secretKeyRef"]["name"]).get(source["secretKeyRef"]["key"], b"").decode()
        return str(entry.get("value", ""))

    def _secret(self, name: str) -> dict[str, bytes]:
        data = self._core.read_namespaced_secret(name, self._namespace).data or {}
        return {key: base64.b64decode(value) for key, value in data.items()}

    def _volume(self, volume: dict[str, Any], folder: Path, pod: dict[str, Any]) -> Path:
        """A folder with what the volume contains; a claim's folder is shared by all pods and stays."""
        if "persistentVolumeClaim" in volume:
            folder = self._folder.parent / "claims" / volume["persistentVolumeClaim"]["claimName"]
        else:
            folder = folder / "volumes" / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        for source in volume.get("projected", {}).get("sources", [volume]):
            for name, content in self._files(source, pod).items():
                (folder / name).write_bytes(content)
        return folder

    def _files(self, source: dict[str, Any], pod: dict[str, Any]) -> dict[str, bytes]:
        if "serviceAccountToken" in source:
            spec = {"spec": {"audiences": [], "expirationSeconds": 86400}}
            account = pod["spec"].get("serviceAccountName", "default")
            answer = self._core.create_namespaced_service_account_token(account, self._namespace, spec)
            return {source["serviceAccountToken"]["path"]: answer.status.token.encode()}
        if "downwardAPI" in source:
            items = source["downwardAPI"]["items"]
            return {item["path"]: _field(item["fieldRef"]["fieldPath"], pod).encode() for item in items}
        if "configMap" in source:
            data = self._core.read_namespaced_config_map(source["configMap"]["name"], self._namespace).data or {}
            return {key: value.encode() for key, value in data.items()}
        if "secret" in source:
            return self._secret(source["secret"]["secretName"])
        return {}

    def _report(
        self, pod: dict[str, Any], phase: str, initial: list[Any], main: list[Any], codes: dict[str, int], started: str
    ) -> None:
        def status(container: dict[str, Any]) -> dict[str, Any]:
            code, name = codes.get(container["name"]), container["name"]
            if code is None:
                state: dict[str, Any] = {"running": {"startedAt": started}}
            else:
                code = 128 - code if code < 0 else code
                ended = {"exitCode": code, "reason": "Error" if code else "Completed"}
                state = {"terminated": {**ended, "startedAt": started, "finishedAt": _now()}}
            image = {"image": container["image"], "imageID": "", "containerID": f"process://{name}"}
            return {"name": name, "ready": code is None, "restartCount": 0, "state": state, **image}

        told = {
            "phase": phase,
            "podIP": "127.0.0.1",
            "startTime": started,
            "initContainerStatuses": [status(each) for each in initial],
            "containerStatuses": [status(each) for each in main]
            if phase != "Failed" or len(codes) > len(initial)
            else [],
        }
        try:
            self._core.patch_namespaced_pod_status(pod["metadata"]["name"], self._namespace, {"status": told})
        except ApiException as error:
            if error.status != 404:
                raise

    def _log_handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        pods = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """/containerLogs/NAMESPACE/POD/CONTAINER, as the API server asks a kubelet."""

            def do_GET(self) -> None:
                _, namespace, pod, container = self.path.partition("?")[0].strip("/").split("/")
                uid = pods._core.read_namespaced_pod(pod, namespace).metadata.uid
                log = pods._folder / uid / f"{container}.log"
                self.send_response(200)
                self.end_headers()
                self.wfile.write(log.read_bytes() if log.exists() else b"")

            def log_message(self, *_: object) -> None:
                """No log of requests."""

        return Handler


def _node_status(port: int) -> dict[str, Any]:
    capacity = {"cpu": "256", "memory": "1Ti", "pods": "500", "ephemeral-storage": "1Ti", "nvidia.com/gpu": "8"}
    ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": _now()}
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [{**ready, "reason": "Processes", "message": "pods are processes"}],
        "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
    }


def _field(path: str, pod: dict[str, Any]) -> str:
    """A field of the downward API."""
    if entry := re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path):
        return str(pod["metadata"].get(entry[1], {}).get(entry[2], ""))
    known = {"status.podIP": "127.0.0.1", "status.hostIP": "127.0.0.1", "spec.nodeName": NODE}
    known["spec.serviceAccountName"] = pod["spec"].get("serviceAccountName", "")
    return known[path] if path in known else str(pod["metadata"][path.removeprefix("metadata.")])


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    return re.sub(r"\$\(([^)]+)\)", lambda found: environment.get(found[1], found[0]), text)


def _now() -> str:
    return dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
