"""What an image runs, but for caloscale itself: lists it, and installs it. Runs while an image is built.

    python dependencies.py list --extras cpu,simulate > requirements.txt
    python dependencies.py install --into /opt/caloscale --requirement requirements.txt --constraint constraints.txt

The list is that of pyproject.toml. The two are two steps, so that packages are installed again when the list or a pin
changes, and not for another line of pyproject.toml. It needs Python 3.11 and pip, and nothing else.
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


def requirements(pyproject: Path, extras: list[str]) -> list[str]:
    """Requirements of the project with these extras, as pip takes them; ends the program for an extra it has not."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    known = project["optional-dependencies"]
    for extra in extras:
        if extra not in known:
            sys.exit(f"error: EXTRAS: no such extra (got {extra!r})\n  remedy: some of {', '.join(known)}")
    return [*project["dependencies"], *(each for extra in extras for each in known[extra])]


def install(into: Path, wanted: list[str], constraints: list[str]) -> None:
    """Let this Python's pip install into another environment, which so needs no pip."""
    pins = [part for path in constraints for part in ("--constraint", path)]
    command = [sys.executable, "-m", "pip", "--python", str(into / "bin" / "python"), "install"]
    subprocess.run([*command, "--progress-bar", "off", *pins, *wanted], check=True)


def remove_unused(into: Path) -> None:
    """Remove what no program here reads."""
    for packages in into.glob("lib/python3*/site-packages"):
        for name in NEVER_USED:
            shutil.rmtree(packages / name, ignore_errors=True)


def main() -> None:
    """List or install."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    listing = steps.add_parser("list")
    listing.add_argument("--extras", default="", help="extras of pyproject.toml, with commas")
    installing = steps.add_parser("install")
    installing.add_argument("--into", type=Path, required=True, help="the environment (venv)")
    installing.add_argument("--requirement", required=True, help="a file of requirements")
    installing.add_argument("--constraint", action="append", default=[], help="a file of pins; may be given again")
    given = parser.parse_args()
    if given.step == "list":
        extras = [each for each in given.extras.split(",") if each]
        print("\n".join(requirements(Path("pyproject.toml"), extras)))
        return
    install(given.into, ["--requirement", given.requirement], given.constraint)
    remove_unused(given.into)


if __name__ == "__main__":
    main()
