"""An image that is really pushed to a registry that wants a password, by Buildah."""

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import requests
import yaml

from caloscale import __version__
from caloscale.ports import free_ports
from tests.processes import running, wait_for
from tools.images import ImageError
from tools.images.machine import revision
from tools.images.targets import TARGETS

ROOT = Path(__file__).parents[2]
USER, PASSWORD = "physicist", "secret"
# htpasswd -nbB physicist secret
HASH = "$2b$04$C0ddCMeveXUfyttJFI8Eyur3QnyocHEajsv3r7l2XvrbWSMQPMM2O"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Server and path before the names: a real registry on this machine, which answers nobody without the password."""
    program = shutil.which("docker-registry")
    if program is None:
        pytest.skip("no registry here: apt-get install --no-install-recommends docker-registry")
    folder = tmp_path_factory.mktemp("registry")
    (port,) = free_ports(1)
    (folder / "htpasswd").write_text(f"{USER}:{HASH}\n")
    settings = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(folder / "images")}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "of one server alone"},
        "auth": {"htpasswd": {"realm": "caloscale", "path": str(folder / "htpasswd")}},
    }
    (folder / "config.yml").write_text(yaml.safe_dump(settings))
    command = [program, "serve", str(folder / "config.yml")]
    with (folder / "log").open("w") as log, running(command, stdout=log, stderr=log) as process:
        wait_for(lambda: _answers(f"http://127.0.0.1:{port}/v2/"), process)
        yield f"localhost:{port}/team"


def _answers(address: str) -> bool:
    try:
        return requests.get(address, timeout=5).status_code == requests.codes.unauthorized
    except requests.ConnectionError:
        return False


def push(buildah: str, registry: str, settings: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.images", "build", "storage", f"--registry={registry}", "--push"]
    variables = {**os.environ, **settings}
    try:
        return subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    finally:
        forget = [buildah, "rmi", TARGETS["storage"].image(registry)]
        subprocess.run(forget, capture_output=True, check=True)


@pytest.fixture(scope="module")
def trusting(registry: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Buildah uses plain HTTP only for servers that are named."""
    path = tmp_path_factory.mktemp("trusting") / "registries.conf"
    path.write_text(f'[[registry]]\nlocation = "{registry.partition("/")[0]}"\ninsecure = true\n')
    return {"CONTAINERS_REGISTRIES_CONF": str(path)}


def test_without_a_login_the_remedy_is_to_log_in(
    buildah: str, registry: str, trusting: dict[str, str], tmp_path: Path
) -> None:
    done = push(buildah, registry, {**trusting, "REGISTRY_AUTH_FILE": str(tmp_path / "none.json")})
    assert done.returncode == ImageError.exit_code
    assert f"could not push {registry}/storage" in done.stderr and "a push that is refused: log in" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_registry_has_the_image_with_its_revision(
    buildah: str, registry: str, trusting: dict[str, str], tmp_path: Path
) -> None:
    server, _, path = registry.partition("/")
    secret = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    login = tmp_path / "auth.json"
    login.write_text(json.dumps({"auths": {server: {"auth": secret}}}))
    done = push(buildah, registry, {**trusting, "REGISTRY_AUTH_FILE": str(login)})
    assert done.returncode == 0, done.stderr

    def get(what: str) -> requests.Response:
        accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
        accept["Accept"] += ", application/vnd.docker.distribution.manifest.v2+json"
        address = f"http://{server}/v2/{path}/storage/{what}"
        found = requests.get(address, auth=(USER, PASSWORD), headers=accept, timeout=30)
        found.raise_for_status()
        return found

    assert get("tags/list").json()["tags"] == [__version__]
    config = get(f"blobs/{get(f'manifests/{__version__}').json()['config']['digest']}").json()["config"]
    assert config["Labels"]["org.opencontainers.image.revision"] == revision(ROOT)
    assert config["User"] == "65532:65532"
