"""The Dockerfiles keep their rules, and what goes to the builder is what the images are made of."""

import importlib.util
import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from docker.utils.build import exclude_paths
from packaging.requirements import Requirement

from tools.images.targets import TARGETS

ROOT = Path(__file__).parents[2]
FILES = sorted({target.dockerfile for target in TARGETS.values()})
# The storage emulator is one program of somebody else.
OURS = [name for name in TARGETS if name != "storage"]
Stage = list[tuple[str, str]]


def stages_of(dockerfile: str) -> tuple[dict[str, Stage], dict[str, str]]:
    """Instructions of each stage, and what each stage is from."""
    text = re.sub(r"^#.*\n", "", (ROOT / dockerfile).read_text(encoding="utf-8"), flags=re.MULTILINE)
    stages: dict[str, Stage] = {"": []}
    parents: dict[str, str] = {}
    name = ""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if not line.strip():
            continue
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            parent, _, name = rest.partition(" AS ")
            stages[name], parents[name] = [], parent
        else:
            stages[name].append((instruction, " ".join(rest.split())))
    return stages, parents


def with_ancestors(dockerfile: str, stage: str) -> Stage:
    """All instructions that a stage is made of, first to last."""
    stages, parents = stages_of(dockerfile)
    chain: Stage = []
    while stage in stages:
        chain = stages[stage] + chain
        stage = parents[stage]
    return chain


def made_of(name: str) -> Stage:
    """All instructions that an image is made of, with those of the image that it is made from."""
    target = TARGETS[name]
    own = with_ancestors(target.dockerfile, target.stage)
    return [*made_of(target.after), *own] if target.after else own


def of(instructions: Stage, kind: str) -> list[str]:
    return [rest for instruction, rest in instructions if instruction == kind]


@pytest.mark.parametrize("dockerfile", FILES)
def test_stages_begin_with_the_build_argument_or_another_stage(dockerfile: str) -> None:
    stages, parents = stages_of(dockerfile)
    (argument,) = of(stages[""], "ARG")
    after = {target.after for target in TARGETS.values() if target.dockerfile == dockerfile} - {""}
    if after:
        assert [argument] == [f"TRAINER_IMAGE={TARGETS[name].image()}" for name in after]
    else:
        assert re.fullmatch(r"BASE_IMAGE=[a-z]+:\d+\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", argument), "a fixed image"
    known = ["${TRAINER_IMAGE}" if after else "${BASE_IMAGE}", "scratch"]
    for name, parent in parents.items():
        assert parent in known
        known.append(name)
    sources = re.findall(r"--from=(\S+)", (ROOT / dockerfile).read_text(encoding="utf-8"))
    assert set(sources) <= set(stages)


@pytest.mark.parametrize("name", TARGETS)
def test_an_image_runs_as_a_number_says_what_it_is_and_has_nothing_of_the_build(name: str) -> None:
    made = made_of(name)
    user = of(made, "USER")[-1]
    assert re.fullmatch(r"(\d+):\1", user) and int(user.split(":")[0]) >= 10_000
    assert re.fullmatch(r'org\.opencontainers\.image\.title="caloscale [\w() ]+"', of(made, "LABEL")[-1])
    assert name not in OURS or of(made, "ENTRYPOINT")[-1].startswith('["/usr/bin/tini", "--"')
    assert not of(made, "ADD")
    for run in of(made, "RUN"):
        assert "secret" not in run and "pip install" not in run and "venv" not in run
        if "apt-get install" in run:
            assert "--no-install-recommends" in run
            assert run.index("rm -rf /var/lib/apt/lists/*") > run.index("apt-get install")
    copied = of(made, "COPY")
    assert copied and all(rest.startswith("--from=") for rest in copied)


@pytest.mark.parametrize("name", [name for name in OURS if not TARGETS[name].after])
def test_a_change_of_our_code_leaves_the_large_layer(name: str) -> None:
    target = TARGETS[name]
    own = stages_of(target.dockerfile)[0][target.stage]
    first, second = of(own, "COPY")
    dependencies = first.split()[0].removeprefix("--from=")
    for rest in of(with_ancestors(target.dockerfile, dependencies), "COPY"):
        assert not {"src", "pyproject.toml", "README.md"} & set(rest.split())
    package = with_ancestors(target.dockerfile, second.split()[0].removeprefix("--from="))
    assert "src src" in of(package, "COPY")
    # Version and revision change with every commit: they are no part of the Dockerfile (see Build.labels).
    assert not of(with_ancestors(target.dockerfile, target.stage), "ARG")


@pytest.mark.parametrize("dockerfile", FILES)
def test_steps_that_fetch_packages_get_the_machine_s_settings(dockerfile: str) -> None:
    fetching = []
    for stage in stages_of(dockerfile)[0].values():
        for run in of(stage, "RUN"):
            if (
                re.search(r"pip (--python \S+ )?install", run) and "--no-index" not in run
            ) or "dependencies.py install" in run:
                fetching.append(run)
                assert "--mount=type=secret,id=pip.conf" in run and "--mount=type=secret,id=certificates.pem" in run
                assert "constraint" in run
    assert fetching
    # Nothing else may fetch anything.
    assert not re.search(r"curl|wget|git clone", (ROOT / dockerfile).read_text(encoding="utf-8"))


def context(root: Path) -> set[str]:
    """Files that Docker would send to the builder, by its own client's reading of .dockerignore."""
    patterns = [
        line
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    return {path for path in exclude_paths(str(root), patterns, dockerfile="-") if (root / path).is_file()}


SENT = """
constraints.txt constraints-tpu.txt pyproject.toml LICENSE NOTICE README.md docker/dependencies.py docker/pins.txt
src/caloscale/__init__.py src/caloscale/py.typed src/caloscale/spec/presets/compact.yaml
"""
KEPT = """
.git/config .venv/bin/python .env .netrc .ci/run runs/latest/run.yaml tests/conftest.py docs/report.png id_rsa
credentials.json src/caloscale.egg-info/PKG-INFO src/caloscale/__pycache__/a.pyc src/caloscale/spec/.env
src/caloscale/.git/config src/caloscale/server.key src/caloscale/spec/tls.pem src/caloscale/credentials.json
src/other/file.py docker/trainer.Dockerfile docker/key.json manifests/base/rbac.yaml build/lib/x.py kubeconfig
.hypothesis/x .cache/pip/http/x src/caloscale/prod.env
"""


def test_the_builder_gets_no_secrets_tests_or_caches(tmp_path: Path) -> None:
    for name in (SENT + KEPT).split():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    assert context(tmp_path) == set(SENT.split())


def test_the_builder_gets_all_that_is_copied_and_nothing_that_git_does_not_know() -> None:
    sent = context(ROOT)
    for dockerfile in FILES:
        for stage in stages_of(dockerfile)[0].values():
            for rest in of(stage, "COPY"):
                for source in () if rest.startswith("--from=") else rest.split()[:-1]:
                    assert source in sent or any(each.startswith(f"{source}/") for each in sent), source
    package = {str(each.relative_to(ROOT)) for each in (ROOT / "src" / "caloscale").rglob("*.py")}
    assert package <= sent
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert listed.returncode or sent <= set(listed.stdout.split("\0"))


def dependencies() -> Any:
    spec = importlib.util.spec_from_file_location("dependencies", ROOT / "docker" / "dependencies.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "extras", [["train", "cpu"], ["gpu", "simulate"], ["tpu", "simulate", "infer"], ["operator", "pipeline", "solver"]]
)
def test_an_image_installs_what_the_package_says_that_it_needs(extras: list[str]) -> None:
    """Of the file, as an installation may be older than it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    said = [Requirement(text) for text in sum((optional[extra] for extra in extras), project["dependencies"])]
    wanted = {(each.name, str(each.specifier), frozenset(each.extras)) for each in said}
    listed = [Requirement(text) for text in dependencies().requirements(ROOT / "pyproject.toml", extras)]
    assert {(each.name, str(each.specifier), frozenset(each.extras)) for each in listed} == wanted


def test_an_extra_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SystemExit, match=r"EXTRAS.*got 'cpus'[\s\S]*remedy: some of train, cpu, gpu"):
        dependencies().requirements(ROOT / "pyproject.toml", ["cpus"])


def test_what_no_program_reads_is_removed(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("tensorflow/include/a.h", "tensorflow/python/a.py", "clang/native/libclang.so", "numpy/a.py"):
        (packages / name).parent.mkdir(parents=True)
        (packages / name).write_text("x")
    dependencies().remove_unused(tmp_path)
    left = {str(path.relative_to(packages)) for path in packages.rglob("*") if path.is_file()}
    assert left == {"tensorflow/python/a.py", "numpy/a.py"}
