"""Images as files, for nodes that no registry serves: written once for each image, kept in the user's cache."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path

import platformdirs

from caloscale.progress import bar
from caloscale.storage.atomic import atomic_writer, write_text
from tools.images.engines import Engine
from tools.images.errors import ImageError
from tools.images.targets import choose, qualified

INDEX = "archives.json"


def folder() -> Path:
    """Where archives lie: in the user's cache, or in $CALOSCALE_CACHE."""
    return Path(os.environ.get("CALOSCALE_CACHE") or platformdirs.user_cache_dir("caloscale")) / "images"


def archives(names: Iterable[str] = (), *, place: Path | None = None) -> dict[str, Path]:
    """The archives that the last ``make images`` wrote: the name that pods give an image, and its file.

    names: of targets (``trainer-cpu``, ``operator``); none: the usual ones. A file is in Docker's format, not
    compressed; ``ctr --namespace k8s.io images import FILE`` takes it, and the image is then called by the key. Raises
    ImageError when one was not written.
    """
    place = place or folder()
    known = _index(place)
    found = {}
    for name in choose(names):
        entry = known.get(name)
        if entry is None or not (place / entry["file"]).is_file():
            raise ImageError(f"there is no archive of the image {name}", remedy=f"make images ARCHIVE=1 TARGETS={name}")
        found[entry["image"]] = place / entry["file"]
    return found


def write_archive(engine: Engine, name: str, image: str, *, place: Path | None = None) -> Path:
    """Write the archive of an image that was built, and forget the one before; nothing when it is written already."""
    place = place or folder()
    place.mkdir(parents=True, exist_ok=True)
    identity = engine.image_id(image)
    if identity is None:
        raise ImageError(f"there is no image {image}", remedy=f"make images TARGETS={name}")
    archive = place / f"{name}-{identity[:12]}.tar"
    if not archive.is_file():
        with atomic_writer(archive) as temporary:
            _save(engine, image, temporary)
    known = _index(place)
    before = known.get(name, {}).get("file", archive.name)
    entry = {"image": qualified(image), "file": archive.name, "id": identity}
    write_text(place / INDEX, json.dumps({**known, name: entry}, indent=1))
    if before != archive.name:
        (place / before).unlink(missing_ok=True)
    return archive


def _save(engine: Engine, image: str, path: Path) -> None:
    command = engine.save(image, path)
    with (
        bar(f"archive of {image}", 0, "MB") as shown,
        subprocess.Popen(command, env=engine.environment(), stdout=subprocess.DEVNULL) as process,
    ):
        while process.poll() is None:
            time.sleep(0.2)
            shown.update((path.stat().st_size if path.exists() else 0) // 1_000_000 - shown.n)
    if process.returncode:
        raise ImageError(f"{engine.name} could not write {path}", remedy="read its message above; is the disk full?")


def _index(place: Path) -> dict[str, dict[str, str]]:
    try:
        known = json.loads((place / INDEX).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
