"""The record of a simulation, simulation.json, and the log of finished files from which its times are summed."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from caloscale.spec.block import Block
from caloscale.spec.data import Particles
from caloscale.storage.atomic import storage_error

RECORD_NAME = "simulation.json"
_LOG_NAME = "files.jsonl"


class SimulationSummary(Block):
    """The Monte Carlo."""

    showers_per_second: float
    """Showers per second of wall time, all processes together; 0 when it was not measured (times were lost)."""
    core_seconds_per_shower: float
    """Processor time of one shower, s; 0 when it was not measured."""
    reused: bool
    """True when all files were there, or in the cache: the figures are from when they were made."""


class SimulationRecord(SimulationSummary):
    """A finished simulation: ``simulation.json``."""

    reused: bool = False
    source: Literal["geant4", "parametrised"]
    """Engine that made the showers."""
    particle: Particles = "e-"
    """The primary, or the list of them."""
    showers: int
    """Showers in all files."""
    seconds: float
    """Wall time, s: of all attempts when the simulation was interrupted, each up to its last finished file."""
    core_seconds: float
    """Processor time of the simulating processes for the finished files, start-up included, s."""
    processes: int
    """Processes that simulated at once (in the last attempt)."""
    seed: int
    """Seed of the run configuration."""
    fingerprint: str
    """Hash of everything that determines the showers."""
    versions: dict[str, str]
    """Versions of the software that made the showers."""
    processor: str = ""
    """Model of the processor that it ran on (in the last attempt); empty: not recorded."""
    cores: int = 0
    """Cores of it that it might use."""


class FileLog:
    """A line for each finished file of a simulation, so that an interrupted one keeps its times."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._path, self._fingerprint = folder / _LOG_NAME, fingerprint

    def add(self, **line: Any) -> None:
        """Add a finished file: file, attempt, seconds (since the attempt began), coreSeconds, showers, versions.

        Raises StorageError.
        """
        try:
            with self._path.open("a", encoding="utf-8") as log:
                log.write(json.dumps({"fingerprint": self._fingerprint, **line}) + "\n")
        except OSError as error:
            raise storage_error(error, self._path) from error

    def lines(self) -> list[dict[str, Any]]:
        """All finished files, not those of other simulations; a line that a crash truncated is left out."""
        if not self._path.is_file():
            return []
        lines = []
        for text in self._path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(json.JSONDecodeError):
                lines.append(json.loads(text))
        return [line for line in lines if isinstance(line, dict) and line.get("fingerprint") == self._fingerprint]

    def times(self) -> tuple[float, float, int]:
        """Wall seconds, core seconds and showers over all attempts."""
        wall: dict[str, float] = {}
        core, showers = 0.0, 0
        for line in self.lines():
            wall[line["attempt"]] = max(wall.get(line["attempt"], 0.0), float(line["seconds"]))
            core += float(line["coreSeconds"])
            showers += int(line["showers"])
        return sum(wall.values()), core, showers


def read_record(folder: Path) -> SimulationRecord | None:
    """The record of a finished simulation; None when it does not exist or is damaged."""
    try:
        return SimulationRecord.model_validate_json((folder / RECORD_NAME).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValidationError):
        return None
