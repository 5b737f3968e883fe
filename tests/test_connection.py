"""Which cluster and namespace are meant; what is said to an API server is in tests/control_plane."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from caloscale import connection

KUBECONFIG = {
    "current-context": "here",
    "clusters": [{"name": "c", "cluster": {"server": "https://c"}}],
    "users": [{"name": "u", "user": {}}],
    "contexts": [
        {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "physics"}},
        {"name": "there", "context": {"cluster": "c", "user": "u"}},
    ],
}


@pytest.fixture
def kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(KUBECONFIG))
    monkeypatch.setattr("kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION", str(file))
    return file


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod, such as that of a notebook."""
    file = tmp_path / "namespace"
    file.write_text("team\n")
    monkeypatch.setattr(connection, "POD_NAMESPACE", file)


def test_outside_a_pod_the_kubeconfig_names_the_namespace(kubeconfig: Path) -> None:
    assert connection.active_namespace() == "physics"
    assert connection.active_namespace("there") == "default"
    kubeconfig.unlink()
    assert connection.active_namespace() == "default"


def test_in_a_pod_it_is_the_pods_unless_a_context_is_named(kubeconfig: Path, pod: None) -> None:
    """As `connect`, which takes the pod's own cluster."""
    assert connection.active_namespace() == "team"
    assert connection.active_namespace("here") == "physics"
