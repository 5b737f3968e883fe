"""Which images there are, and how they are called."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from caloscale import __version__
from caloscale.errors import CaloscaleError

ROOT = Path(__file__).resolve().parents[2]
# What components, manifests and docs call the images when nobody says otherwise.
REGISTRY = "caloscale"
# What such a name means to Kubernetes: names without a server are those of Docker Hub.
SERVER = "docker.io"


class ImageError(CaloscaleError):
    """Buildah is absent, or it failed."""

    exit_code = 4


@dataclass(frozen=True)
class Target:
    """An image: a stage of a Dockerfile, and its name."""

    dockerfile: str
    stage: str
    repository: str
    variant: str = ""
    """Appended to the tag: the trainer for processors has the plain one, as it is also the image of the components."""
    after: str = ""
    """Target whose image it is made from, which is built before; empty: a base."""

    def image(self, registry: str = REGISTRY) -> str:
        """The image's name with the package's version as tag, such as ``caloscale/trainer:0.1.0-gpu``."""
        return f"{registry}/{self.repository}:{__version__}{self.variant}"


TARGETS = MappingProxyType(
    {
        "trainer-cpu": Target("docker/trainer.Dockerfile", "cpu", "trainer"),
        "trainer-gpu": Target("docker/trainer.Dockerfile", "gpu", "trainer", "-gpu"),
        "trainer-tpu": Target("docker/trainer.Dockerfile", "tpu", "trainer", "-tpu"),
        "solver": Target("docker/solver.Dockerfile", "solver", "solver", after="trainer-cpu"),
        "operator": Target("docker/operator.Dockerfile", "operator", "operator"),
        "storage": Target("docker/storage.Dockerfile", "storage", "storage"),
    }
)
USUAL = ("trainer-cpu", "operator")


def choose(names: Iterable[str]) -> dict[str, Target]:
    """The targets of these names, the usual ones for none; raises ImageError for one that there is not.

    Those that are made from another's image come last.
    """
    chosen = tuple(names) or USUAL
    for name in chosen:
        if name not in TARGETS:
            raise ImageError(f"TARGETS: there is no image {name!r}", remedy=f"some of: {' '.join(TARGETS)}")
    return {name: TARGETS[name] for name in sorted(chosen, key=lambda name: bool(TARGETS[name].after))}


def qualified(image: str) -> str:
    """A name with its server, as Kubernetes completes it: ``docker.io/caloscale/trainer:0.1.0``.

    ``localhost/`` is what Buildah puts before names of this machine.
    """
    image = image.removeprefix("localhost/")
    server, slash, _ = image.partition("/")
    if slash and ("." in server or ":" in server):
        return image
    return f"{SERVER}/{image}" if slash else f"{SERVER}/library/{image}"
