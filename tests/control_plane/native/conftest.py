"""A cluster of real nodes for the tests of this folder: one for all; where it cannot run they are skipped."""

from collections.abc import Iterator

import pytest

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
def cluster(before: dict[str, set[str]]) -> Iterator[NativeCluster]:
    """A system node, two spot nodes with an advertised V100 each, training-operator and JobSet."""
    with NativeCluster() as started:
        yield started
