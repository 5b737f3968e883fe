"""Check what would be released: `make release-check`.

Builds sdist and wheel, has twine read their metadata and README, looks for tests and docs in the sdist, and installs
the wheel with the extras train and cpu for each supported Python that is found, in an empty folder, where the script of
docs/reference/python.md and `caloscale run` train a tiny model of parametrised showers.
"""

import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
IN_SDIST = ("tests/test_api.py", "docs/index.md", "docs/tutorials/own-arrays.ipynb", "constraints.txt", "Makefile")
PAGE = ROOT / "docs" / "reference" / "python.md"
"""Its first block of Python is the script that is run outside the repository."""
MINUTES = 30
"""Longest time of one command."""


def execute(*command: str | Path, folder: Path = ROOT) -> None:
    """Run a command; its failure ends the check, and so does a time that is too long."""
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], cwd=folder, check=True, timeout=60 * MINUTES)


def main() -> None:
    """Build, check, install, run."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        execute(sys.executable, "-m", "venv", folder / "tools")
        python = folder / "tools" / "bin" / "python"
        execute(python, "-m", "pip", "install", "--quiet", "build", "twine")
        execute(python, "-m", "build", "--outdir", folder / "dist", ROOT)
        sdist, wheel = next((folder / "dist").glob("*.tar.gz")), next((folder / "dist").glob("*.whl"))
        execute(python, "-m", "twine", "check", "--strict", sdist, wheel)
        with tarfile.open(sdist) as archive:
            held = {member.partition("/")[2] for member in archive.getnames()}
        if absent := set(IN_SDIST) - held:
            sys.exit(f"not in the sdist: {', '.join(sorted(absent))}")
        checked = [one for one in PYTHONS if _check(one, wheel, folder)]
        if not checked:
            sys.exit(f"none of {', '.join(PYTHONS)} can be run")
        print(f"release-check: {wheel.name} with {', '.join(checked)}")


def _check(name: str, wheel: Path, folder: Path) -> bool:
    """Whether a Python was there, and runs the wheel."""
    try:
        subprocess.run([name, "-c", "import venv, ensurepip"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        print(f"{name} is not there, and not checked")
        return False
    (outside := folder / f"outside-{name}").mkdir()
    execute(name, "-m", "venv", outside / "venv")
    python = outside / "venv" / "bin" / "python"
    constraints = ("--constraint", ROOT / "constraints.txt")
    # Bytecode of what is never imported would be most of the time.
    install = (python, "-m", "pip", "install", "--quiet", "--no-compile", *constraints)
    execute(*install, f"caloscale[train,cpu] @ {wheel.as_uri()}")
    script = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert script is not None
    (outside / "script.py").write_text(script[1], encoding="utf-8")
    execute(python, "script.py", folder=outside)
    execute(outside / "venv" / "bin" / "caloscale", "run", "runs/small/run.yaml", "--name", "again", folder=outside)
    shutil.rmtree(outside)  # 2 GB
    return True


if __name__ == "__main__":
    main()
