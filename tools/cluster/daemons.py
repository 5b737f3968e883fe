"""Programs that run beside the tests: started, waited for, restarted and ended."""

import ctypes
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

from tools.cluster.errors import ClusterError

SECONDS_TO_START = 300.0
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

    def wait(self) -> None:
        """Wait until it is ready; raises ClusterError with the end of its log."""
        end = time.monotonic() + SECONDS_TO_START
        while not self.ready():
            code = self.process.poll() if self.process else None
            if code is not None or time.monotonic() > end:
                what = f"not ready in {SECONDS_TO_START:.0f} s" if code is None else f"ended with {code}"
                remedy = "read the lines above; the machine may be too busy"
                raise ClusterError(f"{self.name} {what}", log=self.log, remedy=remedy)
            time.sleep(0.05)

    def stop(self) -> None:
        """Kill it: what it holds ends with the cluster."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


def answers(url: str, certificate: tuple[Path, Path] | None = None) -> bool:
    """Whether a server of this machine answers a GET with 200. Its certificate is not checked: it only has to run."""
    context = ssl._create_unverified_context()  # noqa: S323
    if certificate:
        context.load_cert_chain(*certificate)
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=2) as answer:
            return bool(answer.status == HTTPStatus.OK)
    except (OSError, HTTPException):
        return False


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
