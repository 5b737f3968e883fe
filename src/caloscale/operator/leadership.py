"""One active operator: whoever holds the lease."""

from __future__ import annotations

import datetime as dt
import logging
import threading
from collections.abc import Callable
from typing import Any

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from caloscale.connection import CONFLICT, Connection

log = logging.getLogger(__name__)

NAME = "caloscale-operator"
LEASE_SECONDS = 15
RENEW_SECONDS = 4.0


def may_take(lease: dict[str, Any] | None, identity: str, now: dt.datetime) -> bool:
    """Whether a lease is free, ours or has run out."""
    if lease is None:
        return True
    spec = lease.get("spec") or {}
    holder, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    if not holder or holder == identity or renewed is None:
        return True
    age = (now - dt.datetime.fromisoformat(renewed)).total_seconds()
    return bool(age > spec.get("leaseDurationSeconds", LEASE_SECONDS))


class Leadership:
    """Takes the lease, keeps it, and says when it is lost."""

    def __init__(self, connection: Connection, namespace: str, identity: str) -> None:
        self._connection, self._namespace, self._identity = connection, namespace, identity
        self._stop = threading.Event()

    def acquire(self) -> None:
        """Wait until the lease is ours."""
        told = False
        while not self._take():
            if not told:
                log.info("another operator is active; waiting")
                told = True
            self._stop.wait(RENEW_SECONDS / 2)

    def keep(self, lost: Callable[[], None]) -> None:
        """Renew the lease until `release`; ``lost`` is called when somebody else has it, or it has run out."""
        held = dt.datetime.now(dt.UTC)
        while not self._stop.wait(RENEW_SECONDS):
            if self._take():
                held = dt.datetime.now(dt.UTC)
            elif (dt.datetime.now(dt.UTC) - held).total_seconds() > LEASE_SECONDS - RENEW_SECONDS:
                lost()
                return

    def release(self) -> None:
        """Give the lease back, so that a successor need not wait."""
        self._stop.set()
        try:
            lease = self._connection.get("Lease", self._namespace, NAME)
            if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                self._change(lease, {"holderIdentity": ""})
        except (ApiException, HTTPError) as error:
            log.info("the lease was not given back: %s", error)

    def _take(self) -> bool:
        now = dt.datetime.now(dt.UTC)
        try:
            lease = self._connection.get("Lease", self._namespace, NAME)
            if not may_take(lease, self._identity, now):
                return False
            spec = {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            }
            if lease is None:
                metadata = {"name": NAME, "namespace": self._namespace}
                manifest = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
                self._connection.create(manifest)
            else:
                self._change(lease, spec)
        except ApiException as error:
            if error.status != CONFLICT:
                log.warning("the lease cannot be had: %s", error.reason)
            return False
        except (HTTPError, OSError) as error:
            log.warning("the lease cannot be had: %s", error)
            return False
        return True

    def _change(self, lease: dict[str, Any], spec: dict[str, Any]) -> None:
        """Refused when somebody else changed it meanwhile."""
        metadata = {"resourceVersion": lease["metadata"]["resourceVersion"]}
        self._connection.merge("Lease", self._namespace, NAME, {"metadata": metadata, "spec": spec})
