"""The chart is the overlays: made from them, and rendered by helm to the same objects."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from caloscale.errors import InputError
from tools import chart
from tools.cluster.programs import folder

MANIFESTS = Path(__file__).parents[2] / "manifests"
OVERLAYS = sorted(path.name for path in (MANIFESTS / "overlays").iterdir())
HOW_TO_BUILD = "no helm: `python -m tools.chart build` builds it once (a few minutes)"


def run(program: Path | str, *arguments: str | Path) -> str:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def helm() -> Path:
    if not chart.helm().is_file():
        pytest.skip(HOW_TO_BUILD)
    return chart.helm()


@pytest.fixture(scope="module")
def kubectl() -> str:
    built = folder() / "bin" / "kubectl"
    found = shutil.which("kubectl") or (str(built) if built.is_file() else None)
    if found is None:
        pytest.skip("no kubectl")
    return found


def objects(text: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Objects by kind, namespace and name; kustomize gives policies a namespace, which the server drops."""
    found = [each for each in yaml.safe_load_all(text) if each]
    for each in found:
        if each["kind"] in chart.CLUSTER_WIDE:
            each["metadata"].pop("namespace", None)
        if each["kind"] == "Deployment":  # a patch of kustomize moves what it changes to the front
            each["spec"]["template"]["spec"]["containers"][0]["env"].sort(key=lambda variable: variable["name"])
    return {(o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in found}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart, as `make chart` makes it."""
    folder = tmp_path_factory.mktemp("chart")
    chart.write_chart(MANIFESTS, folder)
    return folder


def test_the_chart_has_the_definitions_and_a_template_for_each_file_of_base(made: Path) -> None:
    """Without helm: what it installs beside templates is exactly what kubectl would apply."""
    for file in (MANIFESTS / "crd").glob("training*.yaml"):
        (packed,) = yaml.safe_load_all((made / "crds" / file.name).read_text(encoding="utf-8"))
        (applied,) = yaml.safe_load_all(file.read_text(encoding="utf-8"))
        assert packed["spec"] == applied["spec"]
    base = yaml.safe_load((MANIFESTS / "base" / "kustomization.yaml").read_text(encoding="utf-8"))["resources"]
    assert {path.name for path in (made / "templates").iterdir()} >= set(base) - {"../crd", "namespace.yaml"}
    assert {path.stem for path in made.glob("values-*.yaml")} == {f"values-{name}" for name in OVERLAYS}


def test_a_change_that_the_chart_does_not_know_is_named(tmp_path: Path) -> None:
    shutil.copytree(MANIFESTS, tmp_path / "manifests")
    overlay = tmp_path / "manifests" / "overlays" / "kind"
    change = [{"op": "add", "path": "/spec/template/spec/hostNetwork", "value": True}]
    (overlay / "kustomization.yaml").write_text(json.dumps({"resources": ["../../base"], "patches": [
        {"target": {"kind": "Deployment"}, "patch": json.dumps(change)}
    ]}))  # fmt: skip
    with pytest.raises(InputError, match="hostNetwork"):
        chart.values_of(overlay)


@pytest.mark.integration
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_helm_renders_what_the_overlay_is(overlay: str, helm: Path, kubectl: str, made: Path) -> None:
    values = made / f"values-{overlay}.yaml"
    rendered = run(
        *(helm, "template", "caloscale", made, "--namespace", "caloscale-system"),
        *("--include-crds", "--kube-version", "1.34.4", "--values", values),
    )
    wanted = objects(run(kubectl, "kustomize", MANIFESTS / "overlays" / overlay))
    del wanted["Namespace", "", "caloscale-system"]
    assert objects(rendered) == wanted
    run(helm, "lint", "--strict", "--quiet", "--kube-version", "1.34.4", made, "--values", values)


@pytest.mark.integration
def test_values_reach_their_objects(helm: Path, made: Path, tmp_path: Path) -> None:
    values = {
        "image": "registry.example/operator@sha256:" + "a" * 64,
        "trainer": "registry.example/trainer:2",
        "solver": "registry.example/solver:2",
        "namespaces": ["physics", "muons"],
        "prices": "provider\nnone\n",
        "labels": "vendor\nlab\n",
        "queues": [{"name": "gpus", "namespace": "physics", "clusterQueue": "laboratory"}],
    }
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
    rendered = objects(
        run(
            helm,
            "template",
            "x",
            "--kube-version",
            "1.34.4",
            made,
            "-n",
            "physics",
            "--values",
            tmp_path / "values.yaml",
        )
    )
    (container,) = rendered["Deployment", "physics", "caloscale-operator"]["spec"]["template"]["spec"]["containers"]
    environment = {each["name"]: each.get("value") for each in container["env"]}
    assert container["image"] == values["image"] and environment["CALOSCALE_IMAGE"] == values["trainer"]
    assert environment["CALOSCALE_SOLVER_IMAGE"] == values["solver"]
    assert environment["CALOSCALE_NAMESPACES"] == "physics,muons"
    assert ("ClusterRoleBinding", "", "caloscale-operator") not in rendered
    assert rendered["ConfigMap", "physics", "caloscale-prices"]["data"] == {"prices.csv": values["prices"]}
    assert rendered["ConfigMap", "physics", "caloscale-labels"]["data"] == {"labels.csv": values["labels"]}
    assert rendered["LocalQueue", "physics", "gpus"]["spec"] == {"clusterQueue": "laboratory"}
    bindings = [o for (kind, *_), o in rendered.items() if kind.endswith("RoleBinding")]
    assert {s["namespace"] for b in bindings for s in b["subjects"]} == {"physics"}
