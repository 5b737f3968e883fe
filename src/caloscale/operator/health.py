"""Health of the operator, for probes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def serve_health(port: int, checks: Mapping[str, Callable[[], bool]]) -> ThreadingHTTPServer:
    """Answer GET on each path: 200 when its check holds, else 503."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            check = checks.get(self.path)
            code = 404 if check is None else 200 if check() else 503
            self.send_response(code)
            self.send_header("Content-Type", "text/plain")
            self.end_headers()
            self.wfile.write(b"ok\n" if code == 200 else b"no\n")

        def log_message(self, *_: object) -> None:
            """Probes come all the time: they are not logged."""

    server = ThreadingHTTPServer(("", port), Handler)  # probes come from the node
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
