"""Packages of extras: their import, and the command that installs them, as errors and `caloscale doctor` name it."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from caloscale.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
"""The clone, where this module runs from one."""

_DISTRIBUTIONS = {"sklearn": "scikit-learn", "tensorflow": "tensorflow-cpu", "keras": "tensorflow-cpu"}
_DISTRIBUTIONS |= {"matplotlib": "mplhep", "boost_histogram": "hist", "google": "google-cloud-storage"}
_DISTRIBUTIONS |= {"socks": "pysocks", "botocore": "boto3"}
"""Packages that bring a module of another name; all others have the module's."""
_ALONE = {"plan": "plan", "bill": "plan", "prices": "plan", "calibrate": "plan", "submit": "cluster"}
"""The extra of commands that need no other, where several extras bring a module."""
_TENSORFLOW = ("tensorflow-cpu", "tensorflow", "tensorflow-tpu")


def extras_with(module: str, command: str = "") -> tuple[str, ...]:
    """The extras that bring a module, as `install_command` takes them; empty for a module of no extra.

    command: that needs it; of several extras its own. Training packages are of no use without TensorFlow, so ``train``
    and ``cpu`` come together.
    """
    name = module.partition(".")[0]
    package_name = _DISTRIBUTIONS.get(name, name).replace("_", "-")
    extras = [extra for extra, package in _required() if package == package_name and extra not in ("dev", "docs")]
    if not extras:
        return ()
    extra = _ALONE[command] if _ALONE.get(command) in extras else extras[0]
    return ("train", "cpu") if extra in ("train", "cpu") else (extra,)


def require(*extras: str) -> None:
    """Raise InputError that names all packages of these extras that are not installed, and one command for all of them.

    TensorFlow is that of any machine.
    """
    absent = {name: extra for extra, name in _required() if extra in extras and not _is_installed(name)}
    if absent:
        remedy = install_command(*dict.fromkeys(absent.values()))
        raise InputError(f"packages are not installed: {', '.join(absent)}", remedy=remedy)


def _required() -> Iterator[tuple[str, str]]:
    """Extra and name of each package, in the order of pyproject.toml."""
    for line in requires("caloscale") or ():
        if match := re.match(r"([\w.-]+).*extra == [\"']([\w-]+)[\"']", line):
            yield match[2], match[1].replace("_", "-")


def _is_installed(name: str) -> bool:
    return any(map(installed_version, _TENSORFLOW if name in _TENSORFLOW else (name,)))


def installed_version(name: str) -> str | None:
    """The version of an installed package; None where it is not installed."""
    with suppress(PackageNotFoundError):
        return version(name)
    return None


def load_package(name: str) -> Any:
    """Import a package of an extra. Raises InputError with the command that installs it."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if not (extras := extras_with(error.name or name)):
            raise
        raise InputError(f"the package {error.name} is not installed", remedy=install_command(*extras)) from error


def install_command(*extras: str) -> str:
    """The command that installs these extras for the Python of this process.

    From a clone: ``pip install -e '.[infer]'``, with the path of the clone in another folder. Otherwise, as in an
    image: pip with the requirements of the extras, because caloscale itself is in no package registry.
    """
    if not (ROOT / "pyproject.toml").is_file():
        of_extras = re.compile(rf"extra == [\"']({'|'.join(map(re.escape, extras))})[\"']")
        packages = [line.partition(";")[0].strip() for line in requires("caloscale") or () if of_extras.search(line)]
        return f"{_pip()} install {shlex.join(packages)}"
    clone = "." if Path.cwd() == ROOT else str(ROOT)
    return f"{_pip()} install -e '{clone}[{','.join(extras)}]'"


def _pip() -> str:
    """The pip of this process's environment: by name where the shell finds it, otherwise by path."""
    own = Path(sys.executable).with_name("pip")
    if not own.is_file():
        return f"{shlex.quote(sys.executable)} -m pip"
    if shutil.which("pip") == str(own):
        return "pip"
    return shlex.quote(os.path.relpath(own) if own.is_relative_to(Path.cwd()) else str(own))
