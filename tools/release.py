"""Check what would be released: `make release-check`.

Builds sdist and wheel, has twine read their metadata and README, looks for tests and docs in the sdist, and installs
the wheel with the extras train and cpu for each supported Python that is found, in an empty folder, where a script and
`caloscale run` train a tiny model of parametrised showers.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13")
IN_SDIST = ("tests/test_api.py", "docs/index.md", "docs/tutorials/own-arrays.ipynb", "constraints.txt", "Makefile")
SCRIPT = """\
import caloscale

small = ["data.simulation.engine=parametrised", "data.showers=96", "data.energyGev=[5, 10]", "train.epochs=1"]
small += ["train.maxMinutes=null", "validation.showers=64", "validation.bootstraps=20", "validation.energyBins=1"]
run = caloscale.load_run(preset="compact", overrides=small)
summary = caloscale.run(run, name="first")
generator = caloscale.Generator.load("runs/first/training/model")
showers = generator.generate(8.0, count=32)
again = generator.generate(showers.energy_gev, showers.angle_rad, seed=showers.seed)
assert (again.cells_gev == showers.cells_gev).all()
caloscale.write_showers(showers, "made.npz")
evaluation = caloscale.evaluate("made.npz", reference=caloscale.read_showers("made.npz", run), run=run)
print(summary.physics.decision, showers, evaluation, evaluation.histograms["ecalSum"], sep="\\n")
print(caloscale.bill("runs/first").usd, caloscale.plan(run).considered, sorted(dir(caloscale)), sep="\\n")
"""
"""What a user may write outside the repository: fifteen lines."""


def execute(*command: str | Path, folder: Path = ROOT) -> None:
    """Run a command; its failure ends the check."""
    print("+", *command, flush=True)
    subprocess.run([str(word) for word in command], cwd=folder, check=True)


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
    execute(python, "-m", "pip", "install", "--quiet", *constraints, f"caloscale[train,cpu] @ {wheel.as_uri()}")
    (outside / "script.py").write_text(SCRIPT)
    execute(python, "script.py", folder=outside)
    execute(outside / "venv" / "bin" / "caloscale", "run", "runs/first/run.yaml", "--name", "again", folder=outside)
    return True


if __name__ == "__main__":
    main()
