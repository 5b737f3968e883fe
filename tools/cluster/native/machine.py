"""Real nodes as processes of this machine: booted, plugged in, lost, and looked into."""

import contextlib
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import psutil

from tools.cluster.daemons import Daemon
from tools.cluster.errors import ClusterError
from tools.cluster.native.cgroups import make_group, read_trees, remove_group
from tools.cluster.native.configuration import TEMPLATES, Node
from tools.cluster.native.network import Command, cable_commands
from tools.cluster.native.requirements import UNSHARE, where

SECONDS_TO_FORK = 10.0


class NodeProcess:
    """One node that runs, or does not."""

    def __init__(self, node: Node, folder: Path, environment: Mapping[str, str]) -> None:
        self.node, self.folder = node, folder
        command = [*UNSHARE, "--propagation=private", "bash", str(TEMPLATES / "init.sh")]
        self._daemon = Daemon(node.name, command, self.log, lambda: True, environment)

    @property
    def log(self) -> Path:
        """What its first process says."""
        return self.folder / "log" / "machine.log"

    def boot(self) -> None:
        """Start it and plug it in; does not wait until its programs are ready."""
        if self.first_process() is not None:
            return
        make_group(read_trees(), self.node.group)
        self._daemon.start()
        end = time.monotonic() + SECONDS_TO_FORK
        while (first := self.first_process()) is None:
            self.check()
            if time.monotonic() > end:
                raise ClusterError(f"{self.node.name} does not start", log=self.log, remedy="read the lines above")
            time.sleep(0.02)
        run_all(cable_commands(self.node.network, self.node.number, first.pid))

    def check(self) -> None:
        """Raise ClusterError with the end of its log when a machine that we booted has ended."""
        process = self._daemon.process
        if process is not None and process.poll() is not None:
            raise ClusterError(f"{self.node.name} ended", log=self.log, remedy="read the lines above")

    def kill(self) -> None:
        """End all of it at once, without notice, and take its cable and its cgroups away; its disk stays."""
        if (first := self.first_process()) is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                first.kill()
                first.wait(SECONDS_TO_FORK)
        self._daemon.stop()
        # The kernel takes it away with the network of the node, but when it likes.
        quietly(["ip", "link", "delete", self.node.network.cable(self.node.number)])
        remove_group(read_trees(), self.node.group)

    def inside(self, command: Sequence[str], *, stdin: Path | None = None) -> str:
        """Run a command in the node, as its root; returns what it prints."""
        first = self.first_process()
        if first is None:
            raise ClusterError(f"{self.node.name} does not run", remedy="return_node starts it again")
        entered = ["nsenter", f"--target={first.pid}", "--mount", "--pid", "--net", "--uts", "--ipc", *command]
        if stdin is None:
            return run(entered)
        with stdin.open("rb") as file:
            return run(entered, stdin=file)

    def first_process(self) -> psutil.Process | None:
        """The node's first process; None when it does not run."""
        outer = self._daemon.process
        if outer is None or outer.poll() is not None:
            return None
        try:
            children = psutil.Process(outer.pid).children()
        except psutil.NoSuchProcess:
            return None
        return next((child for child in children if child.status() != psutil.STATUS_ZOMBIE), None)


def run(command: Sequence[str], *, stdin: object = subprocess.DEVNULL) -> str:
    """Run a command of the system; raises ClusterError with what it complains about."""
    path = where(command[0])
    if path is None:
        remedy = "python -m tools.cluster ready says what to install"
        raise ClusterError(f"{command[0]} is missing", remedy=remedy)
    done = subprocess.run([path, *command[1:]], stdin=stdin, capture_output=True, text=True, check=False)  # type: ignore[call-overload]
    if done.returncode:
        raise ClusterError(f"{' '.join(command)}: {done.stderr.strip()}", remedy="see the message")
    return str(done.stdout)


def run_all(commands: Iterable[Command]) -> None:
    """Run commands one after the other; raises ClusterError at the first that fails."""
    for command in commands:
        run(command)


def quietly(command: Command) -> None:
    """Run a command that may fail, because what it removes is gone already."""
    with contextlib.suppress(ClusterError):
        run(command)
