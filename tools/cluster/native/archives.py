"""Images as files: small ones written directly, and the names in those that an engine wrote.

The format is the OCI image layout (https://github.com/opencontainers/image-spec) in a tar file.
"""

import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from caloscale.storage.atomic import atomic_writer
from tools.cluster.errors import ClusterError

MEDIA = "application/vnd.oci.image"
# As Go and so all of this world calls processors.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
DEFAULT_REGISTRY = "docker.io"
NAME = "io.containerd.image.name"
REFERENCE = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Entry:
    """A file of an image."""

    source: Path
    path: str
    """Where it lies in the image, from its root."""


def write_archive(
    archive: Path,
    name: str,
    entries: Iterable[Entry],
    *,
    entrypoint: Sequence[str] = (),
    environment: Sequence[str] = (),
    user: str = "",
) -> Path:
    """Write an image of one uncompressed layer; the same files make the same bytes. Links are followed."""
    configuration: dict[str, Any] = {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin", *environment], "WorkingDir": "/"}
    if entrypoint:
        configuration["Entrypoint"] = list(entrypoint)
    if user:
        configuration["User"] = user
    machine = {"architecture": ARCHITECTURES.get(platform.machine(), platform.machine()), "os": "linux"}
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=archive.parent) as layer:
        _write_layer(layer, entries)
        digest, size = _digest(layer), layer.tell()
        rootfs = {"type": "layers", "diff_ids": [digest]}
        made = {**machine, "created": "1970-01-01T00:00:00Z", "config": configuration, "rootfs": rootfs}
        config = _json(made)
        layers = [_described("layer.v1.tar", digest, size)]
        manifest = _json(
            {
                "schemaVersion": 2,
                "mediaType": f"{MEDIA}.manifest.v1+json",
                "config": _described("config.v1+json", _hash(config), len(config)),
                "layers": layers,
            }
        )
        listed = _described("manifest.v1+json", _hash(manifest), len(manifest))
        listed |= {"platform": machine, "annotations": {NAME: full_name(name), REFERENCE: full_name(name)}}
        index = {"schemaVersion": 2, "mediaType": f"{MEDIA}.index.v1+json", "manifests": [listed]}
        with atomic_writer(archive) as temporary, tarfile.open(temporary, "w") as tar:
            _add(tar, "oci-layout", io.BytesIO(b'{"imageLayoutVersion": "1.0.0"}'))
            _add(tar, "index.json", io.BytesIO(_json(index)))
            for blob in (config, manifest):
                _add(tar, _blob(_hash(blob)), io.BytesIO(blob))
            _add(tar, _blob(digest), layer)
    return archive


def names_in(archive: Path) -> list[str]:
    """Names of the images in an OCI or docker archive; raises ClusterError for what is none or names none."""
    try:
        with tarfile.open(archive) as tar:
            names = _names(tar)
    except (OSError, tarfile.TarError, ValueError, KeyError) as error:
        remedy = "podman save, docker save, or buildah push oci-archive:"
        raise ClusterError(f"{archive}: not an image's archive: {error}", remedy=remedy) from error
    if not names:
        raise ClusterError(f"{archive}: the image in it has no name", remedy="save it by its name with tag, not its id")
    return names


def full_name(name: str) -> str:
    """The name that Kubernetes makes of an image's: with registry; ``localhost/`` is what buildah puts before ours."""
    name = name.removeprefix("localhost/")
    first, _, rest = name.partition("/")
    if rest and ("." in first or ":" in first):
        return name
    return f"{DEFAULT_REGISTRY}/{name}" if rest else f"{DEFAULT_REGISTRY}/library/{name}"


def _names(tar: tarfile.TarFile) -> list[str]:
    # A docker archive may be both; its own list has the full names.
    for file, read in (("manifest.json", _docker_names), ("index.json", _oci_names)):
        try:
            member = tar.extractfile(file)
        except KeyError:
            continue
        if member is not None and (found := read(json.load(member))):
            return found
    return []


def _docker_names(listed: list[dict[str, Any]]) -> list[str]:
    return [name for image in listed for name in image.get("RepoTags") or ()]


def _oci_names(index: dict[str, Any]) -> list[str]:
    annotations = [each.get("annotations") or {} for each in index["manifests"]]
    return [each.get(NAME) or each[REFERENCE] for each in annotations if NAME in each or REFERENCE in each]


def _write_layer(layer: IO[bytes], entries: Iterable[Entry]) -> None:
    folders: set[str] = set()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for entry in sorted(entries, key=lambda each: each.path):
            for parent in reversed(Path(entry.path).parents):
                name = str(parent).lstrip("/")
                if name and name not in folders:
                    folders.add(name)
                    about = tarfile.TarInfo(name)
                    about.type, about.mode = tarfile.DIRTYPE, 0o755
                    tar.addfile(about)
            source = entry.source.resolve()
            about = tarfile.TarInfo(entry.path.lstrip("/"))
            about.size, about.mode = source.stat().st_size, 0o755 if source.stat().st_mode & 0o100 else 0o644
            with source.open("rb") as file:
                tar.addfile(about, file)


def _digest(file: IO[bytes]) -> str:
    file.seek(0)
    summed = hashlib.sha256()
    while block := file.read(1 << 20):
        summed.update(block)
    return f"sha256:{summed.hexdigest()}"


def _add(tar: tarfile.TarFile, name: str, file: IO[bytes]) -> None:
    about = tarfile.TarInfo(name)
    about.size = file.seek(0, io.SEEK_END)
    file.seek(0)
    tar.addfile(about, file)


def _described(kind: str, digest: str, size: int) -> dict[str, Any]:
    return {"mediaType": f"{MEDIA}.{kind}", "digest": digest, "size": size}


def _hash(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _blob(digest: str) -> str:
    return f"blobs/sha256/{digest.removeprefix('sha256:')}"


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True).encode()
