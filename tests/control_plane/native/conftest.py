"""A cluster of real nodes for the tests of this folder: one for all; where it cannot run they are skipped."""

import itertools
from collections.abc import Iterator

import pytest
from kubernetes import client

from tests.control_plane.native.python_image import write_python_image
from tests.control_plane.native.traces import machine_traces
from tools.cluster.errors import ClusterError
from tools.cluster.native import NativeCluster, requirements


@pytest.fixture(scope="session")
def before() -> dict[str, set[str]]:
    """What was on the machine before the cluster."""
    try:
        requirements.check()
    except ClusterError as error:
        pytest.skip(str(error))
    return machine_traces()


@pytest.fixture(scope="session")
def cluster(before: dict[str, set[str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[NativeCluster]:
    """A system node, two spot nodes with an advertised V100 each, training-operator and JobSet."""
    with NativeCluster() as started:
        # A pod of the operators is ready; the tests' image is in all nodes.
        started.import_image(write_python_image(tmp_path_factory.mktemp("image") / "python.tar"))
        yield started


@pytest.fixture(scope="session")
def core(cluster: NativeCluster) -> client.CoreV1Api:
    """The administrator's client."""
    return client.CoreV1Api(cluster.client())


_numbers = itertools.count(1)


@pytest.fixture
def namespace(cluster: NativeCluster, core: client.CoreV1Api) -> Iterator[str]:
    """A namespace of the test's own; it is gone when the next test begins, and its pods with it."""
    name = f"test-{next(_numbers)}"
    core.create_namespace({"metadata": {"name": name}})
    cluster.wait_until(lambda: bool(core.list_namespaced_service_account(name).items), "the service account is there")
    yield name
    for pod in core.list_namespaced_pod(name).items:
        core.delete_namespaced_pod(pod.metadata.name, name, grace_period_seconds=0)
    core.delete_namespace(name)
