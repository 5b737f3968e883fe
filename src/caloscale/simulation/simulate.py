"""Simulation of the showers of a data block by a pool of processes: on all cores, resumable, independent of their
number."""

import hashlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import caloscale
from caloscale import errors, progress
from caloscale.errors import ConfigurationError, SimulationError
from caloscale.processor import cores, free_memory, processor_name
from caloscale.simulation.files import Order, exclusive, file_name, pending_files, refuse_foreign
from caloscale.simulation.primaries import file_count, showers_in_file
from caloscale.simulation.record import RECORD_NAME, FileLog, SimulationRecord, read_record
from caloscale.simulation.tables import data_folder, elements_of, tables_identity, wheel_folder, wheel_version
from caloscale.spec import Data
from caloscale.spec.data import PrimaryRanges
from caloscale.storage.atomic import make_folder, storage_error, write_text

REVISIONS = {"geant4": 1, "parametrised": 3}
"""Part of the fingerprint: increment an engine's when its code changes the showers of a run configuration."""

_WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONIOENCODING": "utf-8",  # of the order, with the name of the folder, whatever the locale
    # glibc keeps the memory of a batch for the next one: two thirds fewer page faults.
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
}
_LATER_KEYS = {"cell_shape", "layers_per_cell", "calibrated"}
"""Keys of the geometry that had one value once: without it, showers that were simulated before stay in the cache."""
_COPIES = 2.5
"""Memory of a worker in units of a file's cells: the cells, their copy in the units of the file, compression."""
_WORKER_BYTES = 200 * 2**20


def fingerprint(data: Data, accepted: Sequence[PrimaryRanges] = ()) -> str:
    """Hash of everything that determines the showers: configuration, code, and for Geant4 its version and tables."""
    engine = data.simulation.engine
    identity: dict[str, Any] = {
        "revision": REVISIONS[engine],
        "engine": engine,
        "geometry": {
            **data.geometry.model_dump(mode="json", exclude=_LATER_KEYS | {"active", "active_mm"}),
            **data.geometry.model_dump(mode="json", include=_LATER_KEYS, exclude_defaults=True),
            f"{data.geometry.active}_mm": data.geometry.active_mm,
        },
        "energyGev": data.energy_gev,
        "angleDeg": data.angle_deg,
        "seed": data.seed,
        "files": file_count(data),
        "showersInFile": showers_in_file(data),
    }
    if data.particle != "e-":  # without it: showers of electrons that were simulated before stay in the cache
        identity["particle"] = data.particle
    later = {
        "azimuthDeg": data.azimuth_deg,
        "entryMm": data.entry_mm,
        "accepted": [each.model_dump(mode="json") for each in accepted] or None,
        "front": [each.model_dump(mode="json") for each in data.front] or None,
        "pairDistanceMm": data.pair_distance_mm,
    }
    identity |= {name: value for name, value in later.items() if value is not None}
    if engine == "geant4":
        identity["cutMm"] = data.simulation.cut_mm
        identity["calzone"] = wheel_version("calzone")
        identity["tables"] = tables_identity(elements_of(data.geometry, data.front))
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:32]


def refuse_other_source(data: Data) -> None:
    """Raise ConfigurationError for another `data.source` than simulate."""
    if data.source != "simulate":
        problem = "names showers that are there already"
        remedy = "--set data.source=simulate and data.showers=1500, say; or use these: caloscale preprocess, "
        remedy += "caloscale.read_showers"
        raise ConfigurationError(problem, field="data.source", value=data.source, remedy=remedy)


def simulate(data: Data, folder: Path, accepted: Sequence[PrimaryRanges] = ()) -> SimulationRecord:
    """Simulate the showers of a data block into ``folder``: showers-00000.h5 and so on, simulation.json last.

    Finished files are kept, so an interrupted simulation resumes from them; nothing is simulated when all
    exist. Raises SimulationError when Geant4 is missing or a process dies, ShowerFileError when the folder
    contains files that another simulation or program wrote, StorageError when the disk refuses, ConfigurationError
    for another `data.source` than simulate and showers of a file that do not fit into memory. KeyboardInterrupt passes;
    finished files stay.

    accepted: what generators take over; the cells are then those of the other particles alone, and beside each file
    lies the one of these particles (`entering.read_entering`).
    """
    refuse_other_source(data)
    identity = fingerprint(data, accepted)

    def find() -> tuple[list[int], SimulationRecord | None]:
        """The files that are to be made, and the record of a simulation that is finished."""
        refuse_foreign(folder, identity)
        pending, record = pending_files(data, folder, identity, hybrid=bool(accepted)), read_record(folder)
        if pending or record is None or record.fingerprint != identity:
            return pending, None
        return pending, record.model_copy(update={"reused": True})

    try:
        make_folder(folder)
        _, finished = find()
        if finished is not None:  # several processes may use it at the same time
            return finished
        with exclusive(folder):
            pending, finished = find()
            if finished is not None:
                return finished
            processes = min(data.simulation.processes or cores(), file_count(data))
            if pending:
                _simulate_files(data, folder, identity, pending, processes, accepted)
            record = _summarise(data, folder, identity, processes)
            write_text(folder / RECORD_NAME, record.model_dump_json(by_alias=True, indent=2))
            return record
    except OSError as error:
        raise storage_error(error, folder) from error


def _simulate_files(
    data: Data, folder: Path, identity: str, pending: list[int], processes: int, accepted: Sequence[PrimaryRanges]
) -> None:
    _check_memory(data, min(processes, len(pending)))
    environment = dict(_WORKER_ENVIRONMENT)
    if data.simulation.engine == "geant4":
        wheel_folder("calzone")
        elements = elements_of(data.geometry, data.front)
        environment["GEANT4_DATA_DIR"] = str(data_folder(elements, hadrons=data.has_hadrons))
    order = Order(data=data, folder=folder.resolve(), fingerprint=identity, accepted=tuple(accepted))
    # Before the display: pydantic's serialiser would make an error of its own of a Ctrl-C.
    text = order.model_dump_json(by_alias=True)
    log, attempt, start = FileLog(folder, identity), uuid.uuid4().hex, time.perf_counter()
    versions: dict[str, str] = {}
    total = file_count(data) * showers_in_file(data)
    done = total - len(pending) * showers_in_file(data)
    with (
        progress.bar(f"{data.simulation.engine} showers", total, "showers", initial=done) as bar,
        closing(run_files(text, pending, processes, environment)) as messages,
    ):
        for message in messages:
            if message["event"] == "ready":
                versions = message["versions"]
            elif message["event"] == "progress":
                bar.update(message["showers"])
            elif message["event"] == "done":
                log.add(
                    file=file_name(message["file"]),
                    attempt=attempt,
                    seconds=time.perf_counter() - start,
                    coreSeconds=message["coreSeconds"],
                    showers=message["showers"],
                    versions=versions,
                )


def _summarise(data: Data, folder: Path, identity: str, processes: int) -> SimulationRecord:
    log = FileLog(folder, identity)
    seconds, core_seconds, timed = log.times()
    versions = {"caloscale": caloscale.__version__, "numpy": np.__version__}
    for line in log.lines():
        versions.update(line["versions"])
    if data.simulation.engine == "geant4":
        versions["tables"] = tables_identity(elements_of(data.geometry, data.front))
    return SimulationRecord(
        source=data.simulation.engine,
        particle=data.particle,
        showers=file_count(data) * showers_in_file(data),
        seconds=seconds,
        core_seconds=core_seconds,
        showers_per_second=timed / seconds if seconds > 0 else 0.0,
        core_seconds_per_shower=core_seconds / timed if timed else 0.0,
        processes=processes,
        seed=data.seed,
        fingerprint=identity,
        versions=versions,
        processor=processor_name(),
        cores=cores(),
    )


def _check_memory(data: Data, processes: int) -> None:
    """Refuse files that would drive the machine or the container out of memory; an order of magnitude is enough."""
    file_bytes = 4 * showers_in_file(data) * int(np.prod(data.geometry.cells))
    needed = processes * (_COPIES * file_bytes + _WORKER_BYTES)
    available = free_memory()
    if needed > available:
        problem = f"{processes} processes, each with a file in memory, need {needed / 2**30:.1f} GiB of memory, "
        problem += f"{available / 2**30:.1f} GiB are free"
        field, value = "data.simulation.showersPerFile", data.simulation.showers_per_file
        remedy = "fewer showers in a file (100 is the default) or fewer processes (data.simulation.processes)"
        raise ConfigurationError(problem, field=field, value=value, remedy=remedy)


Message = dict[str, Any]
_Said: TypeAlias = "tuple[_Worker, Message | None]"
_SHOWN_CHARACTERS = 2000
"""Length of the end of a dead worker's error output that is shown."""


def run_files(
    order: str, indices: Sequence[int], processes: int, environment: dict[str, str]
) -> Generator[Message, None, None]:
    """Simulate the files ``indices`` in worker processes; yields their messages as they arrive.

    order: the line of JSON that each worker receives first. A worker receives its next file when it has written one.
    Raises the error that a worker reports, and SimulationError when one dies; when the iteration ends, the workers
    are killed at once (files are written atomically, so no partial file has the name of a finished one).
    """
    waiting = list(reversed(indices))
    messages: queue.Queue[_Said] = queue.Queue()
    workers: list[_Worker] = []
    try:
        for _ in range(min(processes, len(indices))):
            workers.append(_Worker(order, environment, messages))
            workers[-1].assign(waiting.pop())
        busy = len(workers)
        while busy:
            worker, message = _next(messages)
            if message is None:
                raise worker.death_error()
            if message["event"] == "error":
                kind = getattr(errors, str(message["kind"]), SimulationError)
                raise kind(message["problem"], **message["fields"])
            if message["event"] == "done":
                if waiting:
                    worker.assign(waiting.pop())
                else:
                    busy -= 1
            yield message
    finally:
        for worker in workers:
            worker.kill()


def _next(messages: queue.Queue[_Said]) -> _Said:
    """The next message. It waits in short intervals: a signal that arrives just before a wait is handled after it."""
    while True:
        with suppress(queue.Empty):
            return messages.get(timeout=0.5)


class _Worker:
    """A worker process, and the thread that reads its output."""

    def __init__(self, order: str, environment: dict[str, str], messages: queue.Queue[_Said]) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed by kill)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "caloscale.simulation.worker"],  # not from the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            # Geant4 prefers the folder of a variable such as G4LEDATA to GEANT4_DATA_DIR; others change its models.
            env={name: value for name, value in os.environ.items() if not name.startswith("G4")} | environment,
            text=True,
            encoding="utf-8",
        )
        self._listener = threading.Thread(target=self._listen, args=(messages,), daemon=True)
        self._listener.start()
        self._send(order)

    def _listen(self, messages: queue.Queue[_Said]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            messages.put((self, json.loads(line)))
        messages.put((self, None))

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it died, which the listener reports
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def assign(self, index: int) -> None:
        self._send(str(index))

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self._errors.close()

    def death_error(self) -> SimulationError:
        """The error that it ended before its files were finished."""
        code = self._process.wait()
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - _SHOWN_CHARACTERS))
        output = self._errors.read().decode("utf-8", "replace").strip()
        remedy = "run it again, finished files are kept; if it was the lack of memory, with fewer processes "
        remedy += "(--set data.simulation.processes=1)"
        if code < 0 and code != -signal.SIGKILL:
            remedy = "if Geant4 lacks a table or one is damaged, complete the datasets in GEANT4_DATA_DIR, or "
            remedy += "unset it to have what is needed assembled from the installed wheels; else run it again"
        return SimulationError(f"a simulation process ended {how}{': ' + output if output else ''}", remedy=remedy)
