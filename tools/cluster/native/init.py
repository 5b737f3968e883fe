"""The first process of a real node: sets the machine up and keeps its programs running. Standard library only.

    python -I -S init.py MACHINE.json

It runs in namespaces of its own (processes, mounts, network, name), as `unshare` made them. MACHINE.json (written by
configuration.py) says what to do: `hostname`, `mounts` and `network` (commands), `port` (the interface to wait for),
`values` (kernel settings), `environment`, and `programs`, each with `name`, `command`, `log` and perhaps `ready`, a
command that succeeds when the next may start, and `after`, commands to run then. A program that ends is started again
after a second, as systemd would.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SECONDS_TO_WAIT = 60.0
SECONDS_BEFORE_AGAIN = 1.0


def main() -> None:
    """Set up, start, keep running until killed."""
    machine = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))  # the kernel ends whatever else runs in here
    os.environ.update(machine["environment"])
    socket.sethostname(machine["hostname"])
    run_all(machine["mounts"])
    wait_for(lambda: machine["port"] in [name for _, name in socket.if_nameindex()], "the network")
    run_all(machine["network"])
    for path, value in machine["values"].items():
        Path(path).write_text(value, encoding="utf-8")
    running: dict[int, dict[str, Any]] = {}
    for program in machine["programs"]:
        running[start(program)] = program
        if "ready" in program:
            wait_for(lambda command=program["ready"]: succeeds(command), program["name"])
        run_all(program.get("after", []))
    say("the programs run")
    keep_running(running)


def run_all(commands: list[list[str]]) -> None:
    """Run commands one after the other; the first that fails ends the machine."""
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            say(f"{' '.join(command)}: {done.stderr.strip()}")
            sys.exit(1)


def start(program: dict[str, Any]) -> int:
    """Start a program with its log; returns its process id."""
    log = os.open(program["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, log, 1), (os.POSIX_SPAWN_DUP2, log, 2)]
        command = program["command"]
        return os.posix_spawnp(command[0], command, dict(os.environ), file_actions=actions, setsigmask=[])
    finally:
        os.close(log)


def keep_running(running: dict[int, dict[str, Any]]) -> None:
    """Start again what ends; take leave of orphans, which the kernel hands to the first process."""
    while True:
        pid, status = os.wait()
        program = running.pop(pid, None)
        if program is not None:
            say(f"{program['name']} ended with {os.waitstatus_to_exitcode(status)}; started again")
            time.sleep(SECONDS_BEFORE_AGAIN)
            running[start(program)] = program


def wait_for(condition: Any, what: str) -> None:
    """Wait until a condition holds; a machine on which it never does ends."""
    end = time.monotonic() + SECONDS_TO_WAIT
    while not condition():
        if time.monotonic() > end:
            say(f"waited {SECONDS_TO_WAIT:.0f} s in vain for {what}")
            sys.exit(1)
        time.sleep(0.05)


def succeeds(command: list[str]) -> bool:
    """Whether a command ends with 0."""
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0


def say(message: str) -> None:
    """A line in the machine's log."""
    print(f"{time.strftime('%H:%M:%S')} {message}", flush=True)


if __name__ == "__main__":
    main()
