"""One active operator: whoever holds the lease, as in client-go's tools/leaderelection.

Whether a lease has run out is counted from the moment at which this process saw it change, on its own monotonic clock:
the clocks of two machines need not agree. A leader renews with requests that end before its deadline. After the
deadline `Election.leads` is false and the connection refuses to write (`Connection.may_write`), also in a process that
was stopped and has come back. A write that was begun before ends before another operator may take the lease.
"""

import datetime as dt
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from caloscale.connection import CONFLICT, WRITE_SECONDS, Connection, message_of

log = logging.getLogger(__name__)

NAME = "caloscale-operator"
LEASE_SECONDS = 15.0
"""Time without a renewal after which a lease may be taken, s."""
RENEW_SECONDS = LEASE_SECONDS - WRITE_SECONDS
"""Time without a renewal after which a leader stops writing, s: a write that it has begun ends before the lease."""
RETRY_SECONDS = 2.0
"""Pause between two tries, s."""


class Election:
    """Takes the lease, renews it, and reports its loss."""

    def __init__(
        self,
        connection: Connection,
        namespace: str,
        identity: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], dt.datetime] = lambda: dt.datetime.now(dt.UTC),
    ) -> None:
        self._connection, self._namespace, self._identity = connection, namespace, identity
        self._clock, self._now = clock, now
        self._stop = threading.Event()
        self._requests = threading.Lock()
        self._seen: tuple[dict[str, Any], float] | None = None
        self._renewed = float("-inf")

    @property
    def leads(self) -> bool:
        """Whether this process may write: its lease was renewed not long ago."""
        return self._clock() - self._renewed < RENEW_SECONDS

    def acquire(self, ended: threading.Event, ready: Callable[[], bool] = lambda: True) -> bool:
        """Wait until the lease is ours, at first (until ``ready``) only looking at it; False: the process is to end."""
        waits = False
        while not self.renew(take=(taken := ready())):
            if taken and not waits:
                log.info("another operator is active; waiting")
                waits = True
            if ended.wait(self._pause()):
                return False
        return True

    def _pause(self) -> float:
        """Until the next try, s: a lease that runs out before is tried then."""
        spec, since = self._seen or ({}, self._clock())
        left = since + spec.get("leaseDurationSeconds", LEASE_SECONDS) - self._clock()
        return min(left, RETRY_SECONDS) if left > 0 else RETRY_SECONDS

    def keep(self, lost: Callable[[], None]) -> None:
        """Renew the lease until `release`; ``lost`` is called when it was not renewed in time."""
        while not self._stop.wait(RETRY_SECONDS):
            # checked first: whoever was stopped for long must not renew and proceed with what it knew before
            if not self.leads or not (self.renew() or self.leads):
                if not self._stop.is_set():  # a lease that was given back is not lost
                    lost()
                return

    def release(self) -> None:
        """Give the lease back, after a renewal that is on its way, so that a successor need not wait."""
        self._stop.set()
        with self._requests:
            if not self.leads:
                return
            self._renewed = float("-inf")
            try:
                lease = self._connection.get("Lease", self._namespace, NAME)
                if lease is not None and (lease.get("spec") or {}).get("holderIdentity") == self._identity:
                    self._change(lease, {"holderIdentity": "", "leaseDurationSeconds": 1})
            except (ApiException, HTTPError, OSError) as error:
                log.info("the lease was not given back: %s", message_of(error))

    def renew(self, *, take: bool = True) -> bool:
        """Take or renew the lease; False when another operator has it, it was given back, or no answer comes.

        ``take``: false to look at it only.
        """
        with self._requests:
            begun = self._clock()
            if self._stop.is_set():
                return False
            try:
                lease = self._connection.get("Lease", self._namespace, NAME)
                if not (self._may_take(lease) and take):
                    return False
                spec = {
                    "holderIdentity": self._identity,
                    "leaseDurationSeconds": int(LEASE_SECONDS),
                    "renewTime": self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ"),  # for people
                }
                if lease is None:
                    metadata = {"name": NAME, "namespace": self._namespace}
                    manifest = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
                    self._connection.create({**manifest, "spec": spec})
                else:
                    self._change(lease, spec)
            except (ApiException, HTTPError, OSError) as error:
                if not (isinstance(error, ApiException) and error.status == CONFLICT):
                    log.warning("the lease cannot be renewed: %s", message_of(error))
                return False
            self._renewed = begun
            return True

    def _may_take(self, lease: dict[str, Any] | None) -> bool:
        """Whether a lease is free, ours, or was not seen to change for its duration."""
        spec = (lease or {}).get("spec") or {}
        if self._seen is None or self._seen[0] != spec:
            self._seen = (spec, self._clock())
        if spec.get("holderIdentity") in (None, "", self._identity):
            return True
        return self._clock() - self._seen[1] >= spec.get("leaseDurationSeconds", LEASE_SECONDS)

    def _change(self, lease: dict[str, Any], spec: dict[str, Any]) -> None:
        """Refused when somebody else changed it meanwhile."""
        metadata = {"resourceVersion": lease["metadata"]["resourceVersion"]}
        self._connection.merge("Lease", self._namespace, NAME, {"metadata": metadata, "spec": spec})
