"""What the operator's image holds is what the operator imports, no more and no less."""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "docker" / "operator-requirements.txt"
# Some packages are loaded when a run is planned for the first time.
IMPORTED = """
import json, sys
import caloscale.operator.__main__
from caloscale.cluster.capacity.placement import choose_placement
from tests.cluster.examples import CATALOGUE, pools, run_of, spot

run = run_of("hardware.accelerator=nvidia-tesla-v100", "hardware.count=16", "hardware.interruptionsPerNodeHour=0.1")
assert choose_placement(run, pools(spot("a"), spot("b")), CATALOGUE).placed
names = {name.partition(".")[0] for name, module in sys.modules.items() if getattr(module, "__file__", None)}
print(json.dumps(sorted(names - sys.stdlib_module_names)))
"""


def listed() -> set[str]:
    lines = REQUIREMENTS.read_text(encoding="utf-8").splitlines()
    return {normal(line) for line in lines if line and not line.startswith("#")}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def with_what_they_need(names: set[str]) -> set[str]:
    """Distributions and all that they require, without extras."""
    found: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.add(normal(requirement.name))
    return found


def test_the_image_has_all_that_the_operator_imports_and_little_else() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTED], capture_output=True, text=True, check=True, cwd=ROOT)
    distributions = metadata.packages_distributions()
    # `google` is shared by many distributions (kubernetes needs google-auth), `_distutils_hack` comes with any
    # environment. Where they are installed, requests imports `socks` (for proxies, which the operator does not use) and
    # oauthlib `blinker` (for signals, likewise).
    modules = set(json.loads(done.stdout)) - {"caloscale", "tests", "google", "_distutils_hack", "socks", "blinker"}
    imported = {normal(each) for module in modules for each in distributions.get(module, [])}
    installed = with_what_they_need(listed())
    assert imported <= installed, f"missing in {REQUIREMENTS.name}: {sorted(imported - installed)}"
    # Each line is there because something of ours imports it.
    assert listed() <= imported, f"not needed: {sorted(listed() - imported)}"


def test_the_image_installs_pinned_versions() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    pinned = {normal(line.split("==")[0]) for line in pins.splitlines() if "==" in line and not line.startswith("#")}
    assert with_what_they_need(listed()) <= pinned
