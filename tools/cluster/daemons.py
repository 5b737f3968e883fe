"""Programs that run beside the tests: started, waited for, restarted and ended."""

import ctypes
import http.client
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tools.cluster.errors import ClusterError

SECONDS_TO_START = 300.0
SECONDS_TO_END = 5.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


@dataclass
class Daemon:
    """One program in a process group of its own, with its log and the test that it is ready.

    The kernel kills it when the thread that started it ends, however that happens.
    """

    name: str
    command: Sequence[str]
    log: Path
    ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it without waiting."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment},
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def wait(self, seconds: float = SECONDS_TO_START) -> None:
        """Wait until it is ready; raises ClusterError with the end of its log."""
        end = time.monotonic() + seconds
        while not self.ready():
            died = self.process is not None and self.process.poll() is not None
            if died or time.monotonic() > end:
                what = f"ended with {self.process.returncode}" if died and self.process else f"not ready in {seconds} s"
                remedy = "read the lines above; the machine may be too busy"
                raise ClusterError(f"{self.name} {what}", log=self.log, remedy=remedy)
            time.sleep(0.05)

    def stop(self, *, kill: bool = False) -> None:
        """End it (SIGTERM, then SIGKILL), or kill it at once."""
        if self.process is None:
            return
        end_process(self.process.pid, kill=kill)
        self.process.wait()
        self.process = None

    @property
    def memory_mib(self) -> float:
        """Resident memory, MiB; 0 when it does not run."""
        if self.process is None:
            return 0.0
        return float(psutil.Process(self.process.pid).memory_info().rss) / 2**20


def end_process(pid: int, *, kill: bool = False) -> None:
    """End a process of ours and wait until it is gone."""
    try:
        process = psutil.Process(pid)
        process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        if not _has_ended(process, SECONDS_TO_END):
            process.kill()
            _has_ended(process, SECONDS_TO_END)
    except psutil.NoSuchProcess:
        return


def _has_ended(process: psutil.Process, seconds: float) -> bool:
    """Whether it ends in time. One whose parent has not taken leave of it yet has ended, too."""
    end = time.monotonic() + seconds
    while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def answers(
    port: int, path: str, *, tls: bool = False, certificate: tuple[Path, Path] | None = None, host: str = "127.0.0.1"
) -> bool:
    """Whether a server answers a GET with 200. Its certificate is not checked: it is asked for life."""
    connection: http.client.HTTPConnection
    if tls:
        context = ssl._create_unverified_context()  # noqa: S323
        if certificate:
            context.load_cert_chain(*certificate)
        connection = http.client.HTTPSConnection(host, port, timeout=2, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
