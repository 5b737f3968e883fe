"""Installs what an image runs, but not caloscale itself, into the environment of the image. Runs while it is built.

    python dependencies.py --into /opt/caloscale --extras cpu,simulate --constraint constraints.txt

The lists are those of pyproject.toml (or of a file), so an image is built from the pins of everything else; a change
of our code does not touch this layer. It needs Python 3.11 and pip, and nothing else.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

# Headers to compile operations of one's own against, and the compiler's parser that reads them: 350 MB.
NEVER_USED = ("tensorflow/include", "tensorflow/xla_aot_runtime_src", "clang")
# It asks for the package `tensorflow`, which would come beside tensorflow-cpu and overwrite it.
WITHOUT_REQUIREMENTS = ("tf_keras",)


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """Requirements of the project with these extras, as pip takes them; ends the program for an extra it has not."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    known = project["optional-dependencies"]
    for extra in extras:
        if extra not in known:
            sys.exit(f"error: EXTRAS: no such extra (got {extra!r})\n  remedy: some of {', '.join(known)}")
    return [*project["dependencies"], *(each for extra in extras for each in known[extra])]


def install(into: Path, wanted: list[str], constraints: list[str], *options: str) -> None:
    """Let this Python's pip install into another environment, which so needs no pip."""
    pins = [part for path in constraints for part in ("--constraint", path)]
    command = [sys.executable, "-m", "pip", "--python", str(into / "bin" / "python"), "install", *options]
    subprocess.run([*command, "--progress-bar", "off", *pins, *wanted], check=True)


def remove_unused(into: Path) -> None:
    """Remove what no program here reads."""
    for packages in into.glob("lib/python3*/site-packages"):
        for name in NEVER_USED:
            shutil.rmtree(packages / name, ignore_errors=True)


def main() -> None:
    """Install."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, required=True, help="the environment (venv)")
    parser.add_argument("--extras", default="", help="extras of pyproject.toml, with commas")
    parser.add_argument("--requirement", help="a file of requirements instead of pyproject.toml")
    parser.add_argument("--constraint", action="append", default=[], help="a file of pins; may be given again")
    given = parser.parse_args()
    extras = [each for each in given.extras.split(",") if each]
    if given.requirement:
        install(given.into, ["--requirement", given.requirement], given.constraint)
        return
    install(given.into, requirements(Path("pyproject.toml"), extras), given.constraint)
    install(given.into, list(WITHOUT_REQUIREMENTS), given.constraint, "--no-deps")
    remove_unused(given.into)


if __name__ == "__main__":
    main()
