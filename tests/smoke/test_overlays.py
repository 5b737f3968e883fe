"""The overlays for GKE on real nodes: nothing in them is only for GKE, so they are deployed and not only looked at."""

import pytest

from tests.smoke.named import NamedCluster
from tests.smoke.runs import RealCluster, image_of
from tools.deploy import deploy

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("overlay", ["gke-gpu", "gke-tpu"])
def test_the_operator_runs_as_on_gke(overlay: str, cluster: RealCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for the rollout by itself; then its pods are on a machine that stays, and are not pushed aside."""
    if isinstance(cluster, NamedCluster):
        pytest.skip("somebody's cluster has the overlay that make was given")
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    images = {"image": image_of("operator"), "trainer": image_of("trainer")}
    try:
        deploy(context=cluster.context, overlay=overlay, **images)
        listed = cluster.get("pods", "-n", "caloscale-system", "-l", "app.kubernetes.io/name=caloscale-operator")
        pods = [each for each in listed["items"] if "deletionTimestamp" not in each["metadata"]]
        assert len(pods) == 2
        for pod in pods:
            assert pod["spec"]["priorityClassName"] == "caloscale-operator" and pod["spec"]["priority"] == 1_000_000
            assert pod["spec"]["nodeName"] == cluster.nodes[0], "the one node that is no spot machine"
    finally:
        deploy(context=cluster.context, overlay="kind", **images)
