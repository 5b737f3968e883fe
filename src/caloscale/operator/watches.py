"""Lists and watches of the kinds that the operator follows, a thread each."""

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from caloscale.cluster import names
from caloscale.connection import FORBIDDEN, GONE, SILENT_SECONDS, Connection, Page, is_passing, message_of

log = logging.getLogger(__name__)

RETRY_SECONDS = 2.0
"""Pause after an error, s."""
MOST_RESUMED = 3
"""Errors in a row after which a watch is still resumed; after more, everything is listed, as after GONE."""
NOT_INSTALLED_SECONDS = 30.0
"""Time between two looks for a kind that the cluster does not know, or that it refuses again, s."""
OURS = names.RUN_LABEL
WATCHED: dict[str, dict[str, str]] = {
    names.KIND: {},
    "Node": {},
    "Pod": {},
    names.PROGRESS_KIND: {},
    "TFJob": {"selector": OURS},
    "JobSet": {"selector": OURS},
    "TrainJob": {"selector": OURS},
    "MPIJob": {"selector": OURS},
    "Event": {"fields": "type=Warning"},
}
"""Kinds that are followed, and which of their objects."""
WHOLE_CLUSTER = ("Node", "Pod")
"""Kinds that are watched in all namespaces: all pods use capacity."""

Notice = Callable[[str, dict[str, Any], bool], None]
"""Takes in an event: kind, object, whether it is gone."""
Listed = Callable[[str, str, Iterator[Page]], int]
"""Takes in a list: kind, namespace (empty: all), pages; returns its version."""


class Watches:
    """A thread for each kind and namespace: one list, then watches, each from where the one before ended."""

    def __init__(
        self, connection: Connection, notice: Notice, listed: Listed, namespaces: tuple[str, ...], seconds: float
    ) -> None:
        """``namespaces`` of the runs, empty for all. ``seconds``: length of a watch, s."""
        self._connection, self._notice, self._listed, self._seconds = connection, notice, listed, seconds
        self._stop = threading.Event()
        of_kind = {kind: ("",) if kind in WHOLE_CLUSTER else namespaces or ("",) for kind in WATCHED}
        self._scopes = [(kind, name) for kind, spaces in of_kind.items() for name in spaces]
        self._namespaces = frozenset(namespaces)
        self._unlisted, self._to_list = set(self._scopes), set[tuple[str, str]]()
        self._refused: set[tuple[str, str]] = set()
        self._threads = [
            threading.Thread(target=self._follow, args=scope, name=f"watch {' '.join(scope)}", daemon=True)
            for scope in self._scopes
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Inform nobody any more."""
        self._stop.set()

    def list_again(self, kind: str) -> None:
        """List a kind again when its watch ends, within `seconds`."""
        self._to_list |= {scope for scope in self._scopes if scope[0] == kind}

    def are_listed(self) -> bool:
        """Whether everything was listed once.

        A namespace that the operator may not read, such as one that was deleted with its RoleBinding, keeps nobody
        waiting as long as another one can be read: its runs are not known, and are listed when all else of it is.
        """
        refused = {namespace for _, namespace in self._refused.copy()} & self._namespaces
        unlisted = {namespace for _, namespace in self._unlisted.copy()}
        return unlisted <= refused and (not refused or refused != self._namespaces)

    def are_alive(self) -> bool:
        """Whether all threads run, or none was started yet."""
        return all(thread.ident is None or thread.is_alive() for thread in self._threads)

    def _follow(self, kind: str, namespace: str) -> None:
        while self._is_later(kind, namespace) and not self._stop.is_set():
            self._stop.wait(0.1)
        version = errors = 0
        while not self._stop.is_set():
            if (kind, namespace) in self._to_list:
                self._to_list.discard((kind, namespace))
                version = 0
            before, pause = version, 0.0
            try:
                if version:
                    for newer in self._watch(kind, namespace, version):
                        version, errors = newer, 0
                    pause = RETRY_SECONDS if version == before else 0.0  # not even a bookmark came
                else:
                    version, errors = self._list(kind, namespace), 0
                    pause = 0.0 if version else NOT_INSTALLED_SECONDS
            except (ApiException, HTTPError, OSError) as error:
                pause, errors = RETRY_SECONDS, errors + 1
                if isinstance(error, ApiException) and error.status == GONE:
                    version, pause = 0, RETRY_SECONDS if not before else 0.0
                else:
                    log.warning("%s cannot be watched: %s", kind, message_of(error))
                    refused = isinstance(error, ApiException) and not is_passing(error)
                    if isinstance(error, ApiException) and error.status == FORBIDDEN:
                        pause = NOT_INSTALLED_SECONDS if (kind, namespace) in self._refused else RETRY_SECONDS
                        self._refused.add((kind, namespace))
                    version = 0 if refused or errors > MOST_RESUMED else version
            except Exception:
                log.exception("%s: an error of ours", kind)
                version, pause = 0, RETRY_SECONDS
            self._stop.wait(pause)

    def _is_later(self, kind: str, namespace: str) -> bool:
        """Whether others are listed first: a run is decided about from all that is its own, and a warning is kept where
        its run is known."""
        first = {"Event": set(WATCHED) - {"Event"}, names.KIND: set(WATCHED) - {"Event", names.KIND}}.get(kind, set())
        return any(other in first and where == namespace for other, where in self._unlisted.copy())

    def _list(self, kind: str, namespace: str) -> int:
        """The version of the list; 0: the cluster does not know the kind."""
        version = self._listed(kind, namespace, self._connection.pages(kind, namespace or None, **WATCHED[kind]))
        self._unlisted.discard((kind, namespace))
        self._refused.discard((kind, namespace))
        return version

    def _watch(self, kind: str, namespace: str, version: int) -> Iterator[int]:
        """The version of each event, once it is taken in; bookmarks have nothing else."""
        chosen = WATCHED[kind]
        # the API server has no events in its watch cache and sends no bookmarks of them: a quiet cluster says nothing
        seconds = min(self._seconds, SILENT_SECONDS / 2) if kind == "Event" else self._seconds
        for event in self._connection.watch(kind, namespace or None, version, seconds=seconds, **chosen):
            if self._stop.is_set():
                return
            if event["type"] != "BOOKMARK":
                self._notice(kind, event["object"], event["type"] == "DELETED")
            yield int(event["object"]["metadata"]["resourceVersion"])
