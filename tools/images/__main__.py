"""``python -m tools.images``: build the images, push them, make the base for where there is no registry."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Annotated

import typer

from caloscale import __version__
from caloscale.errors import CaloscaleError
from tools.images.archives import archives, write_archive
from tools.images.base import IMAGE, make_base
from tools.images.engines import Build, Engine, find_engine
from tools.images.errors import ImageError
from tools.images.machine import pip_settings, revision, secrets, wheel_folders
from tools.images.targets import REGISTRY, ROOT, TARGETS, Target, choose, qualified

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
Targets = Annotated[list[str] | None, typer.Argument(help=", ".join(TARGETS))]
EngineName = Annotated[str, typer.Option(help="docker, podman or buildah; empty: the first that works here.")]


@app.command()
def build(
    targets: Targets = None,
    engine: EngineName = "",
    registry: Annotated[str, typer.Option(help="Server and path before the name; empty: caloscale.")] = "",
    push: Annotated[bool, typer.Option(help="Send them to the registry.")] = False,
    archive: Annotated[bool, typer.Option(help="Also write archives for nodes without a registry.")] = False,
    base: Annotated[str, typer.Option(help="Base image; empty: the Dockerfile's, or that of `base`.")] = "",
    extras: Annotated[str | None, typer.Option(help="Extras in a trainer, beside TensorFlow's.")] = None,
) -> None:
    """Build images, with the package's version as tag; what one of them is made from is built before."""
    chosen = choose(targets or ())
    if push and not registry:
        raise ImageError("PUSH: where to?", remedy="REGISTRY=europe-west4-docker.pkg.dev/PROJECT/REPOSITORY, say")
    found = find_engine(engine)
    settings = pip_settings(os.environ)
    source = revision(ROOT)
    base = base or (IMAGE if found.image_id(IMAGE) else "")
    building = {**_absent(found, chosen, registry), **chosen}
    on = base or "the base of its Dockerfile"
    print(f"{found.name} builds {', '.join(building)}, revision {source[:12]}, on {on}")
    with secrets(settings, os.environ) as files:
        for number, (name, target) in enumerate(building.items(), 1):
            image = _image(target, registry)
            print(f"[{number}/{len(building)}] {image}", flush=True)
            from_image = _image(TARGETS[target.after], registry) if target.after else base
            wanted = Build(target, image, source, __version__, from_image, extras, files, wheel_folders(settings))
            seconds = run(found, found.build(wanted, ROOT), f"build {name}")
            print(
                f"[{number}/{len(building)}] {image}: built in {seconds:.0f} s, id {found.image_id(image)}", flush=True
            )
            if archive and name in chosen:
                print(write_archive(found, name, image))
            if push and name in chosen:
                run(found, found.push(image), f"push {image}")


def _image(target: Target, registry: str) -> str:
    return qualified(target.image(registry or REGISTRY))


def _absent(engine: Engine, chosen: Mapping[str, Target], registry: str) -> dict[str, Target]:
    """Targets that chosen ones are made from and that nobody has built: they are neither pushed nor archived."""
    needed = {target.after: TARGETS[target.after] for target in chosen.values() if target.after}
    return {
        name: target
        for name, target in needed.items()
        if name not in chosen and engine.image_id(_image(target, registry)) is None
    }


def run(engine: Engine, command: list[str], doing: str) -> float:
    """Run a command of the engine, which shows its own progress; returns seconds. Raises ImageError."""
    started = time.monotonic()
    done = subprocess.run(command, env=engine.environment(), check=False)
    if done.returncode:
        raise ImageError(
            f"{engine.name} could not {doing} (exit code {done.returncode})",
            remedy="read its messages above. A base that cannot be pulled: make base-image (Debian, root), or "
            "BASE_IMAGE=...; packages that cannot be fetched: see docs/images.md; a push that is refused: log in",
        )
    return time.monotonic() - started


@app.command()
def base(engine: EngineName = "buildah", refresh: Annotated[bool, typer.Option(help="Make it anew.")] = False) -> None:
    """Make the base image from Debian's packages (root), which `build` then takes."""
    make_base(find_engine(engine), refresh=refresh)


@app.command("archives")
def show(targets: Targets = None) -> None:
    """Print the archives that were written: the image's name and the file."""
    for image, path in archives(targets or ()).items():
        print(f"{image}\t{path}")


if __name__ == "__main__":
    try:
        app()
    except CaloscaleError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        print("\ninterrupted; run it again to resume: what is built is kept", file=sys.stderr)
        sys.exit(130)
