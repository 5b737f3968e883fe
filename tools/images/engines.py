"""Docker, Podman and Buildah: which is here, and the command lines by which each does the same."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from tools.images.errors import ImageError
from tools.images.targets import Target

Name = Literal["docker", "podman", "buildah"]
# In this order they are looked for. Each with a command that fails where it cannot build.
PROBES: dict[Name, tuple[str, ...]] = {
    "docker": ("version", "--format", "{{.Server.Version}}"),
    "podman": ("info", "--format", "{{.Store.GraphDriverName}}"),
    "buildah": ("info", "--format", "{{.store.GraphDriverName}}"),
}
INSTALL = (
    "install one: apt-get install buildah (Debian, Ubuntu; needs no service), dnf install podman, "
    "or Docker (https://docs.docker.com/engine/install)"
)


@dataclass(frozen=True)
class Build:
    """What an image is built from."""

    target: Target
    image: str
    revision: str
    version: str
    base: str = ""
    """A base, or the image of the target that it is made from; absent: the Dockerfile's."""
    extras: str | None = None
    """Extras of pyproject.toml in a trainer; None: the Dockerfile's."""
    secrets: Mapping[str, Path] = field(default_factory=dict)
    """Files that steps of the build may read and that do not stay: name and path."""
    folders: tuple[Path, ...] = ()
    """Folders of the machine (of wheels) that steps of the build may read, at the same place."""

    def arguments(self) -> dict[str, str]:
        """Build arguments of the Dockerfile."""
        given = {"TRAINER_IMAGE" if self.target.after else "BASE_IMAGE": self.base} if self.base else {}
        if self.extras is not None and self.target.repository == "trainer":
            given["EXTRAS"] = self.extras
        return given

    def labels(self) -> dict[str, str]:
        """Labels of this build; not build arguments, as Buildah 1.28 takes a LABEL of arguments from its cache."""
        return {"org.opencontainers.image.version": self.version, "org.opencontainers.image.revision": self.revision}


@dataclass(frozen=True)
class Engine:
    """A program that builds images."""

    name: Name
    program: str

    def build(self, wanted: Build, context: Path) -> list[str]:
        """The command that builds an image from the files of ``context``."""
        command = [self.program, "build", *self._options(wanted)]
        command += [f"--file={context / wanted.target.dockerfile}", f"--target={wanted.target.stage}"]
        command += [f"--tag={wanted.image}"]
        command += [f"--build-arg={name}={value}" for name, value in wanted.arguments().items()]
        command += [f"--label={name}={value}" for name, value in wanted.labels().items()]
        command += [f"--secret=id={name},src={path}" for name, path in wanted.secrets.items()]
        return [*command, str(context)]

    def _options(self, wanted: Build) -> list[str]:
        if self.name == "docker":
            return []
        options = [f"--volume={folder}:{folder}:ro" for folder in wanted.folders]
        if self.name == "buildah":
            # Podman keeps layers anyway; a change of our code would else install TensorFlow again.
            options += ["--layers", "--network=host"]
            # It needs the fewest rights; it is what works within a container, too.
            options += [] if "BUILDAH_ISOLATION" in os.environ else ["--isolation=chroot"]
        return options

    def environment(self) -> dict[str, str]:
        """The environment of the commands: the Dockerfiles need BuildKit, which was not always Docker's default."""
        return {**os.environ, "DOCKER_BUILDKIT": "1"}

    def push(self, image: str) -> list[str]:
        """The command that sends an image to its registry, where the engine is logged in."""
        return [self.program, "push", image, *([f"docker://{image}"] if self.name == "buildah" else [])]

    def save(self, image: str, archive: Path) -> list[str]:
        """The command that writes an image into one file, in Docker's format (not compressed: it is read here)."""
        if self.name == "buildah":
            return [self.program, "push", "--quiet", image, f"docker-archive:{archive}:{image}"]
        kind = ["--format=docker-archive"] if self.name == "podman" else []
        return [self.program, "save", *kind, f"--output={archive}", image]

    def identify(self, image: str) -> list[str]:
        """The command that prints the id of an image, and fails when it is not there."""
        if self.name == "buildah":
            return [self.program, "inspect", "--type=image", "--format={{.FromImageID}}", image]
        return [self.program, "image", "inspect", "--format={{.Id}}", image]

    def image_id(self, image: str) -> str | None:
        """The id of an image, None when it is not there."""
        done = subprocess.run(self.identify(image), capture_output=True, text=True, check=False)
        return done.stdout.strip().removeprefix("sha256:") or None if done.returncode == 0 else None


def find_engine(wanted: str = "") -> Engine:
    """The engine of this name, or the first that works here. Raises ImageError with what to install or to start."""
    if wanted and wanted not in PROBES:
        raise ImageError(f"ENGINE: unknown (got {wanted!r})", remedy=f"one of: {', '.join(PROBES)}")
    complaints = []
    for name, probe in PROBES.items():
        if wanted not in ("", name):
            continue
        program = shutil.which(name)
        if program is None:
            complaints.append(f"{name} is not installed")
            continue
        done = subprocess.run([program, *probe], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return Engine(name, program)
        said = (done.stderr.strip().splitlines() or ["no message"])[-1]
        complaints.append(f"{name} is installed and does not work: {said}")
    started = any("installed and does not work" in each for each in complaints)
    raise ImageError(
        "no engine to build images with: " + "; ".join(complaints),
        remedy=("start it (systemctl start docker), or " if started else "") + INSTALL,
    )
