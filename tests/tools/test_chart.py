"""The chart of an overlay is rendered by helm to the objects of the overlay."""

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools import chart, deploy

MANIFESTS = Path(__file__).parents[2] / "manifests"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("kubectl")]


def run(program: Path, *arguments: str | Path) -> str:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def helm() -> Path:
    if not chart.helm().is_file():
        pytest.skip("no helm: `python -m tools.chart build` builds it once (a few minutes)")
    return chart.helm()


def objects(text: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Objects by kind, namespace and name; kustomize gives policies a namespace, which the server drops."""
    found = [each for each in yaml.safe_load_all(text) if each]
    for each in found:
        if each["kind"] in chart.CLUSTER_WIDE:
            each["metadata"].pop("namespace", None)
        if each["kind"] == "Deployment":  # a patch of kustomize moves what it changes to the front
            each["spec"]["template"]["spec"]["containers"][0]["env"].sort(key=lambda variable: variable["name"])
    return {(o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in found}


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_helm_renders_what_the_overlay_is(overlay: str, helm: Path, tmp_path: Path) -> None:
    chart.write_chart(overlay, tmp_path)
    options = ("--kube-version", "1.34.4")
    rendered = run(helm, "template", "x", tmp_path, "-n", "caloscale-system", "--include-crds", *options)
    wanted = objects(deploy.kubectl("", "kustomize", str(MANIFESTS / "overlays" / overlay)))
    del wanted["Namespace", "", "caloscale-system"]
    assert objects(rendered) == wanted
    run(helm, "lint", "--strict", "--quiet", *options, tmp_path)


def test_values_reach_their_objects(helm: Path, tmp_path: Path) -> None:
    values = {
        "image": "registry.example/operator@sha256:" + "a" * 64,
        "trainer": "registry.example/trainer:2",
        "solver": "registry.example/solver:2",
        "namespaces": ["physics", "muons"],
        "prices": "provider\nnone\n",
        "labels": "vendor\nlab\n",
        "resources": {"limits": {"memory": "1Gi"}},
        "queues": [{"name": "gpus", "namespace": "physics", "clusterQueue": "laboratory"}],
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    chart.write_chart("kind", tmp_path / "chart")
    options = ("--kube-version", "1.34.4", "--values", tmp_path / "values.yaml")
    rendered = objects(run(helm, "template", "x", tmp_path / "chart", "-n", "physics", *options))
    (container,) = rendered["Deployment", "physics", "caloscale-operator"]["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert container["image"] == values["image"] and environment["CALOSCALE_IMAGE"] == values["trainer"]
    assert environment["CALOSCALE_SOLVER_IMAGE"] == values["solver"]
    assert environment["CALOSCALE_NAMESPACES"] == "physics,muons" and container["resources"]["limits"] == {
        "memory": "1Gi"
    }
    assert ("ClusterRoleBinding", "", "caloscale-operator") not in rendered
    assert rendered["ConfigMap", "physics", "caloscale-prices"]["data"] == {"prices.csv": values["prices"]}
    assert rendered["ConfigMap", "physics", "caloscale-labels"]["data"] == {"labels.csv": values["labels"]}
    assert rendered["LocalQueue", "physics", "gpus"]["spec"] == {"clusterQueue": "laboratory"}
    bindings = [o for (kind, *_), o in rendered.items() if kind.endswith("RoleBinding")]
    assert {s["namespace"] for b in bindings for s in b["subjects"]} == {"physics"}
