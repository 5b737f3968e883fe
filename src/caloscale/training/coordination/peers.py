"""Messages between the workers of a training, in addition to TensorFlow's: one short message after every step.

Every worker has one connection to worker 0. By it they agree on when to save and to stop, worker 0 sends the checkpoint
that all resume from (only worker 0 needs the disk), and the failure of a worker is noticed at once (its connection
closes) or when its heartbeats stop (it, or its network, is dead), while a collective would hang.
"""

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
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from caloscale.errors import PeerLostError

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 2.0
"""Time between two heartbeats."""
HEARTBEAT_TIMEOUT_SECONDS = 20.0
"""A worker that has sent nothing for so long has failed."""
EXIT_SECONDS = 20.0
"""Time that this process has to end by itself after another failed; with the timeout above less than a minute."""
RENDEZVOUS_SECONDS = 600.0
"""How long a worker waits for all others at the start: nodes become ready, and images are loaded, one after another."""
SETUP_TIMEOUT_SECONDS = 120.0
"""The timeout of heartbeats while TensorFlow sets up its own connections: no Python runs meanwhile."""
_CHUNK = 2**20
_HEARTBEAT, _MESSAGE, _MESSAGES, _DATA, _CLOSED = b"B", b"W", b"L", b"D", b"X"

Message = dict[str, Any]


class Peers:
    """The workers of a training; a training of one worker has none, and every call returns at once.

    connections: of worker 0 to all others by their index, of another worker to worker 0.
    """

    def __init__(self, index: int = 0, connections: dict[int, Connection] | None = None) -> None:
        self.index, self.connections = index, connections or {}
        self.failed: int | None = None
        """Number of the first worker that failed."""
        self._timeout = SETUP_TIMEOUT_SECONDS
        self._closing = threading.Event()
        self._closed: set[int] = set()
        self._received: dict[int, queue.SimpleQueue[tuple[bytes, bytes] | None]] = {}
        self._locks = {peer: threading.Lock() for peer in self.connections}
        for peer in self.connections:
            self._received[peer] = queue.SimpleQueue()
            threading.Thread(target=self._receive, args=(peer,), name=f"peer-{peer}", daemon=True).start()
        if self.connections:
            threading.Thread(target=self._send_heartbeats, name="heartbeat", daemon=True).start()

    @property
    def is_chief(self) -> bool:
        """Whether this is worker 0, which decides and writes."""
        return self.index == 0

    def expect_heartbeats(self) -> None:
        """TensorFlow is set up: from now on the timeout is HEARTBEAT_TIMEOUT_SECONDS."""
        self._timeout = HEARTBEAT_TIMEOUT_SECONDS

    def all_gather(self, message: Message) -> list[Message]:
        """The messages of all workers, by index. A collective: every worker calls it. Raises PeerLostError."""
        if not self.connections:
            return [message]
        if self.is_chief:
            messages = [message, *(json.loads(self._next(peer, _MESSAGE)) for peer in sorted(self.connections))]
            for peer in self.connections:
                self._send(peer, _MESSAGES + json.dumps(messages).encode())
            return messages
        self._send(0, _MESSAGE + json.dumps(message).encode())
        return list(json.loads(self._next(0, _MESSAGES)))

    def broadcast(self, content: bytes | None) -> bytes:
        """The content that worker 0 gives, at every worker. A collective. Raises PeerLostError."""
        if self.is_chief:
            content = content or b""
            for peer in self.connections:
                self._send(peer, _DATA + str(len(content)).encode())
                for first in range(0, len(content), _CHUNK):
                    self._send(peer, _DATA + content[first : first + _CHUNK])
            return content
        chunks, left = [], int(self._next(0, _DATA))
        while left > 0:
            chunks.append(self._next(0, _DATA))
            left -= len(chunks[-1])
        return b"".join(chunks)

    def close(self) -> None:
        """Leave the training at its end: the other workers do not take it for a failure."""
        self._closing.set()
        for peer in self.connections:
            with suppress(PeerLostError):
                self._send(peer, _CLOSED)

    def disconnect(self) -> None:
        """Leave after an error: the other workers notice the failure at once, even when this process ends slowly."""
        self._closing.set()
        for connection in self.connections.values():
            with suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as connected:
                connected.shutdown(socket.SHUT_RDWR)

    def check(self) -> None:
        """Raise PeerLostError when a worker has failed."""
        if self.failed is not None:
            raise PeerLostError(self.failed)

    def _next(self, peer: int, kind: bytes) -> bytes:
        self.check()
        message = self._received[peer].get()
        if message is None:
            self.check()
            raise PeerLostError(peer)
        if message[0] != kind:
            raise PeerLostError(peer, f"sent a message of kind {message[0]!r} instead of {kind!r}")
        return message[1]

    def _send(self, peer: int, message: bytes) -> None:
        try:
            with self._locks[peer]:
                self.connections[peer].send_bytes(message)
        except OSError as error:
            if peer not in self._closed:
                self._report_failure(peer, "cannot be reached")
            raise PeerLostError(peer) from error

    def _send_heartbeats(self) -> None:
        while not self._closing.wait(HEARTBEAT_SECONDS):
            for peer in self.connections.keys() - self._closed:
                try:
                    self._send(peer, _HEARTBEAT)
                except PeerLostError:
                    return

    def _receive(self, peer: int) -> None:
        connection, received = self.connections[peer], self._received[peer]
        try:
            last = time.monotonic()
            while (silence := time.monotonic() - last) < self._timeout:
                if not connection.poll(HEARTBEAT_SECONDS):
                    continue
                message = connection.recv_bytes()
                last = time.monotonic()
                kind, content = message[:1], message[1:]
                if kind == _CLOSED:
                    self._closed.add(peer)
                    received.put(None)
                    return
                if kind != _HEARTBEAT:
                    received.put((kind, content))
            reason = f"sent no heartbeat for {silence:.0f} s"
        except (EOFError, OSError):
            reason = "closed its connection"
        if not self._closing.is_set():
            self._report_failure(peer, reason)

    def _report_failure(self, peer: int, reason: str) -> None:
        """Wake all waiting calls, and end this process after EXIT_SECONDS, whatever hangs in it."""
        if self.failed is None:
            self.failed = peer
            log.error("worker %d %s; exiting with code %d", peer, reason, PeerLostError.exit_code)
            timer = threading.Timer(EXIT_SECONDS, _exit, (PeerLostError.exit_code,))
            timer.daemon = True
            timer.start()
        for received in self._received.values():
            received.put(None)


def listen(port: int) -> socket.socket:
    """The socket of worker 0, on the port that TensorFlow takes over afterwards. Raises OSError."""
    dual = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if dual else socket.AF_INET
    return socket.create_server(("", port), family=family, dualstack_ipv6=dual)


def accept(server: socket.socket, key: str, workers: int) -> Peers:
    """Wait for all other workers. PeerLostError: one did not connect within RENDEZVOUS_SECONDS.

    key: the first message of a worker; a worker of another training has another key.
    """
    deadline = time.monotonic() + RENDEZVOUS_SECONDS
    connections: dict[int, Connection] = {}
    with server:
        while len(connections) < workers - 1:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                accepted, _ = server.accept()
            except TimeoutError as error:
                missing = sorted(set(range(1, workers)) - connections.keys())
                raise PeerLostError(missing[0], f"did not connect within {RENDEZVOUS_SECONDS:g} s") from error
            connection = _wrapped(accepted)
            index = _index_of(connection, key, workers)
            if index is not None:
                connections[index] = connection
    return Peers(0, connections)


def _index_of(connection: Connection, key: str, workers: int) -> int | None:
    """Index of the worker at the other end; None where it is not a worker of this training."""
    with suppress(OSError, EOFError, ValueError):
        if connection.poll(5):
            its_key, _, index = connection.recv_bytes(100).partition(b" ")
            if hmac.compare_digest(its_key, key.encode()) and 0 < int(index) < workers:
                return int(index)
    return None


def connect(host: str, port: int, key: str, index: int) -> Peers:
    """Connect worker ``index`` to worker 0, which may start later. PeerLostError: not within RENDEZVOUS_SECONDS."""
    deadline = time.monotonic() + RENDEZVOUS_SECONDS
    while True:
        try:
            connection = _wrapped(socket.create_connection((host, port), timeout=10))
            connection.send_bytes(f"{key} {index}".encode())
            return Peers(index, {0: connection})
        except OSError as error:
            if time.monotonic() > deadline:
                raise PeerLostError(0, f"cannot be reached at {host}:{port}: {error}") from error
            time.sleep(0.2)


def rendezvous(cluster: Sequence[str], index: int) -> Peers:
    """The workers of a cluster (``host:port``, the same list everywhere), once connected. Raises PeerLostError."""
    if len(cluster) < 2:
        return Peers()
    host, port = split_address(cluster[0])
    key = hashlib.sha256(json.dumps(list(cluster)).encode()).hexdigest()
    if index == 0:
        try:
            server = listen(port)
        except OSError as error:
            raise PeerLostError(0, f"cannot listen on its port {port}: {error}") from error
        peers = accept(server, key, len(cluster))
    else:
        peers = connect(host, port, key, index)
    peers.all_gather({"index": index})
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
    print(f"error: another worker has failed; this one exits with code {code}", file=sys.stderr, flush=True)
    os._exit(code)
