"""Workers that exchange messages, fail, stop and connect late: real processes and real connections."""

import os
import signal
import socket
import threading

import pytest

from caloscale.errors import PeerLostError
from caloscale.ports import free_ports
from caloscale.training.coordination import peers
from caloscale.training.coordination.peers import accept, connect, listen, rendezvous, split_address
from tests.training.processes import start_python

WORKER = """
import sys, time
from caloscale.training.coordination import peers
peers.HEARTBEAT_SECONDS, peers.HEARTBEAT_TIMEOUT_SECONDS, peers.EXIT_SECONDS = 0.1, SILENCE, 0.5
from caloscale.errors import PeerLostError
index, workers = int(sys.argv[1]), int(sys.argv[2])
if index == 0:
    server = peers.listen(0)
    print(server.getsockname()[1], flush=True)
    party = peers.accept(server, "key", workers)
else:
    party = peers.connect("127.0.0.1", int(sys.argv[3]), "key", index)
party.expect_heartbeats()
try:
    for step in range(10**9):
        words = party.all_gather({"step": step, "index": index})
        assert words == [{"step": step, "index": i} for i in range(workers)], words
        if step == 50:
            print("ready", flush=True)
        time.sleep(HANG if step == 60 else 0.001)
except PeerLostError as error:
    print(error, flush=True)
    sys.exit(error.exit_code)
"""


def start(workers, hang="0", silence="1000"):
    """Processes that send a message a millisecond; ``hang``: how long they then take, as in a collective.

    silence: seconds after which a silent peer has failed; more than a busy machine can keep a process waiting.
    """

    def one(*arguments):
        worker = WORKER.replace("HANG", hang).replace(" SILENCE,", f" {silence},")
        code = f"import sys; sys.argv = {['-', *map(str, arguments)]!r}\n{worker}"
        return start_python(code, stderr=None)

    chief = one(0, workers)
    port = chief.stdout.readline().strip()
    started = [chief, *(one(index, workers, port) for index in range(1, workers))]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    return started


def ends(processes):
    try:
        return [process.wait() for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("hang", ["0", "100"])
def test_survivors_of_a_killed_worker_leave(victim, hang):
    """Whether they wait for its message or hang in a step: exit code 138."""
    processes = start(3, hang)
    os.kill(processes[victim].pid, signal.SIGKILL)
    assert ends(processes) == [-signal.SIGKILL if index == victim else 138 for index in range(3)]


@pytest.mark.parametrize("victim", [0, 2])
def test_survivors_of_a_silent_worker_leave(victim):
    """A stopped process is like a network that is dead: the connection stays open, and nothing comes."""
    processes = start(3, silence="10")
    os.kill(processes[victim].pid, signal.SIGSTOP)
    survivors = [process for index, process in enumerate(processes) if index != victim]
    try:
        assert [process.wait() for process in survivors] == [138, 138]
    finally:
        processes[victim].kill()
        ends(processes)


def test_silence_and_leaving_take_less_than_a_minute():
    assert peers.HEARTBEAT_TIMEOUT_SECONDS + peers.EXIT_SECONDS + 2 * peers.HEARTBEAT_SECONDS < 60


@pytest.fixture
def three(monkeypatch):
    """Three workers in this process."""
    server, left = listen(0), []
    monkeypatch.setattr(peers, "_exit", left.append)
    port = server.getsockname()[1]
    found = together(lambda i: connect("127.0.0.1", port, "key", i) if i else accept(server, "key", 3))
    yield found
    for one in found:
        one.close()
    assert left == []


def together(action):
    results = {}
    threads = [threading.Thread(target=lambda i=i: results.update({i: action(i)})) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    return [results[i] for i in range(3)]


def test_all_hear_all_in_order(three):
    words = [{"step": 4, "text": name} for name in ("a", "b", "c")]
    assert together(lambda i: three[i].all_gather(words[i])) == [words] * 3


@pytest.mark.parametrize("size", [0, 1, 3 * 2**20 + 17])
def test_what_the_chief_has_reaches_all(three, size):
    content = os.urandom(size)
    assert together(lambda i: three[i].broadcast(content if i == 0 else None)) == [content] * 3
    assert together(lambda i: three[i].all_gather({"i": i}))[2] == [{"i": i} for i in range(3)]


def test_one_that_said_goodbye_is_not_lost(three):
    three[1].close()
    with pytest.raises(PeerLostError, match="worker 1 is gone"):
        three[0].all_gather({})
    assert three[0].failed is None


def test_strangers_are_not_let_in():
    server = listen(0)
    port = server.getsockname()[1]
    strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    strangers[1].close()
    strangers[2].sendall(b"\x00\x00\x00\x033 1")
    strangers[3].sendall(b"\x00\x00\x00\x04\xc3\xa9 1")
    found = {}
    thread = threading.Thread(target=lambda: found.update({0: accept(server, "key", 2)}))
    thread.start()
    other = connect("127.0.0.1", port, "key", 1)
    thread.join(600)
    assert list(found[0].connections) == [1]
    other.close()
    found[0].close()
    for stranger in strangers:
        stranger.close()


def test_one_that_does_not_come(monkeypatch):
    monkeypatch.setattr(peers, "RENDEZVOUS_SECONDS", 0.2)
    with pytest.raises(PeerLostError, match="worker 1 did not connect") as error:
        accept(listen(0), "key", 3)
    assert error.value.exit_code == 138


def test_nobody_listens(monkeypatch):
    monkeypatch.setattr(peers, "RENDEZVOUS_SECONDS", 0.2)
    with pytest.raises(PeerLostError, match="worker 0 cannot be reached"):
        connect("127.0.0.1", 1, "key", 1)


def test_workers_meet_on_the_port_that_tensorflow_takes_over():
    """Whoever comes first waits; afterwards another server can listen there, while the workers stay connected."""
    port = free_ports(1)[0]
    cluster = [f"127.0.0.1:{port}", "127.0.0.1:2", "127.0.0.1:3"]
    found = {}

    def come(index):
        found[index] = rendezvous(cluster, index)

    threads = [threading.Thread(target=come, args=(index,)) for index in (2, 1, 0)]
    for thread in threads:
        thread.start()
        thread.join(0.3)
    for thread in threads:
        thread.join(600)
    with socket.create_server(("", port)):
        assert together(lambda i: found[i].all_gather({"i": i}))[1] == [{"i": i} for i in range(3)]
    for one in found.values():
        one.close()
    assert rendezvous(["127.0.0.1:1"], 0).connections == {}


def test_a_port_that_is_taken():
    with socket.create_server(("", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PeerLostError, match=f"cannot listen on its port {port}"):
            rendezvous([f"127.0.0.1:{port}", "127.0.0.1:2"], 0)


def test_addresses():
    assert [split_address(address) for address in ("a-worker-0.ns.svc:2222", "10.0.0.1:80", "[fe80::1]:2222")] == [
        ("a-worker-0.ns.svc", 2222),
        ("10.0.0.1", 80),
        ("fe80::1", 2222),
    ]
