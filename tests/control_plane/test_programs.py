"""What builds and starts a control plane, as far as it can be seen without one."""

import subprocess
import sys
from pathlib import Path

import pytest

from tools.cluster import build, certificates, programs
from tools.cluster.errors import ClusterError
from tools.cluster.kubeflow import sources

PROXY = "https://user:secret@proxy.invalid"


def test_versions_are_those_of_go_mod() -> None:
    assert programs.version("k8s.io/kubernetes").startswith("v1.")
    assert programs.version("k8s.io/kubernetes").removeprefix("v1.") == programs.version("k8s.io/api").removeprefix(
        "v0."
    )
    with pytest.raises(ClusterError, match="does not name nowhere"):
        programs.version("nowhere.invalid/x")


def test_every_program_is_a_tool_of_the_module() -> None:
    text = (programs.MODULE / "go.mod").read_text(encoding="utf-8")
    tools = text.split("tool (")[1].split(")")[0].split()
    wanted = [package for package in (*programs.CONTROL_PLANE.values(), *programs.NODE.values()) if "./" not in package]
    assert sorted(wanted) == sorted(tools)


def test_programs_lie_by_what_is_pinned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALOSCALE_CACHE", str(tmp_path / "cache"))
    before = programs.folder()
    assert before.is_relative_to(tmp_path / "cache")
    assert not programs.is_built()
    with pytest.raises(ClusterError, match=r"etcd is not built\n  remedy: python -m tools.cluster build"):
        programs.program("etcd")
    with pytest.raises(ClusterError, match=r"build --nodes"):
        programs.program("kubelet")
    module = tmp_path / programs.MODULE.name
    module.mkdir()
    (module / "go.mod").write_bytes((programs.MODULE / "go.mod").read_bytes())
    (module / "go.sum").write_bytes((programs.MODULE / "go.sum").read_bytes() + b"\n")
    assert programs.folder(module).parent == before.parent and programs.folder(module) != before


def fake_go(folder: Path, text: str) -> str:
    path = folder / "go"
    path.write_text(f"#!{sys.executable}\n{text}", encoding="utf-8")
    path.chmod(0o755)
    return str(path)


def test_a_build_that_cannot_download_says_so_without_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_go(tmp_path, f"import sys; sys.exit('module x: Get {PROXY}/x: connection refused')")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CALOSCALE_CACHE", str(tmp_path))
    with pytest.raises(ClusterError, match=r"go mod download:\nmodule x") as raised:
        build.build()
    assert "secret" not in str(raised.value)
    assert "proxy.invalid" not in str(raised.value)


def test_a_build_goes_on_where_it_was_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What fails leaves nothing half-written; what was built before is not built again."""
    script = """
import pathlib, sys
arguments = sys.argv[1:]
folder = pathlib.Path(__file__).parent
with (folder / "log").open("a") as log:
    log.write(" ".join(arguments[:1] + arguments[-1:]) + "\\n")
if arguments[0] == "list" and "-m" in arguments:
    print(folder)
elif arguments[0] == "build":
    if "kube-scheduler" in arguments[-1] and not (folder / "mended").exists():
        sys.exit("compile: out of memory")
    target = pathlib.Path(arguments[arguments.index("-o") + 1])
    target.write_text("#!/bin/sh\\necho 'kind: List'\\n")
    target.chmod(0o755)
"""
    fake_go(tmp_path, script)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CALOSCALE_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ClusterError, match=r"(?s)go build .*kube-scheduler:.*out of memory"):
        build.build()
    made = {path.name for path in (programs.folder() / "bin").iterdir()}
    assert made == {"etcd", "kubectl", "kube-apiserver", "kube-controller-manager"}
    (tmp_path / "mended").touch()
    build.build()
    assert programs.is_built()
    log = (tmp_path / "log").read_text(encoding="utf-8")
    assert log.count(f"build {programs.CONTROL_PLANE['etcd']}\n") == 1
    assert log.count(f"build {programs.CONTROL_PLANE['kube-scheduler']}\n") == 2
    lines = len(log.splitlines())
    build.build()
    assert len((tmp_path / "log").read_text(encoding="utf-8").splitlines()) == lines


def test_a_key_is_its_owners_and_a_certificate_is_that_of_its_authority(tmp_path: Path) -> None:
    """Servers and clients of a control plane that runs accept each other's."""
    authority = certificates.Authority(tmp_path, "authority")
    stranger = certificates.Authority(tmp_path / "other", "authority")
    pair = authority.issue("server", "server", hosts=["127.0.0.1", "name.svc"])
    assert all(each.key.stat().st_mode & 0o077 == 0 for each in (pair, authority.files))
    for known, code in ((authority, 0), (stranger, 2)):
        command = ["openssl", "verify", "-CAfile", str(known.certificate), str(pair.certificate)]
        assert subprocess.run(command, capture_output=True, check=False).returncode == code


def test_sources_that_cannot_be_mended_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or a second build would take them as they are: programs that listen on all addresses."""
    clone, place = tmp_path / "clone", tmp_path / "place"
    clone.mkdir()
    files = {name: upstream for name, upstream, _ in sources.MENDED}
    for name in files:
        (clone / name).parent.mkdir(parents=True, exist_ok=True)
        (clone / name).write_text("\n".join(text for file, text, _ in sources.MENDED if file == name))
    (clone / "frontend" / "server" / "app.ts").write_text("changed")

    def commit() -> str:
        git = ["git", "-C", str(clone), "-c", "user.name=a", "-c", "user.email=a@example.org"]
        for arguments in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message=a"]):
            subprocess.run([*git, *arguments], check=True)
        done = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
        return done.stdout.strip()

    monkeypatch.setattr(sources, "COMMIT", commit())
    with pytest.raises(ClusterError, match=r"app\.ts is not that of"):
        sources._fetch(place / "source", str(clone))
    assert not (place / "source").exists()
    (clone / "frontend" / "server" / "app.ts").write_text(files["frontend/server/app.ts"])
    monkeypatch.setattr(sources, "COMMIT", commit())
    sources._fetch(place / "source", str(clone))
    assert "process.env.LISTEN" in (place / "source" / "frontend/server/app.ts").read_text()
