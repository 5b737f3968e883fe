"""Images as files, in the format of `docker save`: small ones written directly, and the names in those of an engine."""

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from caloscale.storage.atomic import atomic_writer
from tools.images.targets import ImageError, qualified

# Names of processors in Go, Docker and Kubernetes.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LIST, CONFIGURATION, LAYER = "manifest.json", "config.json", "layer.tar"
"""Files of an archive: its images, and the two parts of one that is written here."""


def write_archive(
    archive: Path, name: str, files: Mapping[str, Path], *, entrypoint: Sequence[str], user: str = ""
) -> Path:
    """Write an image of one uncompressed layer with a /tmp; the same files make the same bytes. Links are followed.

    files: by their paths in the image.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=archive.parent) as layer:
        _write_layer(layer, files)
        layer.seek(0)
        configuration = {
            "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "Entrypoint": list(entrypoint), "User": user},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.file_digest(layer, 'sha256').hexdigest()}"]},
        }
        image = {"Config": CONFIGURATION, "RepoTags": [qualified(name)], "Layers": [LAYER]}
        with atomic_writer(archive) as temporary, tarfile.open(temporary, "w") as tar:
            _add(tar, LIST, io.BytesIO(json.dumps([image]).encode()))
            _add(tar, CONFIGURATION, io.BytesIO(json.dumps(configuration).encode()))
            _add(tar, LAYER, layer)
    return archive


def names_in(archive: Path) -> list[str]:
    """Names of the images in an archive; raises ImageError for what is none or names none."""
    remedy = "podman save, docker save, or buildah push docker-archive:"
    try:
        with tarfile.open(archive) as tar:
            listed: list[dict[str, Any]] = json.load(tar.extractfile(LIST))  # type: ignore[arg-type]
    except (OSError, tarfile.TarError, ValueError, KeyError) as error:
        raise ImageError(f"{archive}: not an image's archive: {error}", remedy=remedy) from error
    names = [name for image in listed for name in image.get("RepoTags") or ()]
    if not names:
        raise ImageError(f"{archive}: the image in it has no name", remedy="save it by its name with tag, not its id")
    return names


def _write_layer(layer: IO[bytes], files: Mapping[str, Path]) -> None:
    folders = {"tmp"}
    with tarfile.open(fileobj=layer, mode="w") as tar:
        _add_folder(tar, "tmp", 0o1777)
        for path, source in sorted(files.items()):
            for parent in reversed(Path(path).parents):
                name = str(parent).lstrip("/")
                if name and name not in folders:
                    folders.add(name)
                    _add_folder(tar, name, 0o755)
            with source.open("rb") as file:
                _add(tar, path.lstrip("/"), file, 0o755 if source.stat().st_mode & 0o100 else 0o644)


def _add_folder(tar: tarfile.TarFile, name: str, mode: int) -> None:
    about = tarfile.TarInfo(name)
    about.type, about.mode = tarfile.DIRTYPE, mode
    tar.addfile(about)


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes], mode: int = 0o644) -> None:
    about = tarfile.TarInfo(name)
    about.size, about.mode = file.seek(0, io.SEEK_END), mode
    file.seek(0)
    tar.addfile(about, file)
