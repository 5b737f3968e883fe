"""Access to a running cluster of any kind: kubectl, clients, kubeconfigs, waits."""

import json
import os
import shutil
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import yaml
from kubernetes import client, config

from tools.cluster.daemons import SECONDS_TO_START
from tools.cluster.errors import ClusterError
from tools.cluster.programs import folder


class Access(ABC):
    """A cluster's API, as its administrator."""

    folder: Path
    """Where what this access writes (caches, kubeconfigs) goes, and where the cluster's logs are."""

    @abstractmethod
    def start(self) -> None:
        """Start everything and wait until it is ready; on failure nothing stays."""

    @abstractmethod
    def stop(self) -> None:
        """End all of it; nothing stays."""

    @contextmanager
    def stopped_on_failure(self) -> Iterator[None]:
        """End all of it where what is done meanwhile fails."""
        try:
            yield
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    @abstractmethod
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""

    def kubeconfig_of(self, service_account: str, namespace: str, pod: dict[str, Any] | None = None) -> Path:
        """A kubeconfig with a token of a service account, good for a day; ``pod``: as that pod of it gets one."""
        request: dict[str, Any] = {"spec": {"audiences": [], "expirationSeconds": 86400}}
        if pod is not None:
            bound = {"apiVersion": "v1", "kind": "Pod", **{key: pod["metadata"][key] for key in ("name", "uid")}}
            request["spec"]["boundObjectRef"] = bound
        core = client.CoreV1Api(self.client())
        answer = core.create_namespaced_service_account_token(service_account, namespace, request)
        document = yaml.safe_load(self.kubeconfig.read_text(encoding="utf-8"))
        for user in document["users"]:
            user["user"] = {"token": answer.status.token}
        path = self.folder / "kubeconfigs" / f"{namespace}.{service_account}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
        return path

    def client(self, kubeconfig: Path | None = None) -> client.ApiClient:
        """A client of the Kubernetes API; the administrator's unless another is named."""
        return config.new_client_from_config(str(kubeconfig or self.kubeconfig))

    def kubectl(self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """What kubectl prints; raises ClusterError with what it complains about."""
        command = [kubectl_program(), f"--cache-dir={self.folder / 'kubectl'}", *arguments]
        environment = {**os.environ, "KUBECONFIG": str(kubeconfig or self.kubeconfig)}
        done = subprocess.run(command, input=stdin, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"kubectl {' '.join(arguments[:3])}: {done.stderr.strip()}", remedy="see the message")
        return done.stdout

    def apply(self, objects: Iterable[dict[str, Any]] | str, *, namespace: str | None = None) -> None:
        """Server-side apply of objects, or of YAML text."""
        text = objects if isinstance(objects, str) else "---\n".join(json.dumps(each) + "\n" for each in objects)
        where = ["--namespace", namespace] if namespace else []
        self.kubectl("apply", "--server-side", "--force-conflicts", *where, "--filename=-", stdin=text)

    def apply_with_kinds(self, objects: list[dict[str, Any]]) -> None:
        """Apply, and wait until the server knows new kinds: an operator that starts before looks for them no more."""
        self.apply(objects)
        for each in objects:
            if each["kind"] == "CustomResourceDefinition":
                self.wait_for_kind(each)

    def wait_for_kind(self, definition: dict[str, Any]) -> None:
        """Wait until the server serves the kind of a CustomResourceDefinition and lists it for clients."""
        spec = definition["spec"]
        path = f"/apis/{spec['group']}/{next(each['name'] for each in spec['versions'] if each['served'])}"

        def known() -> bool:
            try:
                listed = json.loads(self.kubectl("get", "--raw", path))
            except ClusterError:
                return False
            return any(resource["name"] == spec["names"]["plural"] for resource in listed["resources"])

        self.wait_until(known, f"the server knows {spec['names']['kind']}")

    def get(self, *arguments: str) -> dict[str, Any]:
        """``kubectl get ... --output=json`` as a dictionary."""
        return dict(json.loads(self.kubectl("get", *arguments, "--output=json")))

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = SECONDS_TO_START) -> None:
        """Wait for a condition; raises ClusterError that says what did not happen."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                dead = self.ended_programs()
                ended = f"; ended meanwhile: {', '.join(dead)}" if dead else ""
                remedy = f"logs are in {self.folder}"
                raise ClusterError(f"waited {seconds:.0f} s in vain: {what}{ended}", remedy=remedy)
            time.sleep(0.2)

    def ended_programs(self) -> list[str]:
        """Programs of the cluster that should run and do not, as far as that can be seen from here."""
        return []


def kubectl_program() -> str:
    """The one that was built, of the server's version; else that of the machine. Raises ClusterError for none."""
    built = folder() / "bin" / "kubectl"
    found = str(built) if built.is_file() else shutil.which("kubectl")
    if found is None:
        raise ClusterError("kubectl is missing", remedy="install it, or make control-plane-build (half an hour, once)")
    return found
