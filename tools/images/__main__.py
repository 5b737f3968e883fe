"""``python -m tools.images``: build the images, push them, make the base for where there is no registry."""

import os
import time
from typing import Annotated

import typer

from tools.cluster.errors import run_app
from tools.images.base import IMAGE, make_base
from tools.images.buildah import archives, build_command, image_id, program, push_image, run, write_archive
from tools.images.machine import pip_settings, revision, secrets, wheel_folders
from tools.images.targets import REGISTRY, ROOT, TARGETS, ImageError, Target, choose, qualified

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
Targets = Annotated[list[str] | None, typer.Argument(help=", ".join(TARGETS))]


@app.command()
def build(
    targets: Targets = None,
    registry: Annotated[str, typer.Option(help="Server and path before the name; empty: caloscale.")] = "",
    push: Annotated[bool, typer.Option(help="Send them to the registry.")] = False,
    archive: Annotated[bool, typer.Option(help="Also write archives for nodes without a registry.")] = False,
    base: Annotated[str, typer.Option(help="Base image; empty: the Dockerfile's, or that of `base`.")] = "",
    extras: Annotated[str | None, typer.Option(help="Extras in a trainer, in addition to TensorFlow's.")] = None,
) -> None:
    """Build images, with the package's version as tag; an image that one of them is made from is built before."""
    chosen = choose(targets or ())
    if push and not registry:
        raise ImageError("PUSH: where to?", remedy="REGISTRY=europe-west4-docker.pkg.dev/PROJECT/REPOSITORY, say")
    program()

    def image_of(target: Target) -> str:
        return qualified(target.image(registry or REGISTRY))

    settings, source = pip_settings(os.environ), revision(ROOT)
    base = base or (IMAGE if image_id(IMAGE) else "")
    needed = {target.after: TARGETS[target.after] for target in chosen.values() if target.after}
    absent = {name: each for name, each in needed.items() if name not in chosen and image_id(image_of(each)) is None}
    building = {**absent, **chosen}
    print(f"building {', '.join(building)}, revision {source[:12]}, on {base or 'the base of its Dockerfile'}")
    with secrets(settings, os.environ) as files:
        for number, (name, target) in enumerate(building.items(), 1):
            image, begun = image_of(target), time.monotonic()
            print(f"[{number}/{len(building)}] {image}", flush=True)
            on = image_of(TARGETS[target.after]) if target.after else base
            folders = wheel_folders(settings)
            command = build_command(target, image, source, base=on, extras=extras, secrets=files, folders=folders)
            run(*command, doing=f"build {name}")
            print(
                f"[{number}/{len(building)}] {image}: {time.monotonic() - begun:.0f} s, {image_id(image)}", flush=True
            )
            if archive and name in chosen:
                print(write_archive(name, image))
            if push and name in chosen:
                print(f"pushed {push_image(image)}")


@app.command()
def base(refresh: Annotated[bool, typer.Option(help="Make it again.")] = False) -> None:
    """Make the base image from Debian's packages (root), which `build` then takes."""
    make_base(refresh=refresh)


@app.command("archives")
def show(targets: Targets = None) -> None:
    """Print the archives that were written: the image's name and the file."""
    for image, path in archives(targets or ()).items():
        print(f"{image}\t{path}")


if __name__ == "__main__":
    run_app(app)
