"""How far a training was when it was killed: a small file that is written at every step.

It lies in the memory of the machine's kernel and survives the process, not the machine. It costs microseconds and is
read only for what the bill says; the training itself goes on from a checkpoint.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_WIDTH = 12


@dataclass(frozen=True)
class Life:
    """One life of a training, from its start to its end or death."""

    restarts: int = 0
    """Lives before it."""
    steps_lost: int = 0
    """Steps that had been made and were made again, in all lives before."""
    step: int = 0
    """The last step that it made."""


def read_mark(path: Path) -> Life | None:
    """The life that wrote this file; None when there is none, or it cannot be read."""
    with suppress(OSError, ValueError):
        restarts, lost, step = (int(part) for part in path.read_text(encoding="ascii").split())
        return Life(restarts, lost, step)
    return None


def next_life(last: Life | None, saved: Life | None) -> Life:
    """The life that begins now.

    last: what the mark says, if it was found. saved: what the checkpoint says that it goes on from; None: there is
    none, the training begins.
    """
    if saved is None and last is None:
        return Life()
    start = 0 if saved is None else saved.step
    known = [life for life in (last, saved) if life is not None]
    restarts = max(life.restarts for life in known) + 1
    lost = max(life.steps_lost for life in known)
    return Life(restarts, lost + max(0, 0 if last is None else last.step - start), start)


class Mark:
    """The file of the life that is running."""

    def __init__(self, path: Path, life: Life) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self._life = life
        self.step(life.step)

    def step(self, number: int) -> None:
        """This step was made. A full disk is not this file's business."""
        parts = (self._life.restarts, self._life.steps_lost, number)
        with suppress(OSError):
            os.pwrite(self._file, " ".join(f"{part:{_WIDTH}d}" for part in parts).encode(), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
