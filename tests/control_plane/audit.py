"""What the service accounts of caloscale-system ask of the API server, as its audit log has it."""

import json
from typing import NamedTuple

from tools.cluster import ControlPlane


class Request(NamedTuple):
    """A request to the API server as its audit log records it, answered or (a watch) under way."""

    user: str
    verb: str
    group: str
    resource: str
    """With the subresource, such as trainingruns/status; empty: no resource (discovery, health)."""
    namespace: str
    name: str
    code: int
    """HTTP status; 403 also says that a namespace is on its way out, or that an admission policy refuses."""
    allowed: bool
    """Whether the user may: what RBAC says, whatever came of it."""


def requests(plane: ControlPlane, since: int = 0) -> list[Request]:
    """All of them from the `since`-th request on."""
    log = plane.servers.audit_log
    text = log.read_text(encoding="utf-8") if log.exists() else ""
    # The last line may still be on its way.
    return [_request(line) for line in text.splitlines(keepends=True)[since:] if line.endswith("\n")]


def _request(line: str) -> Request:
    """A request of a line of the audit log."""
    event = json.loads(line)
    target = event.get("objectRef", {})
    return Request(
        user=event["user"]["username"],
        verb=event["verb"],
        group=target.get("apiGroup", ""),
        resource="/".join(part for part in (target.get("resource", ""), target.get("subresource", "")) if part),
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
        allowed=event.get("annotations", {}).get("authorization.k8s.io/decision") != "forbid",
    )
