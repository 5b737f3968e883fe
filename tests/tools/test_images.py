"""``make images`` with a program in the place of Buildah that records its arguments."""

import json
import re
import sys
from pathlib import Path

import pytest
import yaml

from caloscale import __version__
from components import IMAGE
from tools.images import ImageError, archives
from tools.images.__main__ import app
from tools.images.buildah import folder, program, write_archive
from tools.images.machine import revision
from tools.images.targets import TARGETS, qualified

ROOT = Path(__file__).parents[2]
COMMIT = revision(ROOT)
# Notes its arguments and what the secrets hold while it runs; says an id for each image that was built.
PROGRAM = """#!{python}
import io, json, pathlib, re, sys, tarfile
folder = pathlib.Path({folder!r})
note = {{"arguments": sys.argv[1:]}}
note["secrets"] = {{
    found[1]: pathlib.Path(found[2]).read_text()
    for each in sys.argv if (found := re.fullmatch("--secret=id=(.+),src=(.+)", each))
}}
with open(folder / "log", "a") as log:
    print(json.dumps(note), file=log)
if "inspect" in sys.argv:
    built = folder / "id"
    print(built.read_text()) if built.exists() else sys.exit(1)
for each in sys.argv:
    if each.startswith("docker-archive:"):
        path, _, image = each.removeprefix("docker-archive:").partition(":")
        listed = json.dumps([{{"RepoTags": [image]}}]).encode()
        about = tarfile.TarInfo("manifest.json")
        about.size = len(listed)
        with tarfile.open(path, "w") as tar:
            tar.addfile(about, io.BytesIO(listed))
    if each.startswith("--digestfile="):
        pathlib.Path(each.partition("=")[2]).write_text("sha256:" + "d" * 64)
sys.exit({code} if sys.argv[1] in {failing!r} else 0)
"""


def install(folder: Path, failing: tuple[str, ...] = (), code: int = 1) -> None:
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / "buildah"
    path.write_text(PROGRAM.format(python=sys.executable, folder=str(folder), failing=failing, code=code))
    path.chmod(0o755)


def notes(folder: Path) -> list[dict]:
    lines = (folder / "log").read_text().splitlines() if (folder / "log").exists() else []
    return [note for note in map(json.loads, lines) if note["arguments"][0] != "info"]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with Buildah, as a test installs it into its folder."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("CALOSCALE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "ca.pem").write_text("authorities")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@index.example/simple")
    return tmp_path


def test_images_are_built_and_pushed_with_what_this_machine_knows(
    machine: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    install(machine)
    (machine / "id").write_text("sha256:0123456789abcdef")
    (machine / "wheels").mkdir()
    (machine / "wheels" / "a-1-py3-none-any.whl").touch()
    monkeypatch.setenv("PIP_FIND_LINKS", f"{machine}/wheels")
    options = ["--registry=registry.example/team", "--push", "--base=debian:12", "--extras=infer"]
    app(["build", "trainer-gpu", *options], standalone_mode=False)
    shown = "".join(capfd.readouterr())
    image = f"registry.example/team/trainer:{__version__}-gpu"
    assert f"[1/1] {image}" in shown
    noted = notes(machine)
    (built,) = [each for each in noted if each["arguments"][0] == "build"]
    wanted = {"--layers", "--isolation=chroot", "--target=gpu", f"--volume={machine}/wheels:{machine}/wheels:ro"}
    wanted |= {f"--tag={image}", "--build-arg=BASE_IMAGE=debian:12", "--build-arg=EXTRAS=infer"}
    wanted |= {f"--label=org.opencontainers.image.{each}" for each in (f"version={__version__}", f"revision={COMMIT}")}
    assert wanted <= set(built["arguments"])
    assert "https://user:secret@index.example/simple" in built["secrets"]["pip.conf"]
    assert built["secrets"]["certificates.pem"] == "authorities"
    # The password is in no command line and no output, and the file is gone.
    assert "secret@" not in " ".join(built["arguments"]) + shown
    (conf,) = re.findall(r"--secret=id=pip\.conf,src=(\S+)", " ".join(built["arguments"]))
    assert not Path(conf).exists()
    assert noted[-1]["arguments"][2:] == [image, f"docker://{image}"]
    assert f"pushed registry.example/team/trainer@sha256:{'d' * 64}" in shown


def test_the_solver_is_built_after_the_trainer_that_it_is_made_from(machine: Path) -> None:
    """The trainer is built, too, where it is not there, and not pushed unless it was asked for."""
    install(machine)
    app(["build", "solver", "--base=debian:12", "--registry=r.example", "--push"], standalone_mode=False)
    trainer, solver = (each["arguments"] for each in notes(machine) if each["arguments"][0] == "build")
    assert "--build-arg=BASE_IMAGE=debian:12" in trainer
    assert f"--build-arg=TRAINER_IMAGE=r.example/trainer:{__version__}" in solver
    assert not any("BASE_IMAGE" in each for each in solver)
    pushed = [each["arguments"][2] for each in notes(machine) if each["arguments"][0] == "push"]
    assert pushed == [f"r.example/solver:{__version__}"]
    (machine / "id").write_text("0123456789abcdef")
    (machine / "log").unlink()
    app(["build", "solver", "--registry=r.example"], standalone_mode=False)
    assert len([each for each in notes(machine) if each["arguments"][0] == "build"]) == 1


def test_a_build_that_fails_says_so_and_leaves_no_secret(machine: Path) -> None:
    install(machine, failing=("build",), code=125)
    with pytest.raises(ImageError, match=r"could not build operator \(exit code 125\)\n.*make base-image"):
        app(["build", "operator", "trainer-cpu"], standalone_mode=False)
    builds = [each for each in notes(machine) if each["arguments"][0] == "build"]
    assert len(builds) == 1, "the next image is not begun"
    (conf,) = re.findall(r"--secret=id=pip\.conf,src=(\S+)", " ".join(builds[0]["arguments"]))
    assert not Path(conf).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["trainer"], "no image 'trainer'[\\s\\S]*trainer-cpu trainer-gpu"), (["--push"], "PUSH: where to")],
)
def test_what_cannot_be_built_is_refused_before_anything_is(machine: Path, arguments: list[str], message: str) -> None:
    install(machine)
    with pytest.raises(ImageError, match=message):
        app(["build", *arguments], standalone_mode=False)
    assert notes(machine) == []


def test_a_machine_without_buildah(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{machine}/bin")
    with pytest.raises(ImageError, match=r"buildah is not installed\n.*apt-get install buildah"):
        program()
    install(machine, failing=("info",))
    with pytest.raises(ImageError, match="installed and does not work: no message"):
        program()


def test_an_archive_is_written_once_for_each_image(machine: Path) -> None:
    install(machine)
    image = qualified(TARGETS["operator"].image())
    with pytest.raises(ImageError, match=r"no archive of the image operator\n.*make images"):
        archives(["operator"])
    with pytest.raises(ImageError, match="there is no image docker"):
        write_archive("operator", image)
    (machine / "id").write_text("a" * 64)
    first = write_archive("operator", image)
    assert write_archive("operator", image) == first
    assert len([each for each in notes(machine) if each["arguments"][0] == "push"]) == 1
    # The same image by the name of a registry, which pods of another name would not find.
    assert archives(["operator"]) == {f"docker.io/caloscale/operator:{__version__}": first}
    assert write_archive("operator", "registry.example/operator:1") == first
    assert archives(["operator"]) == {"registry.example/operator:1": first}
    (machine / "id").write_text("b" * 64)
    second = write_archive("operator", image)
    assert archives(["operator"]) == {image: second}
    assert list(folder().iterdir()) == [second], "the old one is gone"


def test_manifests_and_components_name_images_that_are_made() -> None:
    made = {target.image() for target in TARGETS.values()}
    assert TARGETS["trainer-cpu"].image() == IMAGE
    (deployment,) = yaml.safe_load_all((ROOT / "manifests/base/deployment.yaml").read_text(encoding="utf-8"))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert f"{container['image'].partition(':')[0]}:{__version__}" in made
    variables = {each["name"]: each.get("value") for each in container["env"]}
    assert {variables["CALOSCALE_IMAGE"], variables["CALOSCALE_SOLVER_IMAGE"]} <= made
    for path in (ROOT / "pipelines" / "compiled").glob("*.yaml"):
        named = re.findall(r"^\s+image: (\S+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert named and set(named) <= made


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("caloscale/trainer:1", "docker.io/caloscale/trainer:1"),
        ("localhost/caloscale/trainer:1", "docker.io/caloscale/trainer:1"),
        ("busybox:1", "docker.io/library/busybox:1"),
        ("registry.example/a/b:1", "registry.example/a/b:1"),
        ("registry:5000/a:1", "registry:5000/a:1"),
    ],
)
def test_names_as_kubernetes_completes_them(image: str, name: str) -> None:
    assert qualified(image) == name == qualified(name)
