"""API servers that answer as a test sets them up: one that listens, and an object in place of a connection."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl

from kubernetes.client.exceptions import ApiException

Answer = dict[str, Any] | BaseException | None


def seen(
    phase: str, reason: str = "", spec: dict[str, Any] | None = None, *, changed: bool = False, version: str = "7"
) -> dict[str, Any]:
    """A run as the API server has it; ``changed``: its document, since the operator has looked."""
    status: dict[str, Any] = {"phase": phase, "message": reason, "observedGeneration": 1}
    if reason:
        moment = "2026-11-21T10:00:00Z"
        status["conditions"] = [{"type": "Failed", "status": "True", "reason": reason, "lastTransitionTime": moment}]
    metadata = {"name": "gan", "namespace": "physics", "generation": 2 if changed else 1, "resourceVersion": version}
    return {"metadata": metadata, "spec": spec or {}, "status": status}


def refusal(status: int, message: str = "no") -> ApiException:
    """An answer that is an error."""
    error = ApiException(status=status, reason="No")
    error.body = json.dumps({"message": message})
    return error


class Server:
    """Gives its answers one after the other, the last for ever, and notes what is changed; listing is forbidden."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.changes: list[tuple[str, dict[str, Any]]] = []
        self.watched: list[tuple[str, str, int, str]] = []
        self.refuses_watches = False

    def get(self, *_: object) -> dict[str, Any] | None:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def watch(self, kind: str, namespace: str, version: int, **chosen: Any) -> Iterator[dict[str, Any]]:
        """An event for each answer that is left, after a bookmark."""
        self.watched.append((kind, namespace, version, chosen["fields"]))
        if self.refuses_watches:
            raise refusal(403, "may not watch")
        yield {"type": "BOOKMARK", "object": {}}
        yield {"type": "MODIFIED", "object": {}}
        raise AssertionError("a change was reported, and the watch continues")

    def each(self, *_: object, **__: object) -> Iterator[dict[str, Any]]:
        raise refusal(403, "may not list")

    def apply(self, manifest: dict[str, Any], *, dry_run: bool = False, **_: object) -> dict[str, Any]:
        if not dry_run:
            self._refuse_conflict(manifest["metadata"].get("resourceVersion"))
            self.changes.append(("apply", manifest))
        return manifest

    def _refuse_conflict(self, version: str | None) -> None:
        there = self.answers[0]
        if version is not None and isinstance(there, dict) and there["metadata"]["resourceVersion"] != version:
            raise refusal(409, "the object has been modified")

    def merge(self, kind: str, namespace: str, name: str, change: dict[str, Any], *, dry_run: bool = False) -> None:
        self.changes.append(("merge", change))


class ApiServer:
    """A server on this machine: notes each request, and answers with what it was given, the last answer for ever."""

    def __init__(self, *answers: tuple[int, object]) -> None:
        self.asked: list[tuple[str, str, dict[str, str], str | None, Any]] = []
        self.answers: list[tuple[int, object]] = list(answers) or [(200, {})]
        self.headers: list[Any] = []
        noting = self

        class Handler(BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                path, _, query = self.path.partition("?")
                content = self.headers.get("Content-Type", "") if body else None
                sent = json.loads(body) if content and content.endswith(("json", "yaml")) else body or None
                noting.asked.append((self.command, path, dict(parse_qsl(query)), content, sent))
                noting.headers.append(self.headers)
                code, answer = noting.answers.pop(0) if len(noting.answers) > 1 else noting.answers[0]
                if code:  # else it hangs up
                    given = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                    self.send_response(code)
                    self.send_header("Content-Length", str(len(given)))
                    self.end_headers()
                    self.wfile.write(given)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

            def log_message(self, *_: object) -> None:
                """Stay quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()
        self.address = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def kubeconfig_of(address: str, **user: Any) -> dict[str, Any]:
    cluster = {"name": "c", "cluster": {"server": address}}
    users = [{"name": "u", "user": {"token": "mine", **user}}, {"name": "other", "user": {"token": "theirs"}}]
    contexts = [{"name": name, "context": {"cluster": "c", "user": user}} for name, user in ((1, "u"), (2, "other"))]
    return {"current-context": 1, "clusters": [cluster], "users": users, "contexts": contexts}
