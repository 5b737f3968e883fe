"""What pods take of their nodes."""

from typing import Any

import pytest

from caloscale.cluster.capacity.nodes import Use
from caloscale.cluster.capacity.pods import use_of


def asks(gpus: int, cpus: str, memory: str, **more: str) -> dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": gpus}, "requests": {"cpu": cpus, "memory": memory}}, **more}


MAIN = asks(1, "2", "4Gi")
SIDECAR = asks(0, "500m", "1Gi", restartPolicy="Always")
SETUP = asks(0, "3", "2Gi")
BEGUN = asks(0, "1800m", "512Mi")


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [MAIN, MAIN]}, (2, 4.0, 8.0)),
        ({"containers": [MAIN], "initContainers": [SIDECAR]}, (1, 2.5, 5.0)),
        # whichever is more, resource by resource
        ({"containers": [MAIN], "initContainers": [SETUP, BEGUN]}, (1, 3.0, 4.0)),
        # a step of the initialization runs beside the sidecars that were begun before it
        ({"containers": [MAIN], "initContainers": [SIDECAR, SETUP]}, (1, 3.5, 5.0)),
        ({"containers": [MAIN], "initContainers": [SETUP, SIDECAR]}, (1, 3.0, 5.0)),
        ({"containers": [MAIN], "overhead": {"cpu": "250m", "memory": "128Mi"}}, (1, 2.25, 4.125)),
        # accelerators are the containers' in any case
        ({"containers": [MAIN], "resources": {"requests": {"cpu": "6"}, "limits": {"memory": "9Gi"}}}, (1, 6.0, 4.0)),
        ({"containers": [MAIN], "initContainers": [SETUP], "resources": {"requests": {"memory": "3Gi"}},
          "overhead": {"memory": "1Gi"}}, (1, 3.0, 4.0)),
    ],
)  # fmt: skip
def test_a_pod_takes_what_the_scheduler_counts(spec: dict[str, Any], expected: tuple[int, float, float]) -> None:
    assert use_of({"spec": {"nodeName": "n", **spec}}) == Use("n", *expected)
