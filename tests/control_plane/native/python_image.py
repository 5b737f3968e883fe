"""An image with the Python that runs the tests and nothing else: what pods of the tests run, made without an engine."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

from tools.images.archives import write_archive

IMAGE = "caloscale/test-python:1"
PYTHON = "/usr/bin/python3"
# Parts of the standard library that no test needs.
LEFT_OUT = ("__pycache__", "site-packages", "dist-packages", "test", "idlelib", "ensurepip", "lib2to3", "tkinter")


def write_python_image(archive: Path) -> Path:
    """Write the image's archive (about 30 MB)."""
    program, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    files = [
        path
        for path in library.rglob("*")
        if path.is_file()
        and not set(path.relative_to(library).parts) & set(LEFT_OUT)
        and not path.parent.name.startswith("config-")
    ]
    libraries = _libraries([program, *(path for path in files if ".so" in path.suffixes)])
    # Where the interpreter looks for its library, and where the tests look for it.
    entries = {**{str(path): path for path in (*files, *libraries, program)}, PYTHON: program}
    return write_archive(archive, IMAGE, entries, entrypoint=[str(program), "-u"], user="65532")


def _libraries(binaries: list[Path]) -> set[Path]:
    """Shared libraries of programs, at the paths where the loader looks for them."""
    shown = subprocess.run(["ldd", *map(str, binaries)], capture_output=True, text=True, check=False).stdout
    return {Path(path) for path in re.findall(r"(?:=> |^\s+)(/\S+) \(0x", shown, re.MULTILINE)}
