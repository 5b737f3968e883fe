"""The checkpoints of a training in a folder, and their copies in a bucket."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from caloscale.errors import CheckpointError, StorageError
from caloscale.spec.block import Block
from caloscale.storage.atomic import PARTIAL, atomic_writer
from caloscale.storage.objects import delete_object, read_object, write_object
from caloscale.training.checkpoint.format import SUFFIX, Arrays, DamagedError, decode, encode
from caloscale.training.checkpoint.metadata import Progress, first_difference, value_at

log = logging.getLogger(__name__)

SELECTED = f"selected{SUFFIX}"
POINTER = "newest.json"
"""Object that lists the complete checkpoints of a bucket; written after them."""
START_RETRY_SECONDS = 300.0
"""How long a bucket may be unavailable when a training starts: what it holds must be known."""
_NAME = re.compile(r"step-(\d{9})\.safetensors")
_OLDER_SUFFIX = ".npz"
"""Of checkpoints of caloscale before 0.1.0, which cannot be read."""


def step_of(path: Path) -> int | None:
    """The step of a checkpoint by its name; None for another file."""
    found = _NAME.fullmatch(path.name)
    return int(found.group(1)) if found else None


@dataclass(frozen=True)
class Saved:
    """A checkpoint that was read."""

    arrays: Arrays
    """Values of all variables by name."""
    progress: Progress
    """What the checkpoint holds beside them."""
    path: Path | str
    """Its file, in a bucket its URI."""


class CheckpointFolder:
    """``step-<number>.safetensors``, the newest ``keep`` of them, and ``selected.safetensors``."""

    def __init__(self, path: Path, *, keep: int, identity: Mapping[str, Any]) -> None:
        self.path, self.keep, self.identity = path, keep, dict(identity)

    def write(self, arrays: Arrays, progress: Progress) -> Path:
        """Write the checkpoint of a step, then remove the oldest beyond ``keep``. Raises StorageError.

        Those of later steps are removed, too: they are damaged, and the training resumed from a step before them.
        """
        path = self._write(f"step-{progress.step:09d}{SUFFIX}", arrays, progress)
        later = [other for other in self.steps() if other.name > path.name]
        for outdated in [*later, *self.steps()[len(later) + self.keep :]]:
            outdated.unlink(missing_ok=True)
        return path

    def write_selected(self, arrays: Arrays, progress: Progress) -> Path:
        """Write the selected generator. Raises StorageError."""
        return self._write(SELECTED, arrays, progress)

    def steps(self) -> list[Path]:
        """The checkpoints of the folder, newest first."""
        found = self.path.iterdir() if self.path.is_dir() else ()
        return sorted((path for path in found if _NAME.fullmatch(path.name)), reverse=True)

    def newest(self) -> Saved | None:
        """The newest intact checkpoint; None when there is none at all.

        A damaged one is passed over with a warning. CheckpointError: all are damaged, or they belong to another
        network, run configuration or dataset.
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
            raise CheckpointError(
                "all checkpoints are damaged",
                file=self.path,
                value=[path.name for path in paths],
                remedy="delete this folder to train from the beginning",
            )
        older = sorted(path.name for path in self.path.glob(f"*{_OLDER_SUFFIX}") if path.stem.startswith("step-"))
        if older:
            raise _of_an_older_version(self.path, older)
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

    def _write(self, name: str, arrays: Arrays, progress: Progress) -> Path:
        whole = progress.model_copy(update={"identity": self.identity})
        content = encode(arrays, whole.model_dump_json(by_alias=True))
        path = self.path / name
        _put(content, path)
        return path

    def check_identity(self, saved: Saved) -> None:
        """Raise CheckpointError when it belongs to another network, run configuration or dataset."""
        field = first_difference(saved.progress.identity, json.loads(json.dumps(self.identity)))
        if field is None:
            return
        if field == "globalBatch":
            problem = f"is a checkpoint of another global batch than {self.identity[field]}"
            remedy = (
                f"set train.globalBatchSize={saved.progress.identity[field]}, which any number of replicas that divides"
            )
            raise CheckpointError(problem, file=saved.path, field=field, remedy=f"{remedy} it can resume from")
        of = "another network" if field.startswith(("model", "data.geometry", "data.preprocessing")) else "another run"
        raise CheckpointError(
            f"is a checkpoint of {of}: the run configuration differs",
            file=saved.path,
            field=field,
            value=value_at(saved.progress.identity, field),
            remedy="give the folder or checkpoint.uri of this run, or others to train from the beginning; delete these "
            "only if nobody needs them",
        )


def read_content(content: bytes, path: Path | str) -> Saved:
    """A checkpoint from the bytes of its file; CheckpointError when they are damaged."""
    remedy = "delete it"
    try:
        arrays, state = decode(content)
        return Saved(arrays, Progress.model_validate_json(state, by_alias=True, by_name=False), path)
    except DamagedError as error:
        raise CheckpointError(str(error), file=path, remedy=remedy) from error
    except ValidationError as error:
        raise CheckpointError("was written by another version", file=path, remedy=remedy) from error


def _of_an_older_version(folder: Path | str, names: list[str]) -> CheckpointError:
    return CheckpointError(
        "these checkpoints were written by an older version of caloscale, in another format",
        file=folder,
        value=names,
        remedy="finish the training with that version, or delete them, selected.npz, best.npz and newest.json there "
        "to train from the beginning",
    )


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


class Pointer(Block):
    """Which checkpoints a bucket holds, newest first."""

    checkpoints: tuple[Entry, ...] = ()
    """All that are whole."""


class BucketCopy:
    """The same checkpoints below ``gs://bucket/prefix``; an object replaces another as a whole."""

    def __init__(self, uri: str, *, keep: int) -> None:
        self.uri, self.keep = uri.rstrip("/"), keep
        self._pointer: Pointer | None = None

    def upload(self, path: Path, content: bytes) -> None:
        """Copy a checkpoint, then point to it, then remove the oldest. Raises StorageError."""
        write_object(content, f"{self.uri}/{path.name}")
        if path.name == SELECTED:
            return
        before = self._read_pointer().checkpoints
        entry = Entry(name=path.name, sha256=hashlib.sha256(content).hexdigest())
        # A step that is repeated, or that lies after this one, is of an attempt that failed.
        entries = (entry, *(old for old in before if old.name < entry.name))
        pointer = Pointer(checkpoints=entries[: self.keep])
        write_object(pointer.model_dump_json(by_alias=True).encode(), f"{self.uri}/{POINTER}")
        self._pointer = pointer
        kept = {entry.name for entry in pointer.checkpoints}
        for outdated in before:
            if outdated.name not in kept:
                delete_object(f"{self.uri}/{outdated.name}")

    def fetch(self, folder: CheckpointFolder) -> None:
        """Bring what is newer in the bucket into the folder.

        Raises StorageError: the bucket cannot be asked. CheckpointError: it holds the checkpoints of another run; then
        the folder is as it was, and that run's checkpoints are not written over.
        """
        present = {path.name: path for path in folder.steps()}
        wanted = not (folder.path / SELECTED).exists()
        entries = self._read_pointer(START_RETRY_SECONDS).checkpoints
        other_version = [entry.name for entry in entries if entry.name.endswith(_OLDER_SUFFIX)]
        if other_version:
            raise _of_an_older_version(self.uri, other_version)
        for entry in entries:
            content = self._read(entry.name, folder, entry.sha256)
            if content is None:
                continue
            older = present and entry.name < max(present)
            if not older and not (entry.name in present and _intact(present[entry.name])):
                _put(content, folder.path / entry.name)
                wanted = True
            break
        selected = self._read(SELECTED, folder) if wanted else None
        if selected is not None:
            _put(selected, folder.path / SELECTED)

    def _read(self, name: str, folder: CheckpointFolder, sha256: str | None = None) -> bytes | None:
        """The bytes of a checkpoint of this run; None, with a warning, when they are damaged or, though pointed to,
        missing.
        """
        uri = f"{self.uri}/{name}"
        content = read_object(uri, retry_seconds=START_RETRY_SECONDS)
        if content is None and sha256 is None:
            return None
        try:
            if content is None:
                raise CheckpointError("is missing", file=uri)
            if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
                raise CheckpointError("is damaged: its checksum does not hold", file=uri)
            saved = read_content(content, uri)
        except CheckpointError as error:
            log.warning("%s\n  it is ignored", error)
            return None
        folder.check_identity(saved)
        return content

    def _read_pointer(self, retry_seconds: float | None = None) -> Pointer:
        if self._pointer is None:
            content = read_object(f"{self.uri}/{POINTER}", retry_seconds=retry_seconds)
            try:
                self._pointer = Pointer() if content is None else Pointer.model_validate_json(content)
            except ValidationError as error:
                raise StorageError(
                    "is not a list of checkpoints", file=f"{self.uri}/{POINTER}", remedy="choose another checkpoint.uri"
                ) from error
        return self._pointer


def _intact(path: Path) -> bool:
    try:
        _read(path)
    except CheckpointError:
        return False
    return True
