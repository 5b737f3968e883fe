"""Images of a cluster without a registry: archives that are put into every node's containerd."""

import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.cluster.native.configuration import PAUSE_IMAGE
from tools.cluster.native.machine import NodeProcess
from tools.cluster.programs import folder, program
from tools.images.archives import Entry, names_in, write_archive
from tools.images.targets import qualified

CTR = ("ctr", "--namespace=k8s.io", "images")
# The processors are few, and unpacking keeps each busy.
THREADS = 2


def import_archive(machines: Iterable[NodeProcess], archive: Path) -> list[str]:
    """Put an archive's images into nodes; returns the names by which pods ask for them."""
    names = names_in(archive)

    def put(machine: NodeProcess) -> None:
        # Read here: a node does not see all of this machine's folders.
        machine.inside([*CTR, "import", "-"], stdin=archive)
        for name in names:
            if qualified(name) != name:
                machine.inside([*CTR, "tag", "--force", name, qualified(name)])

    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(put, machines))
    return [qualified(name) for name in names]


def program_archive(name: str, image: str, *, entrypoint: str, user: str = "65532") -> Path:
    """An image's archive with one of the built programs in it; kept beside the programs."""
    archive = folder() / "images" / f"{name}-{_tag(image)}.tar"
    built = program(name)
    if not archive.is_file() or archive.stat().st_mtime < built.stat().st_mtime:
        write_archive(archive, image, [Entry(built, entrypoint)], entrypoint=[entrypoint], user=user)
    return archive


def put_pause(node_folder: Path) -> None:
    """The pause image's archive into a node's folder, where its first process looks for it."""
    shutil.copyfile(program_archive("pause", PAUSE_IMAGE, entrypoint="/pause"), node_folder / "pause.tar")


def _tag(image: str) -> str:
    return image.rsplit(":", 1)[-1].replace("/", "-")
