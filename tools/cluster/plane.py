"""A control plane that a test or a person starts, uses and leaves without a trace."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kubernetes import client

from tools.cluster.access import Access
from tools.cluster.daemons import Daemon
from tools.cluster.servers import GRACE_SECONDS, HERE, LOOPBACK, Servers
from tools.cluster.upstream import install


class ControlPlane(Access):
    """etcd, API server, controller manager, scheduler, kwok, and upstream operators, on 127.0.0.1 alone.

    For real nodes (tools.cluster.native) the API server has another address, and there is no kwok.

    ``with ControlPlane() as plane`` starts them in a temporary folder; on leaving, all processes and the folder are
    gone, also when the program is killed (the kernel then ends the processes, only the folder stays).
    """

    def __init__(
        self, *, operators: Sequence[str] = ("training-operator", "jobset"), grace_seconds: int = GRACE_SECONDS
    ) -> None:
        self._operators, self._grace_seconds = operators, grace_seconds
        self._folder: Path | None = None
        self._address = LOOPBACK
        self.daemons: dict[str, Daemon] = {}

    def start(self) -> None:
        """Start everything and wait until it is ready; on failure nothing stays."""
        self.folder = self._folder or Path(tempfile.mkdtemp(prefix="caloscale-control-plane-"))
        with self.stopped_on_failure():
            self.servers = Servers(self.folder, self._address, self._grace_seconds)
            for daemon in (self.servers.etcd(), self.servers.api()):
                self.run(daemon)
            # These need the API server but not each other.
            others = [self.servers.controllers(), self.servers.scheduler()]
            if self.servers.has_fake_nodes:
                others.append(self.servers.kwok())
            for daemon in others:
                self.run(daemon, wait=False)
            if self.servers.has_fake_nodes:
                self.apply((HERE / "fake_pods.yaml").read_text(encoding="utf-8"))
            for name in self._operators:
                install(self, name)
            for daemon in [*others, *(self.daemons[name] for name in self._operators)]:
                daemon.wait()
            self.wait_until(self._acts, "the controller manager makes service accounts")

    def stop(self) -> None:
        """End all programs, last started first, and remove the folder."""
        for daemon in reversed(self.daemons.values()):
            daemon.stop()
        self.daemons.clear()
        if hasattr(self, "folder"):
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, daemon: Daemon, *, wait: bool = True) -> None:
        """Start a program as a part of this control plane: it ends with it."""
        self.daemons[daemon.name] = daemon
        daemon.start()
        if wait:
            daemon.wait()

    def restart(self, name: str) -> None:
        """Kill a program, start it again and wait until it is ready."""
        self.daemons[name].stop()
        self.run(self.daemons[name])

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.servers.kubeconfig

    def ended_programs(self) -> list[str]:
        """Programs that ended although nobody asked them to."""
        return [name for name, daemon in self.daemons.items() if daemon.process and daemon.process.poll()]

    def _acts(self) -> bool:
        accounts = client.CoreV1Api(self.client()).list_namespaced_service_account("default").items
        return any(account.metadata.name == "default" for account in accounts)
