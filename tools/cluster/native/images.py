"""Images of a cluster without a registry: archives that are put into every node's containerd."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tools.cluster.native.configuration import PAUSE_IMAGE
from tools.cluster.native.machine import NodeProcess
from tools.cluster.programs import program
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


def put_pause(node_folder: Path) -> None:
    """The pause image's archive into a node's folder, where its first process looks for it."""
    write_archive(
        node_folder / "pause.tar", PAUSE_IMAGE, [Entry(program("pause"), "/pause")], entrypoint=["/pause"], user="65532"
    )
