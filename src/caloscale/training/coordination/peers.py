"""What the workers of a training say to each other beside TensorFlow: one short word before every step.

Every worker holds one connection to worker 0. With it they agree on when to save and when to stop, worker 0 hands
out the checkpoint that all go on from (so that only worker 0 needs the disk), and a worker that is gone is noticed at
once (its connection closes) or after a silence (it, or its network, is dead), while a collective would hang.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from caloscale.errors import PeerLostError

log = logging.getLogger(__name__)

BEAT_SECONDS = 2.0
"""Time between two signs of life."""
SILENCE_SECONDS = 20.0
"""A worker that was not heard of for so long is lost."""
LEAVE_SECONDS = 20.0
"""Time that this process has to end by itself after another was lost; together with the silence below a minute."""
GATHERING_SECONDS = 600.0
"""How long a worker waits for all others at the start: machines come, and images are loaded, one after the other."""
SETTLING_SECONDS = 120.0
"""The silence that is allowed while TensorFlow sets up its own connections: no Python runs meanwhile."""
_CHUNK = 2**20
_BEAT, _WORD, _WORDS, _DATA, _BYE = b"B", b"W", b"L", b"D", b"X"

Word = dict[str, Any]


class Peers:
    """The workers of a training; a training of one worker has none and every call returns at once.

    connections: of worker 0 to all others by their index, of another worker to worker 0. leave: ends this process
    with an exit code, at once.
    """

    def __init__(
        self,
        index: int = 0,
        connections: dict[int, Connection] | None = None,
        leave: Callable[[int], Any] | None = None,
    ) -> None:
        self.index, self.connections = index, connections or {}
        self.lost: int | None = None
        self._silence = SETTLING_SECONDS
        self._leave = leave or _exit
        self._closed = threading.Event()
        self._gone: set[int] = set()
        self._received: dict[int, queue.SimpleQueue[tuple[bytes, bytes] | None]] = {}
        self._locks = {peer: threading.Lock() for peer in self.connections}
        for peer in self.connections:
            self._received[peer] = queue.SimpleQueue()
            threading.Thread(target=self._listen, args=(peer,), name=f"hears-{peer}", daemon=True).start()
        if self.connections:
            threading.Thread(target=self._beat, name="signs-of-life", daemon=True).start()

    @property
    def is_chief(self) -> bool:
        """Whether this is worker 0, which decides and writes."""
        return self.index == 0

    def settle(self) -> None:
        """TensorFlow is set up: from now on silence counts."""
        self._silence = SILENCE_SECONDS

    def gather(self, word: Word) -> list[Word]:
        """The words of all workers, in their order; every worker calls this equally often. Raises PeerLostError."""
        if not self.connections:
            return [word]
        if self.is_chief:
            words = [word, *(json.loads(self._next(peer, _WORD)) for peer in sorted(self.connections))]
            for peer in self.connections:
                self._send(peer, _WORDS + json.dumps(words).encode())
            return words
        self._send(0, _WORD + json.dumps(word).encode())
        return list(json.loads(self._next(0, _WORDS)))

    def share(self, content: bytes | None) -> bytes:
        """What worker 0 has, at every worker. Raises PeerLostError."""
        if self.is_chief:
            content = content or b""
            for peer in self.connections:
                self._send(peer, _DATA + str(len(content)).encode())
                for first in range(0, len(content), _CHUNK):
                    self._send(peer, _DATA + content[first : first + _CHUNK])
            return content
        pieces, left = [], int(self._next(0, _DATA))
        while left > 0:
            pieces.append(self._next(0, _DATA))
            left -= len(pieces[-1])
        return b"".join(pieces)

    def close(self) -> None:
        """Say goodbye: the others do not need this worker any more. One that fails does not, and is missed."""
        self._closed.set()
        for peer in self.connections:
            try:
                self._send(peer, _BYE)
            except PeerLostError:
                continue

    def abandon(self) -> None:
        """Leave without a goodbye: the others notice at once, even when this process takes long to end."""
        self._closed.set()
        for connection in self.connections.values():
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as connected:
                connected.shutdown(socket.SHUT_RDWR)

    def check(self) -> None:
        """PeerLostError when a worker is lost."""
        if self.lost is not None:
            raise PeerLostError(self.lost)

    def _next(self, peer: int, kind: bytes) -> bytes:
        self.check()
        message = self._received[peer].get()
        if message is None:
            self.check()
            raise PeerLostError(peer)
        if message[0] != kind:
            raise PeerLostError(peer, f"said {message[0]!r} where {kind!r} was due")
        return message[1]

    def _send(self, peer: int, message: bytes) -> None:
        try:
            with self._locks[peer]:
                self.connections[peer].send_bytes(message)
        except OSError as error:
            if peer not in self._gone:
                self._miss(peer)
            raise PeerLostError(peer) from error

    def _beat(self) -> None:
        while not self._closed.wait(BEAT_SECONDS):
            for peer in self.connections.keys() - self._gone:
                try:
                    self._send(peer, _BEAT)
                except PeerLostError:
                    return

    def _listen(self, peer: int) -> None:
        connection, received = self.connections[peer], self._received[peer]
        try:
            heard = time.monotonic()
            while (silence := time.monotonic() - heard) < self._silence:
                if not connection.poll(BEAT_SECONDS):
                    continue
                message = connection.recv_bytes()
                heard = time.monotonic()
                kind, content = message[:1], message[1:]
                if kind == _BYE:
                    self._gone.add(peer)
                    received.put(None)
                    return
                if kind != _BEAT:
                    received.put((kind, content))
            reason = f"was silent for {silence:.0f} s"
        except (EOFError, OSError):
            reason = "closed its connection"
        if not self._closed.is_set():
            self._miss(peer, reason)

    def _miss(self, peer: int, reason: str = "cannot be reached") -> None:
        """Wake whoever waits, and see to it that this process ends, whatever hangs in it."""
        if self.lost is None:
            self.lost = peer
            log.error("worker %d %s; leaving with exit code %d", peer, reason, PeerLostError.exit_code)
            timer = threading.Timer(LEAVE_SECONDS, self._leave, (PeerLostError.exit_code,))
            timer.daemon = True
            timer.start()
        for received in self._received.values():
            received.put(None)


class Meeting:
    """Where worker 0 waits for the others: on the port of its own that TensorFlow takes over afterwards.

    key: what a worker says first; one of another training does not know it.
    """

    def __init__(self, port: int, key: str) -> None:
        dual = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if dual else socket.AF_INET
        self._server = socket.create_server(("", port), family=family, dualstack_ipv6=dual)
        self.port, self.key = int(self._server.getsockname()[1]), key

    def wait(self, workers: int, leave: Callable[[int], Any] | None = None) -> Peers:
        """All other workers, once they have connected. PeerLostError: one did not within GATHERING_SECONDS."""
        deadline = time.monotonic() + GATHERING_SECONDS
        connections: dict[int, Connection] = {}
        with self._server:
            while len(connections) < workers - 1:
                self._server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    accepted, _ = self._server.accept()
                except TimeoutError as error:
                    missing = sorted(set(range(1, workers)) - connections.keys())
                    raise PeerLostError(missing[0], f"did not come within {GATHERING_SECONDS:g} s") from error
                connection = _wrapped(accepted)
                index = self._who(connection, workers)
                if index is not None:
                    connections[index] = connection
        return Peers(0, connections, leave)

    def _who(self, connection: Connection, workers: int) -> int | None:
        """Index of the worker at the other end; None for a stranger."""
        try:
            if not connection.poll(5):
                return None
            key, _, index = connection.recv_bytes(100).decode().partition(" ")
            if hmac.compare_digest(key, self.key) and 0 < int(index) < workers:
                return int(index)
        except (OSError, EOFError, ValueError):
            pass
        return None


def join(host: str, port: int, key: str, index: int, leave: Callable[[int], Any] | None = None) -> Peers:
    """Connect worker ``index`` to worker 0, which may start later. PeerLostError: not within GATHERING_SECONDS."""
    deadline = time.monotonic() + GATHERING_SECONDS
    while True:
        try:
            connection = _wrapped(socket.create_connection((host, port), timeout=10))
            connection.send_bytes(f"{key} {index}".encode())
            return Peers(index, {0: connection}, leave)
        except OSError as error:
            if time.monotonic() > deadline:
                raise PeerLostError(0, f"cannot be reached at {host}:{port}: {error}") from error
            time.sleep(0.2)


def meet(cluster: Sequence[str], index: int) -> Peers:
    """The workers of a cluster (``host:port``, the same list everywhere), connected, each of them at this point.

    Raises PeerLostError.
    """
    if len(cluster) < 2:
        return Peers()
    host, port = split_address(cluster[0])
    key = hashlib.sha256(json.dumps(list(cluster)).encode()).hexdigest()
    if index == 0:
        try:
            meeting = Meeting(port, key)
        except OSError as error:
            raise PeerLostError(0, f"cannot listen on its port {port}: {error}") from error
        peers = meeting.wait(len(cluster))
    else:
        peers = join(host, port, key, index)
    peers.gather({"here": index})
    return peers


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port``, brackets of IPv6 addresses taken off."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _wrapped(connected: socket.socket) -> Connection:
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Connection(connected.detach())


def _exit(code: int) -> None:
    print(f"error: another worker is lost; this one leaves (exit code {code})", file=sys.stderr, flush=True)
    os._exit(code)
