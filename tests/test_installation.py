"""The command that installs an extra: of a clone, and of an installation without one."""

import ast
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from caloscale import installation
from caloscale.errors import InputError
from caloscale.installation import extras_with, install_command, require

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The bin folder of an environment with a pip, which the shell finds."""
    (bin_folder := tmp_path / "clone/.venv/bin").mkdir(parents=True)
    (bin_folder / "pip").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(bin_folder / "python"))
    monkeypatch.setenv("PATH", str(bin_folder))
    return bin_folder


def test_a_clone_is_installed_again_with_the_extra(environment: Path, tmp_path, monkeypatch) -> None:
    clone = tmp_path / "clone"
    (clone / "pyproject.toml").touch()
    monkeypatch.setattr(installation, "ROOT", clone)
    monkeypatch.chdir(clone)
    assert install_command("infer") == "pip install -e '.[infer]'"
    assert install_command("train", "cpu") == "pip install -e '.[train,cpu]'"
    monkeypatch.setenv("PATH", "/usr/bin")
    assert install_command("infer") == ".venv/bin/pip install -e '.[infer]'"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert install_command("infer") == f"{environment}/pip install -e '{clone}[infer]'"
    (environment / "pip").unlink()
    assert install_command("infer").startswith(f"{environment}/python -m pip install -e ")


def test_an_installation_without_a_clone_gets_the_requirements(environment: Path, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(installation, "ROOT", tmp_path)
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for names in (["infer"], ["train", "cpu"], ["simulate"]):
        words = install_command(*names).removeprefix("pip install ").replace("'", "").split()
        wanted = [Requirement(text) for name in names for text in extras[name]]
        assert {Requirement(word).name for word in words} == {one.name for one in wanted}
        assert {str(Requirement(word).specifier) for word in words} == {str(one.specifier) for one in wanted}


def test_a_module_is_found_in_the_extra_that_brings_it() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    modules = {"scikit-learn": "sklearn", "tensorflow-cpu": "tensorflow", "google-cloud-storage": "google.cloud"}
    first = {Requirement(text).name: name for name in reversed(extras) for text in extras[name]}
    for name in ("train", "cpu", "simulate", "infer", "azure", "operator", "pipeline", "cluster", "buckets"):
        for package in (Requirement(text).name for text in extras[name]):
            module, own = modules.get(package, package.replace("-", "_")), first[package]
            assert extras_with(f"{module}.part") == (("train", "cpu") if own in ("train", "cpu") else (own,)), package
    assert (extras_with("scipy", "plan"), extras_with("scipy", "submit")) == (("plan",), ("cluster",))
    assert extras_with("onnxruntime") == ("generate",) and extras_with("kubernetes") == ("cluster",)
    assert extras_with("matplotlib") == extras_with("keras") == ("train", "cpu")
    assert extras_with("caloscale.absent") == extras_with("pytest") == ()


def test_a_training_needs_the_extras_train_and_cpu_alone() -> None:
    """A module that the science imports as it starts comes with these, or with every installation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    every = {Requirement(text).name for text in project["dependencies"]} | {"yaml", "pydantic_core", "annotated_types"}
    for part in ("detector", "showers", "models", "training", "physics", "report", "profiling", "inference", "stages"):
        for file in (ROOT / "src" / "caloscale" / part).rglob("*.py"):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
                names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                for top in {name.partition(".")[0] for name in names} - {"caloscale", *sys.stdlib_module_names}:
                    assert top in every or extras_with(top) == ("train", "cpu"), f"{file}: {top}"


def test_all_that_is_missing_is_named_at_once(environment: Path, tmp_path, monkeypatch) -> None:
    def version(name: str) -> str:
        if name in ("tensorflow", "hist"):
            return "1"
        raise PackageNotFoundError(name)

    monkeypatch.setattr(installation, "version", version)
    monkeypatch.setattr(installation, "ROOT", tmp_path)
    with pytest.raises(InputError) as none:
        require("train", "cpu", "simulate")
    names = none.value.problem.removeprefix("packages are not installed: ").split(", ")
    assert {"scipy", "threadpoolctl", "calzone", "xpecgen"} < set(names) and not {"hist", "tensorflow-cpu"} & set(names)
    command = none.value.remedy.removeprefix("pip install ").replace("'", "").split()
    assert set(names) <= {Requirement(word).name for word in command}
    monkeypatch.setattr(installation, "version", lambda name: "1")
    require("train", "cpu", "simulate")


def test_this_repository_is_a_clone() -> None:
    assert installation.ROOT == ROOT
