"""A cluster that is somebody's, by its context."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.smoke.named import NamedCluster
from tests.smoke.runs import hardware_of
from tools.cluster import ControlPlane
from tools.cluster.certificates import CONTEXT
from tools.cluster.errors import ClusterError


@pytest.fixture
def kubeconfig(control_plane: ControlPlane, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's."""
    monkeypatch.setenv("KUBECONFIG", str(control_plane.kubeconfig))
    return control_plane.kubeconfig


def test_it_is_used_as_it_is(kubeconfig: Path, add_nodes: Callable[..., list[str]]) -> None:
    names = add_nodes(count=2, gpus=4, spot=True)
    with NamedCluster(CONTEXT) as cluster:
        folder = cluster.folder
        assert set(names) <= set(cluster.nodes) and cluster.context == CONTEXT
        assert cluster.kubeconfig != kubeconfig and cluster.kubeconfig.stat().st_mode & 0o077 == 0
        assert cluster.import_image(Path("none.tar")) == []
        wanted = hardware_of(cluster.get("nodes", *names)["items"])
    assert wanted["count"] == 8 and wanted["perNode"] == 4 and wanted["capacityType"] == "spot"
    assert not folder.exists() and kubeconfig.is_file()


def test_an_unknown_context_is_said(kubeconfig: Path) -> None:
    with (
        pytest.raises(ClusterError, match=r"context nowhere[\s\S]*kubectl config get-contexts"),
        NamedCluster("nowhere"),
    ):
        pass


def test_what_is_missing_is_said_with_the_commands(kubeconfig: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.smoke.named.NEEDED", {"jobsets.jobset.x-k8s.io": "jobset", "others.example": "other"})
    with pytest.raises(ClusterError) as caught, NamedCluster(CONTEXT):
        pass
    assert "does not have other\n" in str(caught.value)
    assert f"kubectl apply --context {CONTEXT} --server-side -k manifests/third-party/other" in str(caught.value)


def test_without_accelerators_two_workers_on_processors() -> None:
    document = {"metadata": {"labels": {"kubernetes.io/hostname": "a"}}}
    assert hardware_of([document, document]) == {"accelerator": "cpu", "count": 2}
