"""A control plane that a test or a person starts, uses and leaves without a trace."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import yaml
from kubernetes import client, config

from tools.cluster.audit import Request, read_request
from tools.cluster.daemons import Daemon
from tools.cluster.errors import ClusterError
from tools.cluster.imitation import inheritance_policy
from tools.cluster.programs import program
from tools.cluster.servers import Servers, Settings
from tools.cluster.upstream import OPERATORS, install

SECONDS_TO_WAIT = 30.0


class ControlPlane:
    """etcd, API server, controller manager, scheduler, kwok, and upstream operators, on 127.0.0.1 alone.

    ``with ControlPlane() as plane`` starts them in a temporary folder; on leaving, all processes and the folder are
    gone, also when the program is killed (the kernel then ends the processes, only the folder stays).
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        operators: Sequence[str] = ("training-operator", "jobset"),
        settings: Settings | None = None,
    ) -> None:
        unknown = set(operators) - set(OPERATORS)
        if unknown:
            raise ClusterError(f"unknown operators {sorted(unknown)}", remedy=f"choose among {sorted(OPERATORS)}")
        self._folder, self._operators = folder, tuple(operators)
        self._settings = settings or Settings()
        self.daemons: dict[str, Daemon] = {}
        self.seconds: dict[str, float] = {}
        """How long each program took until it was ready."""

    def __enter__(self) -> ControlPlane:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and wait until it is ready; on failure nothing stays."""
        self.folder = self._folder or Path(tempfile.mkdtemp(prefix="caloscale-control-plane-"))
        try:
            self.servers = Servers(self.folder, self._settings)
            for daemon in (self.servers.etcd(), self.servers.api()):
                self.run(daemon)
            # These need the API server but not each other.
            others = [self.servers.controllers(), self.servers.scheduler(), self.servers.kwok()]
            for daemon in others:
                self.run(daemon, wait=False)
            self.apply(inheritance_policy())
            for name in self._operators:
                install(self, name)
            for daemon in [*others, *(self.daemons[name] for name in self._operators)]:
                self._wait_for(daemon)
            self.wait_until(self._acts, "the controller manager makes service accounts")
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End all programs, last started first, and remove the folder."""
        for daemon in reversed(self.daemons.values()):
            # Nothing of it is needed any more, so nobody need say goodbye.
            daemon.stop(kill=True)
        self.daemons.clear()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, daemon: Daemon, *, wait: bool = True) -> None:
        """Start a program as a part of this control plane: it ends with it."""
        self.daemons[daemon.name] = daemon
        daemon.start()
        if wait:
            self._wait_for(daemon)

    def restart(self, name: str, *, kill: bool = False) -> None:
        """End one program, or kill it, start it again and wait until it is ready."""
        daemon = self.daemons[name]
        daemon.stop(kill=kill)
        self.run(daemon)

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.servers.kubeconfig

    def kubeconfig_of(self, service_account: str, namespace: str) -> Path:
        """A kubeconfig with a token of a service account, as its pods get one; good for a day."""
        request = {"spec": {"audiences": [], "expirationSeconds": 86400}}
        core = client.CoreV1Api(self.client())
        answer = core.create_namespaced_service_account_token(service_account, namespace, request)
        return self.servers.kubeconfig_with(answer.status.token, f"{namespace}.{service_account}")

    def client(self, kubeconfig: Path | None = None) -> client.ApiClient:
        """A client of the Kubernetes API; the administrator's unless told otherwise."""
        return config.new_client_from_config(str(kubeconfig or self.kubeconfig))

    def kubectl(self, *arguments: str, stdin: str | None = None, kubeconfig: Path | None = None) -> str:
        """What kubectl prints; raises ClusterError with what it complains about."""
        command = [str(program("kubectl")), f"--cache-dir={self.folder / 'kubectl'}", *arguments]
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

    def wait_for_kind(self, definition: dict[str, Any]) -> None:
        """Wait until the server serves the kind of a CustomResourceDefinition and tells clients of it."""
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

    def wait_until(self, condition: Callable[[], bool], what: str, seconds: float = SECONDS_TO_WAIT) -> None:
        """Wait for a condition; raises ClusterError that says what did not happen."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                dead = [name for name, daemon in self.daemons.items() if daemon.process and daemon.process.poll()]
                ended = f"; ended meanwhile: {', '.join(dead)}" if dead else ""
                raise ClusterError(
                    f"waited {seconds:.0f} s in vain: {what}{ended}", remedy=f"logs are in {self.folder}/logs"
                )
            time.sleep(0.1)

    def requests(self, since: int = 0) -> list[Request]:
        """What the service accounts of caloscale-system asked of the API server, from the `since`-th request on."""
        text = self.servers.audit_log.read_text(encoding="utf-8") if self.servers.audit_log.exists() else ""
        return [read_request(line) for line in text.splitlines()[since:]]

    @property
    def memory_mib(self) -> dict[str, float]:
        """Resident memory of every program, MiB."""
        return {name: daemon.memory_mib for name, daemon in self.daemons.items()}

    def write_state(self) -> None:
        """Note the processes in the folder, for whoever ends them later."""
        pids = {name: daemon.process.pid for name, daemon in self.daemons.items() if daemon.process}
        (self.folder / "processes.yaml").write_text(yaml.safe_dump(pids, sort_keys=False), encoding="utf-8")

    def _wait_for(self, daemon: Daemon) -> None:
        started = time.monotonic()
        daemon.wait()
        self.seconds[daemon.name] = time.monotonic() - started

    def _acts(self) -> bool:
        accounts = client.CoreV1Api(self.client()).list_namespaced_service_account("default").items
        return any(account.metadata.name == "default" for account in accounts)
