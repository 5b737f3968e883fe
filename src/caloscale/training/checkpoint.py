"""Checkpoints: whole or not at all, the newest that is intact, never those of another network."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import tensorflow as tf
from pydantic import ValidationError

from caloscale.errors import CheckpointError
from caloscale.showers.manifest import Manifest, sha256_of
from caloscale.showers.storage import atomic_writer
from caloscale.spec import Run
from caloscale.spec.block import Block

log = logging.getLogger(__name__)

STATE = "state.json"
_WEIGHTS = "weights"
_NAME = re.compile(r"step-(\d{9})")

FREE = {("train", "epochs"), ("train", "maxMinutes"), ("data", "simulation", "processes")}
"""Fields that may change between the pieces of a training."""


class Progress(Block):
    """How far a training is: what a checkpoint says beside the weights."""

    format: int = 1
    """Version of the checkpoint's folder."""
    step: int
    """Steps that were made."""
    seconds: float
    """Wall time so far, s."""
    core_seconds: float
    """Processor time so far, s."""
    best_epoch: int | None = None
    """Epoch of the best generator so far."""
    best_step: int | None = None
    """Its step."""
    best_deviation: float | None = None
    """Its figure of merit."""
    history: dict[str, Any] = {}
    """Losses and physics so far."""
    identity: dict[str, Any] = {}
    """The parts of the document that the weights depend on, and the showers."""
    files: dict[str, str] = {}
    """Checksums of the files with the weights."""


def identity_of(run: Run, manifest: Manifest) -> dict[str, Any]:
    """What a checkpoint depends on: document (without what may change) and training shards."""
    document = run.model_dump(mode="json", by_alias=True)
    kept = {block: document[block] for block in ("model", "data", "train")}
    for *path, last in FREE:
        block = kept
        for part in path:
            block = block[part]
        block.pop(last, None)
    shards = "".join(shard.sha256 for shard in manifest.shards_of("train"))
    return {**kept, "showers": hashlib.sha256(shards.encode()).hexdigest()}


class Checkpoints:
    """The checkpoints of a training, in a folder: ``step-<number>/`` with weights and state.json, and ``best/``."""

    def __init__(self, folder: Path, *, keep: int, identity: Mapping[str, Any]) -> None:
        self.folder, self.keep, self.identity = folder, keep, dict(identity)

    def save(self, state: tf.train.Checkpoint, progress: Progress) -> Path:
        """Write a checkpoint of this step and remove the oldest beyond ``keep``. Raises StorageError."""
        path = self.folder / f"step-{progress.step:09d}"
        self._write(path, state, progress)
        for outdated in sorted(self._all())[: -self.keep]:
            shutil.rmtree(self.folder / outdated, ignore_errors=True)
        return path

    def save_best(self, generator: Any, progress: Progress) -> None:
        """Write the best generator so far."""
        self._write(self.folder / "best", tf.train.Checkpoint(generator=generator), progress)

    def restore(self, state: tf.train.Checkpoint) -> Progress | None:
        """Load the newest intact checkpoint into ``state``; None when there is no checkpoint.

        A damaged one is passed over with a warning. CheckpointError: all are damaged, or they belong to another
        network, document or dataset.
        """
        names = sorted(self._all(), reverse=True)
        for name in names:
            path = self.folder / name
            try:
                progress = _read(path)
            except CheckpointError as error:
                log.warning("%s\n  going on with the checkpoint before it", error)
                continue
            self._check_identity(path, progress)
            _load(path, state)
            return progress
        if names:
            raise CheckpointError(
                "all checkpoints are damaged",
                file=self.folder,
                value=names,
                remedy="delete this folder to train from the beginning",
            )
        return None

    def restore_best(self, generator: Any) -> Progress | None:
        """Load the best generator; None when there is none, or it is damaged (with a warning)."""
        path = self.folder / "best"
        if not path.exists():
            return None
        try:
            progress = _read(path)
        except CheckpointError as error:
            log.warning("%s\n  the best generator so far is lost", error)
            return None
        self._check_identity(path, progress)
        _load(path, tf.train.Checkpoint(generator=generator))
        return progress

    def _all(self) -> Iterator[str]:
        if self.folder.is_dir():
            yield from (path.name for path in self.folder.iterdir() if _NAME.fullmatch(path.name))

    def _write(self, path: Path, state: tf.train.Checkpoint, progress: Progress) -> None:
        with atomic_writer(path, replace_folder=True) as temporary:
            temporary.mkdir()
            try:
                state.write(str(temporary / _WEIGHTS))
            except tf.errors.OpError as error:
                raise OSError(28 if "No space" in str(error) else 5, str(error.message)) from error
            files = {file.name: sha256_of(file) for file in sorted(temporary.iterdir())}
            whole = progress.model_copy(update={"identity": self.identity, "files": files})
            (temporary / STATE).write_text(whole.model_dump_json(by_alias=True) + "\n", encoding="utf-8")

    def _check_identity(self, path: Path, progress: Progress) -> None:
        field = first_difference(progress.identity, json.loads(json.dumps(self.identity)))
        if field is None:
            return
        of = "another network" if field.startswith(("model", "data.geometry", "data.preprocessing")) else "another run"
        raise CheckpointError(
            f"is a checkpoint of {of}: the document differs",
            file=path,
            field=field,
            value=value_at(progress.identity, field),
            remedy="train into another folder, or delete this one to train from the beginning",
        )


def _read(path: Path) -> Progress:
    """The state of a checkpoint whose files are all there and unchanged; else CheckpointError."""
    remedy = "delete it"
    try:
        progress = Progress.model_validate_json((path / STATE).read_bytes(), by_alias=True, by_name=False)
        for name, checksum in progress.files.items():
            if sha256_of(path / name) != checksum:
                raise CheckpointError("is damaged: a file changed", file=path / name, field="sha256", remedy=remedy)
    except OSError as error:
        raise CheckpointError(f"cannot be read: {error.strerror}", file=path, remedy=remedy) from error
    except ValidationError as error:
        raise CheckpointError("has a damaged state", file=path / STATE, remedy=remedy) from error
    return progress


def _load(path: Path, state: tf.train.Checkpoint) -> None:
    try:
        state.read(str(path / _WEIGHTS)).assert_existing_objects_matched()
    except (tf.errors.OpError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())[:300]
        raise CheckpointError(
            f"does not fit the network: {reason}",
            file=path,
            remedy="train into another folder, or delete this one to train from the beginning",
        ) from error


def first_difference(found: Any, wanted: Any, path: str = "") -> str | None:
    """Dotted path of the first value that differs; None when all are equal."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        for key in dict.fromkeys([*wanted, *found]):
            inner = first_difference(found.get(key), wanted.get(key), f"{path}.{key}" if path else key)
            if inner is not None:
                return inner
        return None
    return None if found == wanted else path


def value_at(tree: Any, path: str) -> Any:
    """What lies at a dotted path; None when nothing does."""
    for part in path.split("."):
        tree = tree.get(part) if isinstance(tree, dict) else None
    return tree
