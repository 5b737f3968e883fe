"""An API server that answers as a test sets it up, for tests that need no real one."""

import json
from collections.abc import Iterator
from typing import Any

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

    def merge(self, kind: str, namespace: str, name: str, change: dict[str, Any]) -> None:
        self.changes.append(("merge", change))
