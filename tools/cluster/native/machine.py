"""Real nodes as processes of this machine: booted, plugged in, lost, and looked into."""

import contextlib
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from tools.cluster.daemons import Daemon, end_process
from tools.cluster.errors import ClusterError
from tools.cluster.native.cgroups import make_group, read_trees, remove_group
from tools.cluster.native.configuration import Node
from tools.cluster.native.network import Command, cable_commands
from tools.cluster.native.requirements import UNSHARE, where

INIT = Path(__file__).with_name("init.py")
DESCRIPTION = "machine.json"
SECONDS_TO_FORK = 10.0


class NodeProcess:
    """One node that runs, or does not; known by its folder, so that any process may find and end it."""

    def __init__(self, node: Node, folder: Path, *, outlives_us: bool = False) -> None:
        self.node, self.folder = node, folder
        self._outlives_us = outlives_us
        self._daemon: Daemon | None = None

    @property
    def log(self) -> Path:
        """What its first process says."""
        return self.folder / "log" / "machine.log"

    def boot(self) -> None:
        """Start it and plug it in; does not wait until its programs are ready."""
        if self.first_process() is not None:
            return
        make_group(read_trees(), self.node.group)
        command = [*UNSHARE, "--propagation=private", sys.executable, "-I", "-S", str(INIT)]
        command.append(str(self.folder / DESCRIPTION))
        # The kernel ends a process with the thread that started it, not only with the whole program.
        outlives_us = self._outlives_us or threading.current_thread() is not threading.main_thread()
        self._daemon = Daemon(self.node.name, command, self.log, lambda: True, outlives_us=outlives_us)
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
        process = self._daemon.process if self._daemon else None
        if process is not None and process.poll() is not None:
            raise ClusterError(f"{self.node.name} ended", log=self.log, remedy="read the lines above")

    def kill(self) -> None:
        """End all of it at once, without notice, and take its cable and its cgroups away; its disk stays."""
        if (first := self.first_process()) is not None:
            _kill(first)
        if self._daemon is not None:
            self._daemon.stop(kill=True)
            self._daemon = None
        elif (outer := self._outer_process()) is not None:
            end_process(outer.pid, kill=True)
        # The kernel takes it away with the network of the node, but when it likes.
        quietly(["ip", "link", "delete", self.node.network.cable(self.node.number)])
        remove_group(read_trees(), self.node.group)

    def end_program(self, name: str) -> None:
        """Kill one of its programs; its first process starts it again."""
        first = self.first_process()
        found = [child for child in first.children() if child.name() == name] if first else []
        if not found:
            raise ClusterError(f"no {name} runs on {self.node.name}", log=self.log, remedy="return_node, or wait")
        for process in found:
            _kill(process)

    def unplug(self) -> None:
        """Pull its cable."""
        run_all([["ip", "link", "set", self.node.network.cable(self.node.number), "down"]])

    def plug_in(self) -> None:
        """Put its cable back."""
        run_all([["ip", "link", "set", self.node.network.cable(self.node.number), "up"]])

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
        outer = self._outer_process()
        try:
            children = outer.children() if outer else []
        except psutil.NoSuchProcess:
            return None
        return next((child for child in children if child.status() != psutil.STATUS_ZOMBIE), None)

    def _outer_process(self) -> psutil.Process | None:
        description = str(self.folder / DESCRIPTION)
        own = self._daemon.process if self._daemon else None
        if own is not None:
            return psutil.Process(own.pid) if own.poll() is None else None
        for process in psutil.process_iter(["cmdline"]):
            command = process.info["cmdline"] or []
            if command and command[0] == UNSHARE[0] and command[-1] == description:
                return process
        return None


def run(command: Sequence[str], *, stdin: object = subprocess.DEVNULL) -> str:
    """Run a command of the system; raises ClusterError with what it complains about."""
    path = where(command[0])
    if path is None:
        remedy = "python -m tools.cluster nodes status says what to install"
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


def erase(folder: Path) -> None:
    """Remove a folder of a node that does not run. What containers wrote may be without the owner's right to write."""
    shutil.rmtree(folder, ignore_errors=True)


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
        process.wait(SECONDS_TO_FORK)
    except psutil.NoSuchProcess:
        return
