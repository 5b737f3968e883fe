"""A tiny run under Kubeflow's local runner and the same run by README's command: made once for all tests here."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from caloscale import spec
from caloscale.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CELLS = (15, 15, 6)


def no_gates(preset: str) -> list[dict[str, object]]:
    """A model of such a run is not assessed, so that it is kept."""
    gates = spec.load_run(preset=preset).validation.gates
    return [{**gate.model_dump(include={"quantity", "showers"}), "drop": True} for gate in gates]


# The clock steers nothing: where maxMinutes is set, the time that has passed is part of the learning rate.
TINY = f"""
model: {{preset: compact, latentSize: 8}}
data:
  showers: 48
  energyGev: [2, 4]
  geometry: {{cells: {list(CELLS)}, layers: [{{count: 6, absorberMm: 8}}], depthMm: 60}}
  preprocessing: {{rebin: [3, 3, 1], minimumSumGev: 0.005}}
  validationFraction: 0.25
  simulation: {{showersPerFile: 16}}
train: {{epochs: 2, batchPerReplica: 8, generatorUpdates: 1, deterministic: true, maxMinutes: null}}
validation: {{showers: 64, energyBins: 1, bootstraps: 20, gates: {json.dumps(no_gates("compact"))}}}
"""
OVERRIDES = tuple(
    f"{block}.{field}={json.dumps(value)}"
    for block, fields in yaml.safe_load(TINY).items()
    for field, value in fields.items()
)
AS_TINY = [word for override in OVERRIDES for word in ("--set", override)]
"""Options that make a run tiny."""


def commands(block: str) -> list[list[str]]:
    """The commands of a block of a page, as lists of words, without comments."""
    joined = block.replace("\\\n", " ")
    lines = [part for line in joined.splitlines() for part in re.split(r"\s&&\s", line)]
    return [words for words in (shlex.split(line, comments=True) for line in lines) if words]


TWO_FIGURES = """
import sys
from importlib.machinery import PathFinder

class Reporting(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "caloscale.stages.reporting":
            return None
        spec = super().find_spec(name, path)
        load = spec.loader.exec_module

        def load_and_change(module):
            load(module)
            save = module.save_figures
            module.save_figures = lambda folder, drawings: save(folder, [drawings[0], drawings[-1]])

        spec.loader.exec_module = load_and_change
        return spec

sys.meta_path.insert(0, Reporting)
"""
"""What Python runs as it starts: reports have two figures, as drawing seventeen takes ten seconds. All are drawn by
tests/report/test_figures.py, and all of a run by test_shards_and_report_by_single_commands."""
RUN = next(
    words
    for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    for words in commands(block)
    if words[:2] == ["caloscale", "run"]
)
"""The first command of README that runs a run configuration."""


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user: what README's commands name, and README's run configuration as run.yaml, but tiny."""
    home = tmp_path_factory.mktemp("home")
    for name in ("pipelines", "components", "Makefile", "docker", "pyproject.toml", "constraints.txt"):
        (home / name).symlink_to(ROOT / name)
    (home / "shown.yaml").write_text(README.split("```yaml\n")[1].split("```")[0])
    (home / "run.yaml").write_text(spec.dump_run(spec.load_run(home / "shown.yaml", overrides=OVERRIDES)))
    (home / "python").mkdir()
    (home / "python" / "sitecustomize.py").write_text(TWO_FIGURES)
    (home / "keras.json").write_text('{"floatx": "float16", "image_data_format": "channels_first"}')
    return home


def run(home: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A Python process in the folder, with a cache of showers of its own."""
    environment = {**os.environ, "CALOSCALE_CACHE": str(home / "cache"), "PYTHONPATH": f"{home / 'python'}:{ROOT}"}
    environment |= variables
    return subprocess.run(
        [sys.executable, *command], cwd=home, env=environment, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="session")
def by_pipeline(home: Path) -> subprocess.CompletedProcess[str]:
    """`make run` of the tiny configuration, as runs/pipeline; the user's environment names another Keras."""
    command = ("-m", "pipelines.train_calorimeter_gan", "run.yaml", "--name", "pipeline")
    return run(home, *command, KERAS_BACKEND="torch", KERAS_HOME=str(home))


class Command(NamedTuple):
    """How a command ended."""

    returncode: int | str | None


@pytest.fixture(scope="session")
def by_command(home: Path) -> Command:
    """README's command of the tiny configuration, as runs/command, in this process. Of its figures it draws one."""
    from caloscale.stages import reporting  # late: it imports matplotlib

    save = reporting.save_figures
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        patch.setenv("CALOSCALE_CACHE", str(home / "cache"))
        patch.setattr(sys, "argv", [*RUN, *AS_TINY, "--name", "command"])
        patch.setattr(reporting, "save_figures", lambda folder, drawings: save(folder, drawings[:1]))
        try:
            main()
        except SystemExit as end:
            return Command(end.code)
    return Command(0)


@pytest.fixture(scope="session")
def after_run(home: Path, by_command: Command) -> Path:
    """The folder of a user with a run, and with showers of their own."""
    assert not by_command.returncode
    simulated = sorted((home / "cache").rglob("*.h5"))
    shutil.copy(simulated[0], home / "showers.h5")
    (home / "mine").mkdir()
    for number, file in enumerate(simulated):
        shutil.copy(file, home / "mine" / f"showers-{number:03}.h5")
    return home
