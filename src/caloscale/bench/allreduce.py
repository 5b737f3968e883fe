"""The bench of the all-reduces: worker processes on this machine, packed against per variable."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from tempfile import TemporaryFile

from caloscale.bench.machine import describe_machine
from caloscale.bench.results import AllReduceBench, AllReduceTime
from caloscale.bench.rounds import timing
from caloscale.errors import BenchError
from caloscale.ports import free_ports
from caloscale.progress import bar
from caloscale.spec import Run
from caloscale.tensorflow_import import load_tensorflow_quietly

WORKERS = (2, 4)
ROUNDS = 30
LONGEST_SECONDS = 600.0
"""Time after which workers that do not answer are ended."""
_PINGS, _TRANSFERS, _BYTES = 400, 12, 4 * 2**20
FLOAT_BYTES = 4

Shapes = list[list[int]]


def bench_allreduce(run: Run, *, workers: Sequence[int] = WORKERS, rounds: int | None = None) -> AllReduceBench:
    """Time the all-reduces of a step of the run's networks. Raises BenchError when a worker fails."""
    machine = describe_machine()
    tapes = gradient_shapes(run)
    latency, bandwidth = measure_loopback()
    times = []
    with bar(f"bench allreduce {run.model.network}", len(workers), "rings") as shown:
        for count in workers:
            seconds = _run_workers(count, tapes, rounds or ROUNDS)
            times.append(_time(count, tapes, seconds, latency, bandwidth))
            shown.update(1)
    return AllReduceBench(
        preset=run.model.network,
        tapes=len(tapes),
        latency_seconds=latency,
        bytes_per_second=bandwidth,
        workers=tuple(times),
        machine=machine,
    )


def gradient_shapes(run: Run) -> list[Shapes]:
    """Shapes of the gradients of each update of a step."""
    load_tensorflow_quietly()
    from caloscale.models import build, family_of

    shapes = {
        role: [[int(n) for n in weight.shape] for weight in network.trainable_variables]
        for role, network in build(run.model, run.data).items()
    }
    return [shapes[role] for role in family_of(run.model).reduced_roles(run)]


def _time(
    count: int, tapes: list[Shapes], seconds: dict[str, list[float]], latency: float, bandwidth: float
) -> AllReduceTime:
    sizes = [FLOAT_BYTES * sum(_product(shape) for shape in tape) for tape in tapes]
    return AllReduceTime(
        workers=count,
        tensors=sum(len(tape) for tape in tapes),
        bytes=sum(sizes),
        packed=timing(seconds["packed"]),
        per_variable=timing(seconds["perVariable"]),
        ratio=statistics.median(a / b for a, b in zip(seconds["perVariable"], seconds["packed"], strict=True)),
        ring_bytes=round(2 * (count - 1) / count * sum(sizes)),
        limit_seconds=sum(ring_seconds(size, count, latency, bandwidth) for size in sizes),
    )


def _product(shape: Sequence[int]) -> int:
    total = 1
    for n in shape:
        total *= n
    return total


def _run_workers(count: int, tapes: list[Shapes], rounds: int) -> dict[str, list[float]]:
    """Start the workers, wait for them, and read what worker 0 says."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
    settings = json.dumps({"tapes": tapes, "rounds": rounds})
    command = [sys.executable, "-m", "caloscale.bench.allreduce_worker", settings]
    processes, logs = [], []
    try:
        for index in range(count):
            task = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
            environment = {**os.environ, "TF_CONFIG": json.dumps(task), "TF_CPP_MIN_LOG_LEVEL": "2"}
            logs.append(TemporaryFile())  # noqa: SIM115
            output = subprocess.PIPE if index == 0 else subprocess.DEVNULL
            processes.append(subprocess.Popen(command, env=environment, stdout=output, stderr=logs[-1]))
        printed = _wait(processes)
        for index, (process, log) in enumerate(zip(processes, logs)):
            if process.returncode:
                log.seek(0)
                message = " ".join(log.read().decode(errors="replace").split()[-60:])
                raise BenchError(f"worker {index} of {count} ended with exit code {process.returncode}: {message}")
        found: dict[str, list[float]] = json.loads(printed)
        return found
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for log in logs:
            log.close()


def _wait(processes: list[subprocess.Popen[bytes]]) -> str:
    """What worker 0 prints; when one fails the others are not waited for."""
    deadline = time.monotonic() + LONGEST_SECONDS
    printed: list[bytes] = []
    reader = threading.Thread(target=lambda: printed.append(processes[0].communicate()[0]), daemon=True)
    reader.start()
    while any(process.poll() is None for process in processes):
        if any(process.returncode for process in processes):
            break
        if time.monotonic() > deadline:
            raise BenchError(f"{len(processes)} workers did not finish within {LONGEST_SECONDS:.0f} s")
        time.sleep(0.1)
    for process in processes:
        if process.poll() is None:
            process.kill()
    reader.join()
    return printed[0].decode() if printed else ""


def measure_loopback() -> tuple[float, float]:
    """Latency (one way, s) and bandwidth (bytes/s) of a TCP stream between two threads over the loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = threading.Thread(target=_echo, args=(server,), daemon=True)
        echo.start()
        with socket.create_connection(server.getsockname()) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            trips = []
            for _ in range(_PINGS):
                clock = time.perf_counter()
                client.sendall(b"p")
                _receive(client, 1)
                trips.append(time.perf_counter() - clock)
            block, transfers = bytes(_BYTES), []
            for _ in range(_TRANSFERS):
                clock = time.perf_counter()
                client.sendall(block)
                _receive(client, 1)
                transfers.append(time.perf_counter() - clock)
        echo.join(5)
    return statistics.median(trips) / 2, _BYTES / statistics.median(transfers)


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(_PINGS):
            _receive(connection, 1)
            connection.sendall(b"p")
        for _ in range(_TRANSFERS):
            _receive(connection, _BYTES)
            connection.sendall(b"p")


def _receive(connection: socket.socket, count: int) -> None:
    buffer = memoryview(bytearray(min(count, 2**20)))
    while count:
        got = connection.recv_into(buffer, min(count, len(buffer)))
        if not got:
            raise ConnectionError("the other side closed")
        count -= got


def ring_seconds(size_bytes: float, members: int, alpha_seconds: float, bytes_per_second: float) -> float:
    """Time of a ring all-reduce: 2(n-1) alpha + 2((n-1)/n) S/beta.

    Patarasuk and Yuan, J. Parallel Distrib. Comput. 69 (2009) 117. One member needs none.
    """
    hops = 2 * (members - 1)
    return hops * alpha_seconds + hops / members * size_bytes / bytes_per_second
