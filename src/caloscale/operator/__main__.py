"""The operator's process: ``python -m caloscale.operator``."""

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import start_http_server

from caloscale.connection import REQUEST_SECONDS, connect
from caloscale.errors import CaloscaleError, ConfigurationError
from caloscale.operator.controller import Controller
from caloscale.operator.election import RENEW_SECONDS, Election
from caloscale.operator.metrics import Metrics, RunsCollector
from caloscale.operator.settings import settings_of

log = logging.getLogger("caloscale.operator")


def main() -> None:
    """Watch, wait for the lease, then reconcile until SIGTERM."""
    settings = settings_of()
    logging.basicConfig(level=settings.log_level, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("urllib3").setLevel(logging.WARNING)
    metrics = Metrics()
    # a connection of its own: a renewal waits behind no other request
    election = Election(connect(seconds=RENEW_SECONDS / 2), settings.namespace, settings.identity)
    connection = connect(seconds=REQUEST_SECONDS)
    connection.may_write = lambda: election.leads
    connection.count = metrics.count
    controller = Controller(connection, settings, metrics)
    metrics.registry.register(RunsCollector(controller.store, lambda: controller.leads))
    worker = threading.Thread(target=controller.run, name="controller", daemon=True)
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    signal.signal(signal.SIGINT, lambda *_: ended.set())
    # alive: waiting for the lease, or at work
    checks = {
        "/healthz": lambda: worker.ident is None or (worker.is_alive() and controller.watches.are_alive()),
        # not ready with custom resources of an older version: a Deployment then keeps the operator that fits them
        "/readyz": lambda: controller.synced.is_set() and not controller.lacking,
    }
    if settings.health_port:
        serve_health(settings.health_port, checks)
    if settings.metrics_port:
        with port_of("CALOSCALE_METRICS_PORT", settings.metrics_port):
            start_http_server(settings.metrics_port, registry=metrics.registry)
    # What the cluster holds is read before the lease is had: a successor decides at once, and a process that was killed
    # and started again does not take its lease from one that has read it already.
    worker.start()
    controller.watches.start()
    try:
        if not election.acquire(ended, controller.synced.is_set):
            return
        log.info("%s is active", settings.identity)
        threading.Thread(target=election.keep, args=(_lost,), name="lease", daemon=True).start()
        controller.lead()
        ended.wait()
    finally:
        controller.stop()
        election.release()


def _lost() -> None:
    """Another operator may be active from now on: nothing more may be written."""
    log.error("the lease is lost")
    os._exit(1)


@contextlib.contextmanager
def port_of(variable: str, port: int) -> Iterator[None]:
    """Raise ConfigurationError where a port cannot be served, such as one that another program has."""
    try:
        yield
    except OSError as error:
        problem = f"the port cannot be served: {error.strerror}"
        raise ConfigurationError(problem, field=variable, value=port, remedy="another port, or 0 for none") from error


def serve_health(port: int, checks: Mapping[str, Callable[[], bool]]) -> ThreadingHTTPServer:
    """Answer GET on each path: 200 when its check holds, else 503."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            check = checks.get(self.path)
            code = 404 if check is None else 200 if check() else 503
            with contextlib.suppress(ConnectionError):  # a probe that waits no more
                self.send_response(code)
                self.send_header("Content-Type", "text/plain")
                self.end_headers()
                self.wfile.write(b"ok\n" if code == 200 else b"no\n")

        def log_message(self, *_: object) -> None:
            """Probes come all the time: they are not logged."""

    with port_of("CALOSCALE_HEALTH_PORT", port):
        server = ThreadingHTTPServer(("", port), Handler)  # probes come from the node
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server


if __name__ == "__main__":
    try:
        main()
    except CaloscaleError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
