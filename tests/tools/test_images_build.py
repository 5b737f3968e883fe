"""Images that are really built here, by Buildah: looked into, and run."""

import json
import os
import re
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

import pytest

from caloscale import __version__
from tools.images import archives
from tools.images.machine import revision
from tools.images.targets import TARGETS, qualified

ROOT = Path(__file__).parents[2]
# A setting of pip that changes nothing and is easily found again.
MARK = "caloscale-must-not-stay.example"
PACKAGES = re.compile(r"opt/caloscale/lib/python3\.\d+/site-packages/")

pytestmark = pytest.mark.long


class Image(NamedTuple):
    """An image that was built, and its archive."""

    program: str
    name: str
    archive: Path

    @property
    def image(self) -> str:
        return qualified(TARGETS[self.name].image())

    def config(self) -> dict:
        with tarfile.open(self.archive) as archive:
            manifest = json.loads(_file(archive, "manifest.json").read())[0]
            assert manifest["RepoTags"][0].endswith(TARGETS[self.name].image())
            return json.loads(_file(archive, manifest["Config"]).read())

    def entries(self) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
        """All that all layers hold, also what a later layer hides."""
        with tarfile.open(self.archive) as archive:
            for layer in json.loads(_file(archive, "manifest.json").read())[0]["Layers"]:
                with tarfile.open(fileobj=_file(archive, layer)) as files:
                    for entry in files:
                        yield entry, files

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the image as its user, by its entry point where it is asked."""
        made = [self.program, "from", self.image]
        container = subprocess.run(made, capture_output=True, text=True, check=True).stdout.strip()
        # `buildah run` knows no entry point.
        entry = self.config()["config"]["Entrypoint"][:2]
        options = ["--isolation=chroot", "--network=host"]
        started = [self.program, "run", *options, container, "--", *entry, *command]
        try:
            return subprocess.run(started, capture_output=True, text=True, check=False)
        finally:
            subprocess.run([self.program, "rm", container], capture_output=True, check=True)


def _file(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    found = archive.extractfile(name)
    assert found is not None
    return found


@pytest.fixture(scope="module", params=["operator", "trainer-cpu"])
def image(request: pytest.FixtureRequest, buildah: str) -> Image:
    command = [sys.executable, "-m", "tools.images", "build", request.param, "--archive"]
    environment = {**os.environ, "PIP_TRUSTED_HOST": MARK}
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    return Image(buildah, request.param, next(iter(archives([request.param]).values())))


def test_its_settings_say_who_runs_what(image: Image) -> None:
    config = image.config()["config"]
    assert config["User"] == "65532:65532"
    assert config["Entrypoint"][:2] == ["/usr/bin/tini", "--"]
    labels = {name.rpartition(".")[2]: text for name, text in config["Labels"].items()}
    assert labels["version"] == __version__
    assert labels["revision"] == revision(ROOT)
    assert "caloscale" in labels["title"]
    variables = dict(each.split("=", 1) for each in config["Env"])
    assert variables["PATH"].startswith("/opt/caloscale/bin:")
    assert not [name for name in variables if name.startswith(("PIP_", "SSL_"))]


def test_nothing_of_the_build_or_of_this_machine_is_in_any_layer(image: Image) -> None:
    assert MARK not in json.dumps(image.config())
    bad: list[str] = []
    ours = 0
    for entry, files in image.entries():
        name = entry.name.removeprefix("./")
        short = PACKAGES.sub("", name)
        ours += short.startswith("caloscale/") and name.endswith(".py")
        forbidden = (
            re.match(
                r"var/lib/apt/lists/.|var/cache/apt/.*\.(deb|bin)|root/\.cache/|run/secrets/.|source/|opt/pip/", name
            )
            or re.search(r"(^|/)(\.git|\.env|\.netrc|pip\.conf|bin/(cc|gcc|ld|make|pip3?))$", short)
            or re.match(r"(pip|tests|tensorflow/include|clang)/", short)
        )
        writable = PACKAGES.match(name) and (entry.uid != 0 or (entry.mode & 0o022 and not entry.issym()))
        small = entry.isfile() and entry.size < 200_000
        content = files.extractfile(entry) if small else None
        if forbidden or writable or (content is not None and MARK.encode() in content.read()):
            bad.append(name)
    assert bad == []
    assert ours > 100


def test_it_runs_as_its_user_and_python_is_compiled(image: Image) -> None:
    code = (
        "import os, caloscale, importlib.util as i; compiled = i.cache_from_source(caloscale.__file__); "
        "print(os.getuid(), os.getgid(), caloscale.__version__, os.path.exists(compiled))"
    )
    done = image.run("python3", "-c", code)
    assert done.stdout.split() == ["65532", "65532", __version__, "True"], done.stderr
    pip = image.run("python3", "-m", "pip")
    assert "No module named pip" in pip.stderr


def test_signals_reach_what_runs_and_its_exit_code_comes_back(image: Image) -> None:
    # A program that handles neither, as a worker while it imports.
    for name, code in (("TERM", 143), ("ALRM", 142)):
        script = f"(sleep 1; kill -{name} $PPID) & exec python3 -c 'import time; time.sleep(60)'"
        # As with process 1 of a container, the signal goes to tini.
        done = image.run("sh", "-c", script)
        assert done.returncode == code, (name, done.stderr)


def test_the_operator_says_what_is_missing(image: Image) -> None:
    if image.name != "operator":
        pytest.skip("the trainer has no operator")
    done = image.run("python3", "-m", "caloscale.operator")
    assert done.returncode == 4
    assert "error: no cluster is configured" in done.stderr and "Traceback" not in done.stderr


def test_the_trainer_is_what_the_launcher_of_a_component_needs(image: Image) -> None:
    if image.name != "trainer-cpu":
        pytest.skip("components run in the trainer")
    script = "program_path=$(mktemp -d) && printf x > $program_path/x && python3 -m kfp.dsl.executor_main --help"
    done = image.run("sh", "-ec", script)
    assert "component_module_path" in done.stdout, done.stderr
    libraries = image.run("python3", "-c", "import tensorflow, kubernetes, kfp, mplhep; print('all')")
    assert libraries.stdout.strip() == "all", libraries.stderr
    listed = image.run("caloscale", "--version")
    assert __version__ in listed.stdout
