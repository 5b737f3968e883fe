"""A real control plane for the tests below this folder; they are skipped where its programs are not built."""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kubernetes import client
from kubernetes.client.exceptions import ApiException

from tests.control_plane import faults
from tools.cluster import ControlPlane, Pool, is_built
from tools.cluster.pools import add_pool

HERE = Path(__file__).parent
WORK = (
    {"group": "caloscale.dev", "version": "v1alpha1", "plural": "trainingruns"},
    {"group": "kubeflow.org", "version": "v1", "plural": "tfjobs"},
    {"group": "kubeflow.org", "version": "v2beta1", "plural": "mpijobs"},
    {"group": "jobset.x-k8s.io", "version": "v1alpha2", "plural": "jobsets"},
)
"""Objects that make pods."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Everything that asks for the control plane carries the mark `control_plane`."""
    for item in items:
        if "control_plane" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.control_plane)


@pytest.fixture(scope="package")
def control_plane() -> Iterator[ControlPlane]:
    """etcd, API server, controllers, scheduler, kwok, training-operator, JobSet; one for all tests."""
    if not is_built():
        pytest.skip("no control plane: `make control-plane-build` builds it once (up to half an hour)")
    with ControlPlane() as plane:
        yield plane


@pytest.fixture(scope="package")
def api(control_plane: ControlPlane) -> client.ApiClient:
    """The administrator's client."""
    return control_plane.client()


_numbers = itertools.count(1)


@pytest.fixture
def namespace(request: pytest.FixtureRequest, control_plane: ControlPlane, api: client.ApiClient) -> Iterator[str]:
    """A namespace of the test's own. When the test ends, its runs, jobs and pods are deleted.

    The namespace stays: deleting it takes two requests for each of seventy kinds of objects, half a second of
    processor time.
    """
    words = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower()).strip("-")[:40].strip("-")
    name = f"{words}-{next(_numbers)}"
    core = client.CoreV1Api(api)
    core.create_namespace({"metadata": {"name": name}})
    control_plane.wait_until(
        lambda: bool(core.list_namespaced_service_account(name).items), "the namespace's service account is there"
    )
    yield name
    for kind in WORK:
        with contextlib.suppress(ApiException):  # the server does not know the kind
            client.CustomObjectsApi(api).delete_collection_namespaced_custom_object(namespace=name, **kind)
    core.delete_collection_namespaced_pod(name)


@pytest.fixture
def add_nodes(api: client.ApiClient) -> Iterator[Callable[..., list[str]]]:
    """``add_nodes(pool="v100", count=4, gpus=8, spot=False, ...)`` makes nodes that are ready and returns their names.

    Further arguments are fields of tools.cluster.Pool (accelerator, topology, machine_type, ...).
    All nodes of a test go when it ends.
    """
    made: set[str] = set()

    def add(pool: str = "v100", count: int = 1, gpus: int = 8, *, spot: bool = False, **more: object) -> list[str]:
        described = Pool(pool, count, per_node=gpus, spot=spot, **more)  # type: ignore[arg-type]
        first = 1 + max((int(name.rsplit("-", 1)[1]) for name in made if name.rsplit("-", 1)[0] == pool), default=-1)
        names = add_pool(api, described, first=first)
        made.update(names)
        return names

    yield add
    faults.remove_nodes(api, made)


@pytest.fixture
def remove_nodes(api: client.ApiClient) -> Callable[..., None]:
    """``remove_nodes(names, notice=False)`` takes nodes away with their pods; with notice, pods end with 143 before."""
    return lambda names, **options: faults.remove_nodes(api, names, **options)
