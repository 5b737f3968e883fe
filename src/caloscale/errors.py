"""The tree of errors. Every error says what is wrong, where, and what to do about it.

After an exit code of 128 or more the same command resumes; Kubeflow's policy ExitCode restarts such a worker.
"""

import reprlib
import sys
from types import TracebackType

MOST_CHARACTERS = 400
"""Of a value or a name in a message."""
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother, _REPR.maxlong = 3, 200, 200, 100
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = 20


def cut(text: str) -> str:
    """A text, shortened for a message."""
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."


def shorten(value: object) -> str:
    """A value as Python writes it, shortened for a message, however large it is."""
    return cut(_REPR.repr(value))


def with_remedy(problem: str, remedy: str | None) -> str:
    """A problem and its remedy in one line."""
    return f"{problem}; remedy: {remedy}" if remedy else problem


class CaloscaleError(Exception):
    """Base of all errors that a user may see without a traceback.

    problem: what is wrong. file, field, value: where, as far as known. remedy: what to write or do instead.
    """

    exit_code = 1

    def __init__(
        self,
        problem: str,
        *,
        file: object = None,
        field: str | None = None,
        value: object = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(problem)
        self.problem = problem
        self.file = None if file is None else str(file)
        self.field = field
        self.value = value
        self.remedy = remedy

    def __str__(self) -> str:
        where = "".join(f"{part}: " for part in (self.file, cut(self.field or "")) if part)
        located = f"{where}{self.problem}" + ("" if self.value is None else f" (got {shorten(self.value)})")
        return f"{located}\n  remedy: {self.remedy}" if self.remedy else located

    @property
    def sentence(self) -> str:
        """Field, problem and remedy in one line, for a condition or a table."""
        where = f"{self.field} " if self.field else ""
        return with_remedy(f"{where}{self.problem}", self.remedy)


def show_message_alone() -> None:
    """From now on an error of this package that ends the process is printed as its message, without a traceback.

    For programs whose log a person reads from its end, as the steps of a pipeline.
    """
    before = sys.excepthook

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, CaloscaleError):
            print(f"error: {error}", file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = show


class InvalidValueError(ValueError):
    """A value that a check refuses, before it is known where the value comes from.

    The check of a pydantic block raises it; `caloscale.spec.problem.list_problems` adds file and field.
    """

    def __init__(self, problem: str, *, remedy: str) -> None:
        super().__init__(problem)
        self.problem = problem
        self.remedy = remedy


class InputError(CaloscaleError):
    """The user's input cannot be used.

    Remedy: Correct what the message names: file, field, value.
    """

    exit_code = 2


class ConfigurationError(InputError):
    """The run configuration is not valid.

    Remedy: Correct the fields that the message names; the page Run configuration has types, units and defaults.
    """

    also: tuple["ConfigurationError", ...] = ()
    """Further problems of the same configuration."""

    def __str__(self) -> str:
        return "\n".join([super().__str__(), *(f"also {problem}" for problem in self.also)])


class ShowerFileError(InputError):
    """A file of showers (HDF5, TFRecord, manifest) is broken or does not fit.

    Remedy: Look at it with `caloscale inspect`; write it again in one of the layouts of the page Showers.
    """


class CheckpointError(InputError):
    """A checkpoint or model is broken, or belongs to another network or run.

    Remedy: Give the folder `model` of a training, or another workspace for another run configuration.
    """


class PriceError(InputError):
    """A price is missing, undated or nonsense.

    Remedy: Add a dated row of your own with --prices FILE.
    """


class StorageError(InputError):
    """A disk is full or a bucket does not exist or refuses.

    Remedy: Free space, or correct the path, the name of the bucket or the rights; the same command resumes.
    """


class ChangedError(StorageError):
    """An object of a bucket was changed by another process meanwhile.

    Remedy: Let one process alone write there.
    """


class UnreachableError(StorageError):
    """A bucket does not answer for now.

    Remedy: Run the same command again when it answers; it resumes.
    """

    exit_code = 144


class HeldError(InputError):
    """Another process runs in this workspace, or writes these checkpoints.

    Remedy: Wait until it has ended, or stop it; or choose another workspace or --name.
    """

    def __init__(self, holder: str, place: object) -> None:
        remedy = "wait until it has ended, or stop it; or choose another workspace or --name"
        super().__init__(f"{holder} is at work here", file=place, remedy=remedy)


class SimulationError(CaloscaleError):
    """Geant4 is missing or the simulation failed.

    Remedy: Install the extra `simulate`, or set `data.simulation.engine: parametrised`.
    """

    exit_code = 3


class TrainingError(CaloscaleError):
    """The training cannot continue (for example a loss that is not finite).

    Remedy: For a loss that is not finite lower `train.learningRate`; otherwise what the message names.
    """

    exit_code = 5


class ClusterError(CaloscaleError):
    """A Kubernetes cluster cannot be reached, or refuses what was asked of it.

    Remedy: `caloscale doctor` shows the cluster and your rights; name another one with --context.
    """

    exit_code = 4


class BenchError(CaloscaleError):
    """A measurement or its reference failed.

    Remedy: The message quotes the program that failed; correct its cause and measure again.
    """

    exit_code = 6


class GenerationError(CaloscaleError):
    """A runtime (TensorFlow, ONNX Runtime, OpenVINO) does not compute showers.

    Remedy: Use another --runtime, or fewer --streams.
    """

    exit_code = 9


class NotAcceptedError(CaloscaleError):
    """A validation that requires an accepted model has decided otherwise.

    Remedy: Rejected: train longer or change the networks. Undecided: hold out more showers. Not assessed: set gates.
    """

    exit_code = 10

    def __init__(self, decision: str) -> None:
        remedy = {
            "rejected": "train longer or change the networks; the verdict names the gates that are not met",
            "undecided": "hold out more Monte Carlo showers (data.showers, data.validationFraction)",
            "not assessed": "set validation.gates on the quantities that the verdict names",
        }[decision]
        super().__init__(f"the model is {decision}, and --require-release was given", remedy=remedy)


class PeerLostError(CaloscaleError):
    """Another worker of this training is gone, or cannot be reached.

    Remedy: Start all workers again; they resume from the last checkpoint.
    """

    exit_code = 138

    def __init__(self, worker: int | None = None, reason: str = "is gone") -> None:
        self.worker = worker
        who = "another worker" if worker is None else f"worker {worker}"
        remedy = "start all workers again; they resume from the last checkpoint"
        super().__init__(f"{who} {reason}; this one cannot continue alone", remedy=remedy)


class RankLostError(CaloscaleError):
    """A rank of a solver ended without a message, for example because it was killed; all ranks have ended.

    rank: its number, where known; signal: that killed it, where known; epoch: the newest that all ranks have saved,
    None where files of it are missing.

    Remedy: Run the same command with the --name of the run; it resumes from the last save.
    """

    exit_code = 138

    def __init__(self, rank: int | None, signal: int | None, epoch: int | None, log: object) -> None:
        who = "a rank" if rank is None else f"rank {rank}"
        how = "ended without a message" if signal is None else f"was killed by signal {signal}"
        remedy = "no epoch of all ranks is left in the folder ranks: restore its files, or choose another --name"
        if epoch is not None:
            remedy = f"the same command, with the --name of this run, resumes from epoch {epoch}"
        super().__init__(f"{who} {how}; all ranks have ended", file=log, remedy=remedy)


class SupersededError(CaloscaleError):
    """A later attempt of this training has taken over its checkpoints; this one writes nothing more.

    Remedy: None is needed: the later attempt continues from the checkpoints.
    """

    exit_code = 145

    def __init__(self, holder: str, uri: str) -> None:
        remedy = "none is needed: the later attempt continues from the checkpoints"
        problem = f"{holder} has taken over these checkpoints; this attempt has stopped"
        super().__init__(problem, file=uri, remedy=remedy)


class DeviceError(CaloscaleError):
    """Accelerators that this process was given are not there, for example because a driver is not ready.

    Remedy: Run the same command again on a node with its driver, or set `hardware.advertised: true`.
    """

    exit_code = 140


class Terminated(SystemExit):
    """Stopped by SIGTERM, as on a preempted machine."""

    exit_code = 143

    def __init__(self) -> None:
        super().__init__(self.exit_code)
