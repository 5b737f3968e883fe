"""The record of a stage: how long it took, whether it succeeded, what it measured."""

import json
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import psutil
from pydantic import ConfigDict

from caloscale.errors import CaloscaleError, InputError, PeerLostError, StorageError, Terminated
from caloscale.processor import cores, processor_name
from caloscale.spec.block import Block, read_block
from caloscale.status import ATTEMPT_VARIABLE
from caloscale.storage.atomic import write_text
from caloscale.termination import signal_of_system_error

STAGES = ("simulate", "preprocess", "train", "solve", "validate", "report")
EARLIER_FILE = "earlier.json"
"""In the same folder: the records of earlier attempts, which are paid for, too."""
RESULT_FILES = ("summary.json", "bill.json", "report.html")
"""What a run ends with."""
FAILURE = "failure"
"""Name in the figures of a report's record: why the run failed, as the report shows it."""
Outcome = Literal["succeeded", "failed", "interrupted"]


class StageMachine(Block):
    """The machine that a stage ran on."""

    processor: str
    """Model name of the processor."""
    cores: int
    """Logical cores that the process may use."""
    memory_gib: float

    def has_simulated(self, figures: Mapping[str, Any]) -> bool:
        """Whether a machine like this has simulated the showers of these figures, as far as they state it: those of a
        cache, or of shards in a bucket, may be of another."""
        processor, cores = figures.get("processor") or self.processor, figures.get("cores") or self.cores
        return (processor, cores) == (self.processor, self.cores)


ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES", "DNNL_MAX_CPU_ISA", "KMP_AFFINITY", "MKL_NUM_THREADS", "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS", "ONEDNN_DEFAULT_FPMATH_MODE", "ONEDNN_MAX_CPU_ISA", "OPENBLAS_CORETYPE",
    "OPENBLAS_NUM_THREADS", "TF_CUDNN_DETERMINISTIC", "TF_DETERMINISTIC_OPS", "TF_ENABLE_ONEDNN_OPTS",
    "TF_NUM_INTEROP_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_XLA_FLAGS", "XLA_FLAGS",
)  # fmt: skip
"""Variables that the record of a stage keeps: results or speeds depend on them, and nothing else shows them."""


class StageRecord(Block):
    """One stage of a run: times, outcome, and the figures that it measured. Fields of other versions are ignored."""

    model_config = ConfigDict(extra="ignore")

    stage: str
    """Name of the stage."""
    outcome: Outcome
    """How it ended."""
    started: datetime
    """When it started, UTC."""
    seconds: float
    """Wall time, s."""
    core_seconds: float
    """Processor time of the stage's process and its children, s."""
    peak_memory_mib: float
    """Largest resident memory of the stage's process and its children together, MiB, sampled twice a second."""
    machine: StageMachine
    """Where it ran."""
    environment: dict[str, str] = {}
    """Variables of the environment that change arithmetic, threads or devices (`ENVIRONMENT`), as far as set."""
    attempt: str | None = None
    """Uid of a run on a cluster and number of its attempt, ``uid/number``, if its worker did the stage: on a machine
    that the run's bill names."""
    figures: dict[str, Any] = {}
    """What the stage measured; the stage's own names."""
    error: str | None = None
    """Why it failed."""
    exit_code: int = 0
    """Exit code that a command ends with after this stage."""


class EarlierAttempt(Block):
    """Stages of an attempt that were begun again later."""

    stages: tuple[StageRecord, ...]
    """Their records."""


class Attempts(Block):
    """Earlier attempts of a run, first to last."""

    attempts: tuple[EarlierAttempt, ...] = ()


@contextmanager
def recorded(stage: str, folder: Path) -> Iterator[dict[str, Any]]:
    """Measure a stage and write ``stages/<stage>.json`` into a run's folder, also when it fails.

    Yields the figures of the record, which the stage adds to.
    """
    figures: dict[str, Any] = {}
    if stage != "report":
        _remove_failure(stage, folder)
    _set_aside(STAGES[STAGES.index(stage) :], folder)
    started, clock, busy = datetime.now(UTC), time.perf_counter(), _core_seconds()
    outcome: Outcome = "failed"
    message, code = None, 1
    with _sampled_memory() as peak_memory_mib:
        try:
            with signal_of_system_error():
                yield figures
            outcome, code = "succeeded", 0
        except BaseException as error:
            outcome, message, code = _end_by(error)
            raise
        finally:
            record = StageRecord(
                stage=stage,
                outcome=outcome,
                started=started,
                seconds=time.perf_counter() - clock,
                core_seconds=_core_seconds() - busy,
                peak_memory_mib=peak_memory_mib(),
                machine=this_machine(),
                environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
                attempt=os.environ.get(ATTEMPT_VARIABLE),
                figures=figures,
                error=message,
                exit_code=code,
            )
            # A disk that is full must not hide why the stage failed.
            with nullcontext() if outcome == "succeeded" else suppress(StorageError, OSError):
                write_record(record, folder)


def _end_by(error: BaseException) -> tuple[Outcome, str, int]:
    """Outcome, message and exit code of a stage that an exception ends."""
    match error:
        case KeyboardInterrupt():
            return "interrupted", "stopped by the user", 130
        case Terminated():
            return "interrupted", "stopped by SIGTERM", error.exit_code
        case BrokenPipeError():
            # Argo signals the process group of a step: who reads its output ends before the step has saved
            return "interrupted", "the process that reads its output has ended", Terminated.exit_code
        case CaloscaleError():
            return "interrupted" if isinstance(error, PeerLostError) else "failed", str(error), error.exit_code
    return "failed", f"{type(error).__name__}: {error}", 1


def write_record(record: StageRecord, folder: Path) -> None:
    """Write a record into ``<folder>/stages``, atomically."""
    write_text(folder / "stages" / f"{record.stage}.json", record.as_json())


def read_records(folder: Path) -> dict[str, StageRecord]:
    """The records of a run's folder by stage, in the order of the stages. Raises InputError for a damaged one."""
    records = {}
    for stage in STAGES:
        path = folder / "stages" / f"{stage}.json"
        if path.is_file():
            remedy = f"delete it: the stage is then taken for one that did not run (caloscale {stage} runs it again)"
            records[stage] = read_block(StageRecord, path, remedy=remedy)
    return records


def finished(folder: Path) -> tuple[dict[str, StageRecord], str | None]:
    """The records of all stages but the report, and which of them failed and why. Raises as `read_records`."""
    records = {stage: record for stage, record in read_records(folder).items() if stage != "report"}
    failed = next((r for r in records.values() if r.outcome != "succeeded"), None)
    return records, f"stage {failed.stage} {failed.outcome}: {failed.error}" if failed else None


def ended_well(folder: Path) -> bool:
    """Whether the last stage has succeeded and was not reported yet: what failed before was then tried again."""
    records = read_records(folder)
    return "validate" in records and records["validate"].outcome == "succeeded" and "report" not in records


def known_failure(folder: Path, failure: str | None) -> str | None:
    """Why a run failed, where its records do not state it; None once it has ended well.

    failure: why, as far as is known; empty: it did not fail; None: as its report has it, until a stage begins again.
    """
    if failure is None and (reported := read_records(folder).get("report")) is not None:
        failure = reported.figures.get(FAILURE)
    return None if ended_well(folder) else failure


def read_earlier(folder: Path) -> tuple[EarlierAttempt, ...]:
    """What earlier attempts of the stages used, as far as recorded. Raises InputError when the list is damaged."""
    path = folder / "stages" / EARLIER_FILE
    if not path.is_file():
        return ()
    return read_block(Attempts, path, remedy="delete it: what earlier attempts used is then left out").attempts


def _remove_failure(stage: str, folder: Path) -> None:
    """Remove bill and report that say that the run failed: after a retry of a Kubeflow step no report follows. A
    summary that does not say so is that of a solver, made by its first stage. A step that was killed has no record: the
    failure is then in the record of the report."""
    summary, failed = folder / RESULT_FILES[0], False
    with suppress(InputError):
        records = read_records(folder)
        failed = (record := records.get(stage)) is not None and record.outcome != "succeeded"
        failed = failed or ((shown := records.get("report")) is not None and bool(shown.figures.get(FAILURE)))
    with suppress(OSError, ValueError, AttributeError):
        if json.loads(summary.read_bytes()).get("outcome") == "failed":
            failed = True
            summary.unlink()
    if failed:
        for name in RESULT_FILES[1:]:
            (folder / name).unlink(missing_ok=True)


def _set_aside(stages: Sequence[str], folder: Path) -> None:
    """Move what these stages recorded in an earlier attempt to the earlier records: outdated, but paid for."""
    outdated: tuple[StageRecord, ...] = ()
    with suppress(InputError):  # a record that cannot be read must not keep the stage from making a new one
        outdated = tuple(r for name, r in read_records(folder).items() if name in stages and name != "report")
    earlier = read_earlier(folder) if outdated else ()
    # In a bucket a kill may come when the list is there and the record is not gone yet; it was paid for once.
    outdated = tuple(record for record in outdated if not any(record in attempt.stages for attempt in earlier))
    if outdated:
        attempts = Attempts(attempts=(*earlier, EarlierAttempt(stages=outdated)))
        write_text(folder / "stages" / EARLIER_FILE, attempts.as_json())
    for name in stages:
        (folder / "stages" / f"{name}.json").unlink(missing_ok=True)


def adopt_records(source: Path, folder: Path) -> None:
    """Take over the records of another folder, with those of its earlier attempts, once: what was recorded of these
    stages before is set aside."""
    earlier = read_earlier(folder)
    if others := tuple(attempt for attempt in read_earlier(source) if attempt not in earlier):
        write_text(folder / "stages" / EARLIER_FILE, Attempts(attempts=(*earlier, *others)).as_json())
    for stage, record in read_records(source).items():
        if read_records(folder).get(stage) != record:
            _set_aside((stage,), folder)
            write_record(record, folder)


def this_machine() -> StageMachine:
    """The machine that this process runs on."""
    return StageMachine(
        processor=processor_name(), cores=cores(), memory_gib=round(psutil.virtual_memory().total / 2**30, 1)
    )


def _core_seconds() -> float:
    """Processor time of this process and of the children it has waited for, s."""
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


@contextmanager
def _sampled_memory() -> Iterator[Callable[[], float]]:
    """Sample the resident memory of this process and its children in a thread; yields what samples once more and
    returns the largest sum so far, MiB."""
    peak, stop = 0, threading.Event()

    def sample() -> float:
        nonlocal peak
        process, total = psutil.Process(), 0
        for one in [process, *process.children(recursive=True)]:
            with suppress(psutil.NoSuchProcess):
                total += one.memory_info().rss
        peak = max(peak, total)
        return round(peak / 2**20, 1)

    def watch() -> None:
        while not stop.wait(0.5):
            sample()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield sample
    finally:
        stop.set()
        thread.join()
