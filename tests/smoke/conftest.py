"""A cluster of real nodes with the operator, the bucket and the images: once for all tests that need it."""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from caloscale.bench.results import describe_machine
from caloscale.storage.atomic import atomic_writer
from caloscale.storage.objects import upload
from tests.processes import running
from tests.smoke.named import NamedCluster
from tests.smoke.runs import BUCKET, NAMESPACE, RealCluster, Runs, image_of
from tools.cluster.access import kubectl_program
from tools.cluster.errors import ClusterError
from tools.cluster.native import NativeCluster
from tools.cluster.native.cluster import OPERATORS
from tools.cluster.programs import ADDITIONS, is_built
from tools.deploy import deploy
from tools.images import ImageError, archives

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ("operator", "trainer-cpu", "storage")
TIMINGS = ROOT / "runs" / "bench" / "smoke.json"


@pytest.fixture(scope="session")
def timings() -> Iterator[dict[str, float]]:
    """Seconds that the tests note; kept for docs/benchmarks.md, those that were not measured now as they were."""
    noted: dict[str, float] = {}
    machine = describe_machine().model_dump(mode="json", by_alias=True)  # with its load before all this
    yield noted
    before = json.loads(TIMINGS.read_text(encoding="utf-8")) if TIMINGS.is_file() else {}
    seconds = {**before.get("seconds", {}), **noted}
    with atomic_writer(TIMINGS) as temporary:
        temporary.write_text(json.dumps({"seconds": seconds, "machine": machine}, indent=2) + "\n", encoding="utf-8")


@pytest.fixture(scope="session")
def cluster(timings: dict[str, float]) -> Iterator[RealCluster]:
    """Three real nodes, two of them with an advertised accelerator; operator and bucket deployed."""
    begun = time.monotonic()
    with _cluster() as made:
        timings["clusterUpSeconds"] = time.monotonic() - begun
        begun = time.monotonic()
        if not isinstance(made, NamedCluster):
            system, *others = made.nodes
            for name, archive in zip(IMAGES, archives(IMAGES).values(), strict=True):
                made.import_image(archive, nodes=others if name == "trainer-cpu" else [system])
            timings["imagesIntoNodesSeconds"] = time.monotonic() - begun
        storage = made.kubectl("kustomize", str(ROOT / "manifests" / "storage" / "kind"))
        made.apply(re.sub(r"image: \S+", f"image: {image_of('storage')}", storage))
        begun = time.monotonic()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(made.kubeconfig))
            deploy(
                context=made.context,
                overlay=os.environ.get("OVERLAY") or "kind",
                image=image_of("operator"),
                trainer=image_of("trainer"),
                solver=image_of("solver"),
            )
        timings["deploySeconds"] = time.monotonic() - begun
        made.kubectl("rollout", "status", "deployment/caloscale-storage", "-n", NAMESPACE, "--timeout=180s")
        yield made


def _cluster() -> RealCluster:
    """The cluster of CONTEXT, when make was given one; else one of our own."""
    if context := os.environ.get("CONTEXT"):
        return NamedCluster(context)
    try:
        archives(IMAGES)
        return _native()
    except (ClusterError, ImageError) as error:
        if os.environ.get("SMOKE"):  # make smoke is for nothing else
            raise
        pytest.skip(f"{error}; make smoke does it all")


def _native() -> NativeCluster:
    """With Kubeflow Trainer and Kueue where they are built."""
    return NativeCluster(operators=(*OPERATORS, *(name for name in ADDITIONS if is_built(additions=[name]))))


@pytest.fixture(scope="session")
def storage_address(cluster: RealCluster) -> Iterator[str]:
    """Where the cluster's storage is reached from here: through the API server."""
    forward = ["port-forward", "--namespace", NAMESPACE, "deployment/caloscale-storage", ":4443"]
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    with running([kubectl_program(), *forward], env=environment, stdout=subprocess.PIPE) as process:
        port = re.search(r"127\.0\.0\.1:(\d+)", process.stdout.readline())
        assert port is not None, "kubectl says where it listens"
        threading.Thread(target=process.stdout.read, daemon=True).start()  # it notes every connection
        yield f"http://127.0.0.1:{port.group(1)}"


@pytest.fixture
def bucket(storage_address: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The cluster's bucket, for a test and the programs that it starts."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage_address)
    return BUCKET


@pytest.fixture(scope="session")
def showers(storage_address: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Geant4 showers in the bucket."""
    folder = tmp_path_factory.mktemp("geant4")
    simulate = ["simulate", "--preset", "compact", "--set", "data.showers=96", "--set", "data.energyGev=[5,20]"]
    places = ["--output", str(folder / "showers")]
    subprocess.run([sys.executable, "-m", "caloscale.cli.main", *simulate, *places], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STORAGE_EMULATOR_HOST", storage_address)
        upload(folder / "showers", f"{BUCKET}/geant4")
    return f"{BUCKET}/geant4"


@pytest.fixture
def runs(cluster: RealCluster, bucket: str, showers: str) -> Iterator[Runs]:
    """Runs on the cluster; those of a test are deleted at its end."""
    made = Runs(cluster, bucket, showers)
    yield made
    made.delete_all()
