"""``make images`` with programs in the place of Docker, Podman and Buildah that record their arguments."""

from __future__ import annotations

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
from tools.images.archives import write_archive
from tools.images.engines import Build, Engine, find_engine
from tools.images.targets import TARGETS, qualified

ROOT = Path(__file__).parents[2]
# Notes its arguments and what the secrets hold while it runs; says an id for each image that was built.
PROGRAM = """#!{python}
import json, os, pathlib, re, sys
folder = pathlib.Path({folder!r})
note = {{"name": {name!r}, "arguments": sys.argv[1:], "buildkit": os.environ.get("DOCKER_BUILDKIT")}}
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
        pathlib.Path(each.split(":")[1]).write_text("layers of " + (folder / "id").read_text())
sys.exit({code} if sys.argv[1] in {failing!r} else 0)
"""


def install(folder: Path, name: str, failing: tuple[str, ...] = (), code: int = 1) -> Path:
    (folder / "bin").mkdir(exist_ok=True)
    path = folder / "bin" / name
    text = PROGRAM.format(python=sys.executable, folder=str(folder), name=name, failing=failing, code=code)
    path.write_text(text)
    path.chmod(0o755)
    return path


def notes(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with the engines that a test installs into its folder."""
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("CALOSCALE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "ca.pem").write_text("authorities")
    monkeypatch.setenv("PIP_CERT", str(tmp_path / "ca.pem"))
    monkeypatch.setenv("PIP_INDEX_URL", "https://user:secret@index.example/simple")
    return tmp_path


@pytest.mark.parametrize("name", ["docker", "podman", "buildah"])
def test_each_engine_s_command(name: str) -> None:
    engine = Engine(name, f"/bin/{name}")  # type: ignore[arg-type]
    target = TARGETS["trainer-gpu"]
    wanted = Build(
        target,
        target.image("registry.example/team"),
        "abc",
        "1.2",
        base="debian:12",
        extras="infer",
        secrets={"pip.conf": Path("/s/pip.conf")},
        folders=(Path("/wheels"),),
    )
    command = engine.build(wanted, Path("/tree"))
    own = {
        "docker": [],
        "podman": ["--volume=/wheels:/wheels:ro"],
        "buildah": ["--volume=/wheels:/wheels:ro", "--layers", "--network=host", "--isolation=chroot"],
    }
    assert command == [
        f"/bin/{name}",
        "build",
        *own[name],
        "--file=/tree/docker/trainer.Dockerfile",
        "--target=gpu",
        f"--tag=registry.example/team/trainer:{__version__}-gpu",
        "--build-arg=BASE_IMAGE=debian:12",
        "--build-arg=EXTRAS=infer",
        "--label=org.opencontainers.image.version=1.2",
        "--label=org.opencontainers.image.revision=abc",
        "--secret=id=pip.conf,src=/s/pip.conf",
        "/tree",
    ]


def test_images_are_built_and_pushed_with_what_this_machine_knows(
    machine: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    install(machine, "docker")
    (machine / "id").write_text("sha256:0123456789abcdef")
    app(["build", "operator", "--registry=registry.example/team", "--push"], standalone_mode=False)
    shown = "".join(capfd.readouterr())
    image = f"registry.example/team/operator:{__version__}"
    assert f"[1/1] {image}" in shown
    noted = notes(machine)
    (built,) = [each for each in noted if each["arguments"][0] == "build"]
    assert built["buildkit"] == "1"
    assert "https://user:secret@index.example/simple" in built["secrets"]["pip.conf"]
    assert built["secrets"]["certificates.pem"] == "authorities"
    # The password is in no command line and no output, and the file is gone.
    assert "secret@" not in " ".join(built["arguments"]) + shown
    (conf,) = re.findall(r"--secret=id=pip\.conf,src=(\S+)", " ".join(built["arguments"]))
    assert not Path(conf).exists()
    assert noted[-1]["arguments"] == ["push", image]


def test_the_solver_is_built_after_the_trainer_that_it_is_made_from(machine: Path) -> None:
    """The trainer is built, too, where it is not there, and not pushed unless it was asked for."""
    install(machine, "buildah")
    app(["build", "solver", "--base=debian:12", "--registry=r.example", "--push"], standalone_mode=False)
    trainer, solver = (each["arguments"] for each in notes(machine) if each["arguments"][0] == "build")
    assert "--build-arg=BASE_IMAGE=debian:12" in trainer
    assert f"--build-arg=TRAINER_IMAGE=r.example/trainer:{__version__}" in solver
    assert not any("BASE_IMAGE" in each for each in solver)
    pushed = [each["arguments"][1] for each in notes(machine) if each["arguments"][0] == "push"]
    assert pushed == [f"r.example/solver:{__version__}"]
    (machine / "id").write_text("0123456789abcdef")
    (machine / "log").unlink()
    app(["build", "solver", "--registry=r.example"], standalone_mode=False)
    assert len([each for each in notes(machine) if each["arguments"][0] == "build"]) == 1


def test_a_build_that_fails_says_so_and_leaves_no_secret(machine: Path) -> None:
    install(machine, "podman", failing=("build",), code=125)
    with pytest.raises(
        ImageError, match=r"podman could not build operator \(exit code 125\)\n.*make base-image"
    ) as info:
        app(["build", "operator", "trainer-cpu"], standalone_mode=False)
    assert info.value.exit_code == 4
    builds = [each for each in notes(machine) if each["arguments"][0] == "build"]
    assert len(builds) == 1, "the next image is not begun"
    (conf,) = re.findall(r"--secret=id=pip\.conf,src=(\S+)", " ".join(builds[0]["arguments"]))
    assert not Path(conf).exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["trainer"], "no image 'trainer'[\\s\\S]*trainer-cpu trainer-gpu"), (["--push"], "PUSH: where to")],
)
def test_what_cannot_be_built_is_refused_before_anything_is(machine: Path, arguments: list[str], message: str) -> None:
    install(machine, "docker")
    with pytest.raises(ImageError, match=message):
        app(["build", *arguments], standalone_mode=False)
    assert not (machine / "log").exists()


def test_the_first_engine_that_works_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    with pytest.raises(ImageError, match=r"docker is not installed; podman is not .*\n.*apt-get install buildah"):
        find_engine()
    install(tmp_path, "docker", failing=("version",))
    install(tmp_path, "buildah")
    assert find_engine().name == "buildah"
    with pytest.raises(ImageError, match=r"docker is installed and does not work: .*\n.*start it"):
        find_engine("docker")
    install(tmp_path, "podman")
    assert find_engine().name == "podman"
    with pytest.raises(ImageError, match="one of: docker, podman, buildah"):
        find_engine("kaniko")


def test_an_archive_is_written_once_for_each_image(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    engine = Engine("buildah", str(install(tmp_path, "buildah")))
    image = qualified(TARGETS["operator"].image())
    with pytest.raises(ImageError, match=r"no archive of the image operator\n.*make images"):
        archives(["operator"], place=place)
    with pytest.raises(ImageError, match="there is no image docker"):
        write_archive(engine, "operator", image, place=place)
    (tmp_path / "id").write_text("a" * 64)
    first = write_archive(engine, "operator", image, place=place)
    assert write_archive(engine, "operator", image, place=place) == first
    saves = [each for each in notes(tmp_path) if each["arguments"][0] == "push"]
    assert len(saves) == 1
    assert archives(["operator"], place=place) == {f"docker.io/caloscale/operator:{__version__}": first}
    assert first.read_text() == "layers of " + "a" * 64
    (tmp_path / "id").write_text("b" * 64)
    second = write_archive(engine, "operator", image, place=place)
    assert archives(["operator"], place=place) == {image: second}
    assert sorted(path.suffix for path in place.iterdir()) == [".json", ".tar"], "the old one is gone"


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
        ("localhost/a:1", "localhost/a:1"),
        ("registry.example/a/b:1", "registry.example/a/b:1"),
        ("registry:5000/a:1", "registry:5000/a:1"),
    ],
)
def test_names_as_a_container_runtime_keeps_them(image: str, name: str) -> None:
    assert qualified(image) == name
