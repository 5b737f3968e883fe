"""Files of a rank: measured events, states for resuming, and checkpoints of the generator."""

import json
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from caloscale.errors import CheckpointError
from caloscale.sagips.remote_memory import Counts
from caloscale.spec.block import read_json
from caloscale.storage.atomic import atomic_writer, write_text

Arrays = Mapping[str, NDArray[Any]]
KEPT_STATES = 2
"""Newest states of a rank. A rank continues only when all have saved an epoch, so all have one of the newest two."""
CHECKPOINTS = "checkpoints"
_PROGRESS = "progress"
_PROBLEM, _RECORD = "problem.json", "record.json"


@dataclass
class Progress(Counts):
    """What a rank has done so far, in all its attempts; `exchange_seconds` is of the timed epochs."""

    epoch: int = 0
    """Epochs done."""
    seconds: float = 0.0
    """Wall time of the epochs and saves, s."""
    timed_epochs: int = 0
    """Epochs that are in timed_seconds: all but the first of an attempt, which builds the graph."""
    timed_seconds: float = 0.0
    """Wall time of these epochs, without saves, s."""
    processor_seconds: float = 0.0
    """Processor time of the rank in these epochs, s: on a machine with fewer cores than ranks it says what an epoch
    costs, and the wall time how long it waits."""
    transfer_seconds: float = 0.0
    """Time in which gradients were copied into host memory in these epochs, s."""
    device_memory_bytes: int | None = None
    """Largest memory of the rank's accelerator in use; None without one."""
    history: dict[str, list[float]] = field(default_factory=dict)
    """Losses, with the epochs and seconds at which they were noted."""
    finite: bool = True
    """Whether a gradient was finite in any epoch."""
    stopped: str = ""
    """What ended the run: epochs or maxMinutes."""
    groups: int = 1
    """Groups of ranks that exchange in every epoch."""
    members: list[list[int]] = field(default_factory=list)
    """The ranks of each group, of exchanges in groups: a resumed run keeps them, whichever hosts its ranks are on."""
    measured: list[str] = field(default_factory=list)
    """`Problem.measured` of the rank: a resumed run continues with the same events."""
    samples: list[list[float]] = field(default_factory=list)
    """`Problem.samples`: a resumed run continues with the same pipelines."""


@dataclass(frozen=True)
class Problem:
    """Names and true values of what is sought."""

    parameters: tuple[str, ...]
    truth: tuple[float, ...] | None
    """Normalised; None where they are not known."""
    measured: tuple[str, ...] = ()
    """SHA-256 of the events that the rank has read, of each data set; empty: made from the truth."""
    samples: tuple[tuple[float, ...], ...] = ()
    """`data.sample_of` of each pipeline."""
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the file of measured events of each data set that has one, by its name."""


def write_problem(folder: Path, problem: Problem) -> None:
    """Write FOLDER/problem.json."""
    content = {name: getattr(problem, name) for name in ("parameters", "truth", "samples", "files")}
    write_text(folder / _PROBLEM, json.dumps(content, indent=1))


def read_problem(folder: Path) -> Problem:
    """Read FOLDER/problem.json."""
    content = read_json(folder / _PROBLEM, remedy="solve again")
    truth, samples = content["truth"], tuple(map(tuple, content.get("samples", ())))
    known = tuple(content["parameters"]), None if truth is None else tuple(truth)
    return Problem(*known, samples=samples, files=content.get("files", {}))


def are_alike(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two of `Problem.samples`, or all of two runs, are of the same pipelines: processors differ in the last
    digits."""
    return len(one) == len(other) and np.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True)


def write_record(folder: Path, progress: Progress) -> None:
    """Write the progress of a rank at its end into the folder of its states."""
    write_text(folder / _RECORD, json.dumps(asdict(progress), indent=1))


def read_record(folder: Path) -> Progress:
    """The progress of a rank at its end."""
    return Progress(**read_json(folder / _RECORD, remedy="solve again: the run resumes at its end"))


def mean_per_epoch(records: Sequence[Progress], name: str) -> float | None:
    """Mean over ranks of a time of `Progress` over its timed epochs, s; None where a rank has timed none."""
    if not all(record.timed_epochs for record in records):
        return None
    return float(np.mean([getattr(record, name) / record.timed_epochs for record in records]))


def rank_folder(folder: Path, rank: int) -> Path:
    """The folder of a rank's states."""
    return folder / "ranks" / f"{rank:05d}"


def write_state(folder: Path, progress: Progress, state: Arrays) -> None:
    """Save a state of a rank's folder, and remove all but the newest."""
    text = np.frombuffer(json.dumps(asdict(progress)).encode(), np.uint8)
    _write(folder / f"state-{progress.epoch:08d}.npz", {**state, _PROGRESS: text})
    remove_states(folder, list_states(folder)[:-KEPT_STATES])


def remove_states(folder: Path, epochs: Iterable[int]) -> None:
    """Remove states of a rank's folder."""
    for epoch in epochs:
        (folder / f"state-{epoch:08d}.npz").unlink(missing_ok=True)


def list_states(folder: Path) -> list[int]:
    """Epochs of the saved states, ascending."""
    matches = (re.fullmatch(r"state-(\d+)\.npz", path.name) for path in folder.glob("state-*.npz"))
    return sorted(int(match.group(1)) for match in matches if match)


def saved_epochs(folder: Path, ranks: int) -> list[list[int]]:
    """Epochs of the saved states of each rank, as far as this machine sees them."""
    return [list_states(rank_folder(folder, rank)) for rank in range(ranks)]


def common_epoch(saved: Sequence[Collection[int]], seen: Collection[int] = ()) -> int | None:
    """The newest epoch that all ranks have saved, from which a run resumes; 0 for one that begins.

    saved: epochs that each rank has saved; seen: those that any machine sees of any rank. Ranks save epoch 0 before
    they begin, and another epoch only after all have saved the one before, so a run beyond epoch 0 has one in common as
    long as its files are there. None where they are not.
    """
    common = set.intersection(*map(set, saved))
    lost = not common and max({*seen, *chain.from_iterable(saved)}, default=0) > 0
    return None if lost else max(common, default=0)


def read_state(folder: Path, epoch: int) -> tuple[Progress, dict[str, NDArray[Any]]]:
    """The progress and the arrays of a saved state. Raises CheckpointError where the file is damaged."""
    with _opened(folder / f"state-{epoch:08d}.npz") as arrays:
        return Progress(**json.loads(bytes(arrays.pop(_PROGRESS)))), arrays


def checkpoint_file(folder: Path, epoch: int, rank: int) -> Path:
    """The checkpoint of a rank's generator."""
    return folder / CHECKPOINTS / f"epoch-{epoch:08d}" / f"rank-{rank:05d}.npz"


def write_checkpoint(folder: Path, rank: int, epoch: int, seconds: float, parameters: Any, generator: Arrays) -> None:
    """Copy a generator, with time stamps."""
    stamps = {"epoch": np.array(epoch), "seconds": np.array(seconds), "written": np.array(time.time())}
    _write(checkpoint_file(folder, epoch, rank), {**generator, **stamps, "parameters": np.asarray(parameters)})


def list_checkpoints(folder: Path, ranks: int = 0) -> list[int]:
    """Epochs of the checkpoints, ascending; ranks: of those alone that so many ranks have all written."""
    matches = (re.fullmatch(r"epoch-(\d+)", path.name) for path in (folder / CHECKPOINTS).glob("epoch-*"))
    epochs = sorted(int(match.group(1)) for match in matches if match)
    return [n for n in epochs if all(checkpoint_file(folder, n, rank).is_file() for rank in range(ranks))]


def read_checkpoints(folder: Path, epoch: int, ranks: int) -> tuple[float, NDArray[np.float32]]:
    """Of the checkpoints of all ranks the wall time of the run until then, s, the mean over the ranks, and proposals
    (ranks, analysisSamples, parameters), normalised, from the same noise in all checkpoints.

    Raises CheckpointError where one is missing or damaged.
    """
    seconds, proposals = [], []
    for rank in range(ranks):
        with _opened(checkpoint_file(folder, epoch, rank)) as arrays:
            seconds.append(float(arrays["seconds"]))
            proposals.append(arrays["parameters"])
    return float(np.mean(seconds)), np.stack(proposals)


def _write(file: Path, arrays: Arrays) -> None:
    with atomic_writer(file) as temporary, temporary.open("wb") as opened:
        np.savez(opened, **arrays)  # type: ignore[arg-type]


@contextmanager
def _opened(file: Path) -> Iterator[dict[str, NDArray[Any]]]:
    """The arrays of a file, for a block that reads them. zipfile, NumPy and the block raise errors of many types for a
    damaged file."""
    try:
        with file.open("rb") as opened, np.load(opened) as arrays:
            yield dict(arrays)
    except Exception as error:
        remedy = "delete this file: the run resumes from an earlier save"
        why = f"has no {error}" if isinstance(error, KeyError) else error
        raise CheckpointError(f"cannot be read: {why}", file=file, remedy=remedy) from error
