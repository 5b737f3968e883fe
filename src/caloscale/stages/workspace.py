"""The folder of a run, on a disk or in a bucket."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from caloscale.errors import DocumentError
from caloscale.showers.storage import atomic_writer, download, is_remote, upload
from caloscale.spec import Run, build_run, dump_run
from caloscale.spec.document import parse_yaml


@contextmanager
def open_workspace(workspace: str | Path, without: str | None = None) -> Iterator[Path]:
    """A local folder that is the workspace.

    A path is used as it is (and made). gs://bucket/prefix is copied into a temporary folder, and what was
    added or changed is uploaded at the end, also when the stage failed. Raises StorageError.
    without: a folder in it that the stage itself keeps in the bucket; it is neither copied nor uploaded.
    """
    if not is_remote(str(workspace)):
        folder = Path(workspace)
        folder.mkdir(parents=True, exist_ok=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="caloscale-") as name:
        folder = Path(name)
        download(str(workspace), folder, without=without)
        before = _times(folder)
        try:
            yield folder
        finally:
            for path, time in _times(folder).items():
                inside = without is not None and path.is_relative_to(folder / without)
                if before.get(path) != time and not inside:
                    upload(path, f"{str(workspace).rstrip('/')}/{path.relative_to(folder).as_posix()}")


def keep_document(run: Run, folder: Path) -> None:
    """Write the resolved document; a folder that holds the run of another document is refused."""
    path = folder / "run.yaml"
    if path.is_file():
        if build_run(parse_yaml(path.read_text(encoding="utf-8"), file=path), file=path) != run:
            raise DocumentError(
                "this folder holds a run of another document",
                file=path,
                remedy="choose another folder or name, or delete this one",
            )
        return
    with atomic_writer(path) as temporary:
        temporary.write_text(dump_run(run), encoding="utf-8")


def _times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
