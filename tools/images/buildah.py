"""Buildah: builds the images, pushes them, and writes them into files for nodes that no registry serves."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from caloscale import __version__
from caloscale.storage.atomic import atomic_writer
from caloscale.storage.cache import cache_root
from tools.images.archives import names_in
from tools.images.targets import ROOT, ImageError, Target, choose, qualified


def program() -> str:
    """Where Buildah is. Raises ImageError when it is not installed, or does not work."""
    path = shutil.which("buildah")
    if path is None:
        remedy = "apt-get install buildah (Debian, Ubuntu; needs no service), or dnf"
        raise ImageError("buildah is not installed", remedy=remedy)
    done = subprocess.run([path, "info"], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ImageError(f"buildah is installed and does not work: {reason}", remedy="correct what it names")
    return path


def build_command(
    target: Target,
    image: str,
    revision: str,
    *,
    base: str,
    extras: str | None,
    secrets: dict[str, Path],
    folders: Iterable[Path],
) -> list[str]:
    """The command that builds an image.

    Args:
        target: its stage of a Dockerfile.
        image: its name.
        revision: label; not a build argument, as Buildah 1.28 takes a LABEL of arguments from its cache.
        base: a base, or the image of the target that it is made from; empty: the Dockerfile's.
        extras: extras of pyproject.toml in a trainer; None: the Dockerfile's.
        secrets: files that steps of the build may read and that do not stay: name and path.
        folders: folders of the machine (of wheels) that steps of the build may read, at the same place.
    """
    arguments = {"TRAINER_IMAGE" if target.after else "BASE_IMAGE": base} if base else {}
    if extras is not None and target.repository == "trainer":
        arguments["EXTRAS"] = extras
    labels = {"version": __version__, "revision": revision}
    return [
        "build",
        *(f"--volume={folder}:{folder}:ro" for folder in folders),
        # Without layers a change of our code would install TensorFlow again.
        *("--layers", "--network=host"),
        # The fewest rights; it works within a container, too.
        *(() if "BUILDAH_ISOLATION" in os.environ else ("--isolation=chroot",)),
        f"--file={ROOT / target.dockerfile}",
        f"--target={target.stage}",
        f"--tag={image}",
        *(f"--build-arg={name}={value}" for name, value in arguments.items()),
        *(f"--label=org.opencontainers.image.{name}={value}" for name, value in labels.items()),
        *(f"--secret=id={name},src={path}" for name, path in secrets.items()),
        str(ROOT),
    ]


def image_id(image: str) -> str | None:
    """The id of an image, None when it is not there."""
    command = [program(), "inspect", "--type=image", "--format={{.FromImageID}}", image]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip().removeprefix("sha256:") or None if done.returncode == 0 else None


def folder() -> Path:
    """Where archives are: in the user's cache, or in $CALOSCALE_CACHE."""
    return cache_root() / "images"


def archives(names: Iterable[str] = ()) -> dict[str, Path]:
    """The archives that the last ``make images`` wrote: the name that pods give an image, and its file.

    Args:
        names: of targets (``trainer-cpu``, ``operator``); none: the usual ones.

    Returns:
        Files in Docker's format, not compressed; ``ctr --namespace k8s.io images import FILE`` takes them, and the
        image is then called by the key.

    Raises:
        ImageError: one was not written.
    """
    files = {}
    for name in choose(names):
        written = _written(name)
        if not written:
            raise ImageError(f"there is no archive of the image {name}", remedy=f"make images ARCHIVE=1 TARGETS={name}")
        (image,) = names_in(written[-1])
        files[qualified(image)] = written[-1]
    return files


def _written(name: str) -> list[Path]:
    """Archives of a target's image, whose names end with its id; the newest last, others where a build was killed."""
    found = folder().glob(f"{name}-{'[0-9a-f]' * 12}.tar")
    return sorted(found, key=lambda archive: archive.stat().st_mtime)


def write_archive(name: str, image: str) -> Path:
    """Write the archive of an image that was built and remove the one before; nothing when it has it by this name."""
    identity = image_id(image)
    if identity is None:
        raise ImageError(f"there is no image {image}", remedy=f"make images TARGETS={name}")
    folder().mkdir(parents=True, exist_ok=True)
    archive = folder() / f"{name}-{identity[:12]}.tar"
    if not archive.is_file() or image not in names_in(archive):
        with atomic_writer(archive) as temporary:
            run("push", "--quiet", image, f"docker-archive:{temporary}:{image}", doing=f"write {archive}")
    for other in set(_written(name)) - {archive}:
        other.unlink()
    return archive


def run(*arguments: str, doing: str) -> None:
    """Run Buildah, which shows its own progress. Raises ImageError."""
    done = subprocess.run([program(), *arguments], check=False)
    if done.returncode:
        remedy = "read its messages above. A base that cannot be pulled: make base-image (Debian, root), or "
        remedy += "BASE_IMAGE=...; packages that cannot be fetched: see docs/images.md; a push that is refused: log in"
        raise ImageError(f"buildah could not {doing} (exit code {done.returncode})", remedy=remedy)


def push_image(image: str) -> str:
    """Send an image to its registry; its name by digest, which no other image has. Raises ImageError."""
    with tempfile.TemporaryDirectory() as place:
        digest = Path(place) / "digest"
        run("push", f"--digestfile={digest}", image, f"docker://{image}", doing=f"push {image}")
        return f"{image.rpartition(':')[0]}@{digest.read_text(encoding='utf-8').strip()}"
