"""What happens in the cluster, kind by kind: listed, then watched, and listed anew from time to time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Any, Protocol

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from caloscale.cluster import names
from caloscale.connection import GONE, Connection, told

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
"""Pause after an error, s."""
NOT_INSTALLED_SECONDS = 30.0
"""A kind that the cluster does not know is looked for so often, s."""
OURS = names.RUN_LABEL
WATCHED: dict[str, dict[str, str]] = {
    names.KIND: {},
    "Node": {},
    "Pod": {},
    "ConfigMap": {"selector": OURS},
    "TFJob": {"selector": OURS},
    "JobSet": {"selector": OURS},
    "Event": {"fields": "type=Warning"},
}
"""Kinds that are followed, and which of their objects."""
WHOLE_CLUSTER = ("Node", "Pod")
"""Kinds that are followed everywhere: whoever runs on a node takes room."""


class Audience(Protocol):
    """Who is informed."""

    def notice(self, kind: str, raw: dict[str, Any], *, gone: bool = False) -> None:
        """An object is new, has changed or is gone."""

    def listed(self, kind: str, namespace: str, objects: Iterable[dict[str, Any]], version: int) -> None:
        """All objects of a kind, in a namespace (empty: in all), as they were at a version."""


class Watches:
    """A thread for each kind and namespace."""

    def __init__(self, connection: Connection, audience: Audience, namespaces: tuple[str, ...], seconds: float) -> None:
        """``namespaces``: those of the runs, empty for all; ``seconds``: everything is listed anew so often, s."""
        self._connection, self._audience, self._seconds = connection, audience, seconds
        self._stop = threading.Event()
        scopes = [(kind, "") for kind in WHOLE_CLUSTER]
        scopes += [(kind, name) for kind in WATCHED if kind not in WHOLE_CLUSTER for name in namespaces or ("",)]
        self._unlisted = set(scopes)
        self._threads = [
            threading.Thread(target=self._follow, args=scope, name=f"watch {' '.join(scope)}", daemon=True)
            for scope in scopes
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Inform nobody any more."""
        self._stop.set()

    def are_listed(self) -> bool:
        """Whether everything was listed once."""
        return not self._unlisted

    def are_alive(self) -> bool:
        """Whether all threads run, or none was started yet."""
        return all(thread.ident is None or thread.is_alive() for thread in self._threads)

    def _follow(self, kind: str, namespace: str) -> None:
        while kind == "Event" and any(other != "Event" for other, _ in self._unlisted) and not self._stop.is_set():
            self._stop.wait(0.1)  # a warning is kept where its run is known
        while not self._stop.is_set():
            try:
                pause = self._list_and_watch(kind, namespace)
            except (ApiException, HTTPError, OSError) as error:
                pause = RETRY_SECONDS
                if not (isinstance(error, ApiException) and error.status == GONE):
                    said = told(error) if isinstance(error, ApiException) else error
                    log.warning("%s cannot be watched: %s", kind, said)
            except Exception:
                log.exception("%s: an error of ours", kind)
                pause = RETRY_SECONDS
            self._stop.wait(pause)

    def _list_and_watch(self, kind: str, namespace: str) -> float:
        """Until it is time to list anew; returns a pause before that, s."""
        chosen = WATCHED[kind]
        objects, version = self._connection.snapshot(kind, namespace or None, **chosen)
        self._audience.listed(kind, namespace, objects, version)
        self._unlisted.discard((kind, namespace))
        if not version:
            return NOT_INSTALLED_SECONDS
        for event in self._connection.watch(kind, namespace or None, version, seconds=self._seconds, **chosen):
            if self._stop.is_set():
                return 0.0
            if event["type"] != "BOOKMARK":
                self._audience.notice(kind, event["object"], gone=event["type"] == "DELETED")
        return 0.0
