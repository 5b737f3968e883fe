"""How far an attempt of a training came: a small file that is written at every step.

It is in the page cache of the machine, so it survives the process, not the machine. It costs microseconds and serves
only the count of lost steps in the bill; the training itself resumes from a checkpoint.
"""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from caloscale.training.checkpoint.metadata import Progress


@dataclass(frozen=True)
class AttemptMark:
    """One attempt of a training, from its start until it ends or is killed."""

    restarts: int = 0
    """Attempts before it."""
    steps_lost: int = 0
    """Steps that were repeated in all attempts before it."""
    step: int = 0
    """The last step that it made."""


def read_marker(path: Path) -> AttemptMark | None:
    """The attempt that wrote this file; None when there is none, or it cannot be read."""
    with suppress(OSError, ValueError):
        restarts, lost, step = (int(number) for number in path.read_text(encoding="ascii").split())
        return AttemptMark(restarts, lost, step)
    return None


def next_attempt(last: AttemptMark | None, saved: Progress | None) -> AttemptMark:
    """The attempt that begins now. last: by the progress marker. saved: by the checkpoint from which it resumes."""
    known = [attempt for attempt in (last, saved) if attempt is not None]
    if not known:
        return AttemptMark()
    start = saved.step if saved else 0
    repeated = max(0, last.step - start) if last else 0
    restarts, lost = max(each.restarts for each in known), max(each.steps_lost for each in known)
    return AttemptMark(restarts + 1, lost + repeated, start)


class ProgressMarker:
    """The file of the present attempt."""

    def __init__(self, path: Path, attempt: AttemptMark) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._attempt = attempt
        self.write(attempt.step)

    def write(self, step: int) -> None:
        """This step is made. An error is ignored: the training does not depend on this file."""
        numbers = (self._attempt.restarts, self._attempt.steps_lost, step)
        with suppress(OSError):
            os.pwrite(self._file, " ".join(f"{number:12d}" for number in numbers).encode(), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
