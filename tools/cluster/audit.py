"""Requests to the API server as its audit log records them."""

from __future__ import annotations

import json
from dataclasses import dataclass

WRITES = ("create", "update", "patch", "delete", "deletecollection")


@dataclass(frozen=True)
class Request:
    """One request, answered or (a watch) under way."""

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
    agent: str
    """What the client calls itself."""

    @property
    def writes(self) -> bool:
        """Whether it changes something."""
        return self.verb in WRITES


def read_request(line: str) -> Request:
    """A request of a line of the log."""
    event = json.loads(line)
    target = event.get("objectRef", {})
    resource = "/".join(part for part in (target.get("resource", ""), target.get("subresource", "")) if part)
    return Request(
        user=event["user"]["username"],
        verb=event["verb"],
        group=target.get("apiGroup", ""),
        resource=resource,
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
        allowed=event.get("annotations", {}).get("authorization.k8s.io/decision") != "forbid",
        agent=event.get("userAgent", ""),
    )
