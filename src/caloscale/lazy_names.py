"""Names of a package that are loaded when they are first used."""

import re
from pathlib import Path


def modules_of(package: str) -> dict[str, str]:
    """The module of each name, by the imports of the stub (.pyi) of a package's file."""
    stub = Path(package).with_suffix(".pyi").read_text(encoding="utf-8")
    return {name: module for module, name in re.findall(r"^from (\S+) import \w+ as (\w+)$", stub, re.MULTILINE)}
