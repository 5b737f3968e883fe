"""The checkpoints of a training in a folder, and their copies in a bucket."""

import hashlib
import logging
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pydantic import ValidationError

from caloscale.errors import ChangedError, CheckpointError, HeldError, InputError, StorageError, SupersededError
from caloscale.spec.block import Block
from caloscale.status import ATTEMPT_VARIABLE, attempt_of
from caloscale.storage.atomic import PARTIAL, atomic_writer, machine
from caloscale.storage.objects import bucket_of, delete_object, read_object, write_object
from caloscale.storage.store import NO_VERSION
from caloscale.training.checkpoint.format import SUFFIX, Arrays, DamagedError, decode, encode
from caloscale.training.checkpoint.metadata import Progress, first_difference

log = logging.getLogger(__name__)

SELECTED = f"selected{SUFFIX}"
POINTER = "newest.json"
"""Object that lists the complete checkpoints of a bucket; written after them."""
START_RETRY_SECONDS = 300.0
"""How long a bucket may be unavailable when a training starts: what it holds must be known."""
RENEW_SECONDS = 20.0
"""A holder gives a sign so often, s."""
EXPIRY_SECONDS = 60.0
"""A holder that was not seen to give a sign for so long may be replaced, s, by the clock of whoever waits."""
RELEASE_SECONDS = 5.0
"""How long the bucket may be unavailable when a holder ends, s."""
LOOK_SECONDS = 2.0
"""Pause between two looks for a sign, s."""
_OBJECT = re.compile(r"(step-\d{9}|selected)-([0-9a-f]{16})\.safetensors")
"""Name of an object in a bucket: the file's name, the holder's token, and the beginning of its checksum."""
_NAME = re.compile(r"step-(\d{9})\.safetensors")


def step_of(path: Path) -> int | None:
    """The step of a checkpoint by its name; None for another file."""
    match = _NAME.fullmatch(path.name)
    return int(match.group(1)) if match else None


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read."""

    arrays: Arrays
    """Values of all variables by name."""
    progress: Progress
    """Content of the checkpoint in addition to them."""
    path: Path | str
    """Its file, in a bucket its URI."""


class CheckpointFolder:
    """``step-<number>.safetensors``, the newest ``keep`` of them, and ``selected.safetensors``."""

    def __init__(self, path: Path, *, keep: int, identity: Mapping[str, Any]) -> None:
        self.path, self.keep, self.identity = path, keep, dict(identity)

    def write(self, arrays: Arrays, progress: Progress, *, selected: bool = False) -> Path:
        """Write the checkpoint of a step, then remove the oldest beyond ``keep``, and checkpoints of later steps: they
        are damaged, and the training resumed from a step before them. Or write the selected generator. Raises
        StorageError.
        """
        path = self.path / (SELECTED if selected else f"step-{progress.step:09d}{SUFFIX}")
        whole = progress.model_copy(update={"identity": self.identity})
        _put(encode(arrays, whole.model_dump_json(by_alias=True)), path)
        if selected:
            return path
        later = [other for other in self.steps() if other.name > path.name]
        for outdated in [*later, *self.steps()[len(later) + self.keep :]]:
            outdated.unlink(missing_ok=True)
        return path

    def steps(self) -> list[Path]:
        """The checkpoints of the folder, newest first."""
        paths = self.path.iterdir() if self.path.is_dir() else ()
        return sorted((path for path in paths if _NAME.fullmatch(path.name)), reverse=True)

    def newest(self) -> Saved | None:
        """The newest intact checkpoint; None when there is none at all. A damaged one is passed over with a warning.

        Raises CheckpointError: all are damaged, or they belong to another network, run configuration or dataset; and
        InputError: another version wrote it.
        """
        paths = self.steps()
        for path in paths:
            try:
                saved = _read(path)
            except CheckpointError as error:
                log.warning("%s\n  resuming from the checkpoint before it", error)
                continue
            self.check_identity(saved)
            return saved
        if paths:
            problem = "all checkpoints are damaged"
            remedy = "delete this folder to train from the beginning"
            raise CheckpointError(problem, file=self.path, value=[path.name for path in paths], remedy=remedy)
        return None

    def selected(self) -> Saved | None:
        """The selected generator; None when there is none, or it is damaged (with a warning)."""
        path = self.path / SELECTED
        if not path.exists():
            return None
        try:
            saved = _read(path)
        except CheckpointError as error:
            log.warning("%s\n  the selected generator is lost", error)
            return None
        self.check_identity(saved)
        return saved

    def clean(self) -> None:
        """Remove the partial files of a killed process."""
        for path in self.path.glob(f"{PARTIAL}*{SUFFIX}"):
            path.unlink(missing_ok=True)

    def check_identity(self, saved: Saved) -> None:
        """Raise CheckpointError when it belongs to another network, run configuration or dataset."""
        difference = first_difference(saved.progress.identity, self.identity)
        if difference is None:
            return
        field, value, _ = difference
        if field == "globalBatch":
            problem = f"is a checkpoint of another global batch than {self.identity[field]}"
            remedy = f"set train.globalBatchSize={value}, which any number of replicas that divides it can resume from"
            raise CheckpointError(problem, file=saved.path, field=field, remedy=remedy)
        of = "another network" if field.startswith(("model", "data.geometry", "data.preprocessing")) else "another run"
        differs = "the run configuration differs"
        if field == "showers":
            differs = "its training showers are not those of data.source now"
        remedy = "give the folder or checkpoint.uri of this run, or others to train from the beginning; delete these "
        remedy += "only if nobody needs them"
        problem = f"is a checkpoint of {of}: {differs}"
        raise CheckpointError(problem, file=saved.path, field=field, value=value, remedy=remedy)


def read_content(content: bytes, path: Path | str) -> Saved:
    """A checkpoint from the bytes of its file. CheckpointError when they are damaged, by which one before it may be
    used; InputError when another version wrote it, which can resume from it."""
    try:
        arrays, state = decode(content)
        return Saved(arrays, Progress.model_validate_json(state, by_alias=True, by_name=False), path)
    except DamagedError as error:
        raise CheckpointError(str(error), file=path, remedy="delete it") from error
    except ValidationError as error:
        remedy = "train with that version, or into another folder or checkpoint.uri"
        raise InputError("is a checkpoint of another version of caloscale", file=path, remedy=remedy) from error


def _put(content: bytes, path: Path) -> None:
    with atomic_writer(path) as temporary:
        temporary.write_bytes(content)


def _read(path: Path) -> Saved:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", file=path, remedy="delete it") from error
    return read_content(content, path)


class Entry(Block):
    """A checkpoint in a bucket."""

    name: str
    """Name of its object."""
    sha256: str
    """Checksum of its bytes."""

    @property
    def file(self) -> str:
        """Name of its file in a folder."""
        match = _OBJECT.fullmatch(self.name)
        return f"{match[1]}{SUFFIX}" if match else self.name


class Holder(Block):
    """The process that writes the checkpoints of a bucket."""

    token: str
    """A random name, also in the names of its objects."""
    machine: str
    """Machine or container within which its number is unique."""
    host: str
    """Name of its machine, for people."""
    process: int
    """Its number."""
    run: str = ""
    """uid of its TrainingRun; empty: of none."""
    attempt: int = 0
    """Number of its attempt, by which a later one replaces an earlier one."""

    @property
    def title(self) -> str:
        """Who it is, for people."""
        attempt = f" (attempt {self.attempt})" if self.run else ""
        return f"process {self.process} on {self.host}{attempt}"

    @property
    def has_ended(self) -> bool:
        """Whether it was a process of this machine that is no more, or is this one, which has left it behind."""
        here = self.machine == machine()
        return here and (self.process == os.getpid() or not psutil.pid_exists(self.process))


def this_process(environment: Mapping[str, str] = os.environ) -> Holder:
    """This process as a holder; an attempt on a cluster has ATTEMPT_VARIABLE."""
    return Holder(
        token=secrets.token_hex(4),
        machine=machine(),
        host=socket.gethostname(),
        process=os.getpid(),
        run=environment.get(ATTEMPT_VARIABLE, "").rpartition("/")[0],
        attempt=attempt_of(environment) or 0,
    )


class Pointer(Block):
    """Which checkpoints a bucket holds, newest first, and who writes them."""

    checkpoints: tuple[Entry, ...] = ()
    """All that are whole."""
    selected: Entry | None = None
    """The selected generator; null: none is."""
    holder: Holder | None = None
    """Who writes them; null: nobody now."""
    writes: int = 0
    """How often it was written: no two are equal, as the version of an object may be a hash of its content."""

    @property
    def objects(self) -> set[str]:
        """Names of the objects that it refers to."""
        return {entry.name for entry in (*self.checkpoints, self.selected) if entry is not None}


class BucketCopy:
    """The same checkpoints below ``gs://bucket/prefix``, which one process at a time writes: their holder.

    The pointer lists them. It is written only in the version that its writer has read or written itself: who has lost
    it, to a later attempt for example, changes nothing any more and gets a SupersededError. Objects have the holder's
    token in their names, so that no process writes over objects of another.
    """

    def __init__(
        self, uri: str, *, keep: int, holder: Holder | None = None, wait: Callable[[float], object] = time.sleep
    ) -> None:
        """wait: waits for a number of seconds."""
        self.uri, self.keep_entries, self.holder = uri.rstrip("/"), keep, holder or this_process()
        self._wait = wait
        self._pointer, self._version = Pointer(), NO_VERSION
        self._holds, self._released = False, threading.Event()
        self._lost: SupersededError | None = None
        self._lock = threading.Lock()

    def claim(self) -> None:
        """Become the holder. Whoever is it has ended, has given no sign for EXPIRY_SECONDS, or is an earlier attempt.

        Raises HeldError: another process is the holder; SupersededError: a later attempt of this run is; StorageError.
        """
        self.check()
        watched: tuple[str, float] | None = None
        while True:
            pointer, version = self._look(START_RETRY_SECONDS)
            other = pointer.holder
            if other is not None and not self._may_replace(other):
                if watched is None:
                    log.info("%s: %s was at work here; waiting for a sign of it", self.uri, other.title)
                    watched = version, time.monotonic()
                elif watched[0] != version:
                    raise HeldError(other.title, self.uri)
                if time.monotonic() - watched[1] < EXPIRY_SECONDS:
                    self._wait(LOOK_SECONDS)
                    continue
            try:
                self._write(pointer.model_copy(update={"holder": self.holder}), version)
            except ChangedError:
                continue
            self._holds = True
            if other is not None:
                self._remove_unfinished(other)
            return

    def keep(self) -> None:
        """Give signs from now on, in a thread, that this process is the holder."""

        def give_signs() -> None:
            while self._holds and not self._released.wait(RENEW_SECONDS):
                try:
                    self.sign()
                except (StorageError, SupersededError) as error:
                    log.info("%s", error)

        threading.Thread(target=give_signs, name="holder", daemon=True).start()

    def sign(self) -> None:
        """Give one sign. Raises SupersededError where another process has become the holder, and StorageError."""
        self._point({})

    def check(self) -> None:
        """Raise SupersededError where another process has become the holder; returns at once."""
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Be the holder no more; another process need not wait then."""
        self._released.set()
        with suppress(StorageError, SupersededError):
            self._point({"holder": None}, RELEASE_SECONDS)
        self._holds = False

    def upload(self, path: Path, content: bytes) -> None:
        """Copy a checkpoint, then point to it, then remove the oldest. Raises StorageError, SupersededError."""
        if not self._holds:
            self.claim()
        sha256 = hashlib.sha256(content).hexdigest()
        entry = Entry(name=f"{path.stem}-{self.holder.token}{sha256[:8]}{SUFFIX}", sha256=sha256)
        write_object(content, f"{self.uri}/{entry.name}")
        before = self._pointer
        if path.name == SELECTED:
            self._point({"selected": entry})
        else:
            # A step that is repeated, or that lies after this one, is of an attempt that failed.
            entries = (entry, *(old for old in before.checkpoints if old.file < entry.file))
            self._point({"checkpoints": entries[: self.keep_entries]})
        for outdated in before.objects - self._pointer.objects:
            delete_object(f"{self.uri}/{outdated}")

    def fetch(self, folder: CheckpointFolder) -> None:
        """Bring what is newer in the bucket into the folder.

        Raises StorageError, and with nothing changed CheckpointError: it has the checkpoints of another run, or
        all are damaged and the folder has none; and InputError: of another version.
        """
        present = [path.name for path in folder.steps() if _intact(path)]
        needs_selected = not (folder.path / SELECTED).exists()
        pointer = self._pointer if self._holds else self._look(START_RETRY_SECONDS)[0]
        for entry in pointer.checkpoints:
            content = self._read(entry, folder)
            if content is None:
                continue
            if entry.file > max(present, default=""):
                _put(content, folder.path / entry.file)
                needs_selected = True
            break
        else:
            if pointer.checkpoints and not folder.steps():
                found, remedy = [entry.name for entry in pointer.checkpoints], "choose another checkpoint.uri"
                raise CheckpointError("all checkpoints are damaged", file=self.uri, value=found, remedy=remedy)
        selected = self._read(pointer.selected, folder) if needs_selected and pointer.selected is not None else None
        if selected is not None:
            _put(selected, folder.path / SELECTED)

    def _may_replace(self, other: Holder) -> bool:
        if other.run and other.run == self.holder.run:
            if other.attempt > self.holder.attempt:
                raise SupersededError(other.title, self.uri)
            return True
        return other.has_ended

    def _point(self, change: dict[str, Any], retry_seconds: float | None = None) -> None:
        """Change fields of the pointer; nothing happens where this process is not its holder any more."""
        with self._lock:
            self.check()
            if not self._holds:
                return
            pointer = self._pointer.model_copy(update=change)
            try:
                self._write(pointer, self._version, retry_seconds)
            except ChangedError:
                present, version = self._look(retry_seconds)
                holder = present.holder
                if version != NO_VERSION and (holder is None or holder.token != self.holder.token):
                    self._lost = SupersededError("another process" if holder is None else holder.title, self.uri)
                    raise self._lost from None
                # A write of this process whose answer was lost, or somebody has deleted the pointer.
                self._write(pointer, version, retry_seconds)

    def _write(self, pointer: Pointer, version: str, retry_seconds: float | None = None) -> None:
        store, name = bucket_of(f"{self.uri}/{POINTER}", retry_seconds=retry_seconds)
        pointer = pointer.model_copy(update={"writes": pointer.writes + 1})
        content = pointer.model_dump_json(by_alias=True).encode()
        self._version = store.put_version(name, content, version)
        self._pointer = pointer

    def _look(self, retry_seconds: float | None = None) -> tuple[Pointer, str]:
        """The pointer as it is, and its version; `NO_VERSION`: there is none."""
        store, name = bucket_of(f"{self.uri}/{POINTER}", retry_seconds=retry_seconds)
        content, version = store.get_version(name)
        try:
            return Pointer() if content is None else Pointer.model_validate_json(content), version
        except ValidationError as error:
            problem, file = "is not a list of checkpoints", f"{self.uri}/{POINTER}"
            raise StorageError(problem, file=file, remedy="choose another checkpoint.uri") from error

    def _remove_unfinished(self, other: Holder) -> None:
        """Remove the objects of a holder that can point to nothing any more, but for those that are pointed to."""
        store, prefix = bucket_of(self.uri)
        for stored in store.list(prefix):
            match = _OBJECT.fullmatch(name := stored.name.rpartition("/")[2])
            if match and match[2].startswith(other.token) and name not in self._pointer.objects:
                store.delete(stored.name)

    def _read(self, entry: Entry, folder: CheckpointFolder) -> bytes | None:
        """The bytes of a checkpoint of this run; None, with a warning, when they are damaged or missing."""
        uri = f"{self.uri}/{entry.name}"
        content = read_object(uri, retry_seconds=START_RETRY_SECONDS)
        try:
            if content is None:
                raise CheckpointError("is missing", file=uri)
            if hashlib.sha256(content).hexdigest() != entry.sha256:
                raise CheckpointError("is damaged: its checksum does not hold", file=uri)
            saved = read_content(content, uri)
        except CheckpointError as error:
            log.warning("%s\n  it is ignored", error)
            return None
        folder.check_identity(saved)
        return content


def _intact(path: Path) -> bool:
    try:
        _read(path)
    except CheckpointError:
        return False
    return True
