"""Training of the run's networks on a dataset, in this process or by several workers of this machine."""

import json
import logging
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from caloscale.errors import ConfigurationError, InputError, PeerLostError, TrainingError
from caloscale.models.card import read_start
from caloscale.ports import free_ports
from caloscale.processor import available_cores, core_shares
from caloscale.showers.tfrecord.shard_folder import ShardFolder, open_shards
from caloscale.simulation.record import RECORD_NAME
from caloscale.spec import Run, dump_run, load_run
from caloscale.spec.block import read_json
from caloscale.spec.workspace_layout import CHECKPOINTS, TRAINED
from caloscale.stages.record import read_records, recorded
from caloscale.stages.showers import figures_of
from caloscale.stages.usage import training_usd
from caloscale.stages.workspace import hold, open_workspace
from caloscale.status import PROGRESS_FILE_VARIABLE
from caloscale.storage.atomic import make_folder
from caloscale.storage.objects import is_remote
from caloscale.tensorflow_import import load_tensorflow_quietly
from caloscale.termination import end_with_parent, ended_by_sigterm
from caloscale.training.processor import set_processor
from caloscale.training.record import TrainingRecord
from caloscale.training.strategy import divide, resolve, visible_devices, worker_of

log = logging.getLogger(__name__)

RESULT_FILE = "record.json"
GRACE_SECONDS = 30.0
"""How long the others may take to end when one has; a worker without the others ends by itself."""
_POLL_SECONDS = 0.2


def train_on_this_node(run: Run, dataset: str | Path | ShardFolder, output: Path) -> TrainingRecord:
    """As `caloscale.training.loop.train`, by ``train.workersPerNode`` processes, of which worker 0 writes.

    SIGTERM and Ctrl-C are passed on. Raises ConfigurationError where there are too few cores to pin, TrainingError when
    a worker fails, with its exit code.
    """
    workers = run.train.workers_per_node
    shares = _shares(run)
    folder = dataset.path if isinstance(dataset, ShardFolder) else Path(dataset)
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(workers)]}
    with TemporaryDirectory(prefix="caloscale-workers-") as temporary:
        scratch = Path(temporary)
        (scratch / "run.yaml").write_text(dump_run(run), encoding="utf-8")
        started: list[subprocess.Popen[bytes]] = []
        with ended_by_sigterm():
            try:
                for index in range(workers):
                    task = {"cluster": cluster, "task": {"type": "worker", "index": index}}
                    started.append(_start(index, task, shares[index], scratch, folder, output))
                codes = _wait(started)
            except BaseException:  # Ctrl-C or SIGTERM
                _end(started)
                raise
        _raise_for(codes, scratch)
        return TrainingRecord.model_validate_json((scratch / RESULT_FILE).read_bytes())


def _shares(run: Run) -> Sequence[Sequence[int]]:
    workers = run.train.workers_per_node
    if not run.train.pin:
        return [[]] * workers
    cores = available_cores()
    shares = core_shares(workers, cores)
    if not shares:
        problem = f"needs a core for each of {workers} workers, and this process may use {len(cores)}"
        remedy = "lower train.workersPerNode, or set train.pin to false"
        raise ConfigurationError(problem, field="train.pin", value=True, remedy=remedy)
    return shares


def _start(
    index: int, task: object, cores: Sequence[int], scratch: Path, dataset: Path, output: Path
) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TF_CONFIG": json.dumps(task)}
    order = {
        "configuration": str(scratch / "run.yaml"),
        "dataset": str(dataset),
        "output": str(output if index == 0 else scratch / f"worker-{index}"),
        "cores": list(cores),
        "result": str(scratch / RESULT_FILE) if index == 0 else None,
    }
    command = [sys.executable, "-P", "-m", "caloscale.stages.node_worker", json.dumps(order)]
    # Ctrl-C reaches this process only, which asks each worker once to stop: a second signal would not let it save.
    options: dict[str, Any] = {"stdin": subprocess.DEVNULL, "start_new_session": True, "preexec_fn": end_with_parent}
    if index == 0:
        return subprocess.Popen(command, env=environment, **options)
    environment.pop(PROGRESS_FILE_VARIABLE, None)
    with _log(scratch, index).open("wb") as file:
        return subprocess.Popen(command, env=environment, stdout=file, stderr=file, **options)


def _log(scratch: Path, index: int) -> Path:
    return scratch / f"worker-{index}.log"


def _wait(started: Sequence[subprocess.Popen[bytes]]) -> dict[int, int]:
    """Exit codes by worker, in the order in which they ended. When one has failed, the others have a while to notice;
    then they are killed."""
    deadline, codes = float("inf"), dict[int, int]()
    while len(codes) < len(started):
        time.sleep(_POLL_SECONDS)
        codes |= {
            index: process.returncode
            for index, process in enumerate(started)
            if process.poll() is not None and index not in codes
        }
        if any(codes.values()):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            for process in started:
                process.kill()
    return codes


def _end(started: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ask all workers to stop and wait until they have saved; a second signal kills them."""
    for process in started:
        process.terminate()
    try:
        for process in started:
            process.wait()
    finally:
        for process in started:
            process.kill()
            process.wait()


def _raise_for(codes: Mapping[int, int], scratch: Path) -> None:
    """TrainingError of the worker that failed first; those that end because another is lost (138) are not the cause."""
    failed = [(index, code) for index, code in codes.items() if code]
    if not failed:
        return
    index, code = min(failed, key=lambda worker: worker[1] == PeerLostError.exit_code)
    how = f"ended with exit code {code}" if code > 0 else f"was killed by signal {-code}"
    end_of_log = "" if index == 0 else ": " + " ".join(_log(scratch, index).read_text(errors="replace").split()[-40:])
    remedy = "correct what it says; the same command resumes"
    error = TrainingError(f"worker {index} of {len(codes)} {how}{end_of_log}", remedy=remedy)
    error.exit_code = code if code > 0 else 128 - code
    raise error


def train(
    run: Run, workspace: str | Path, dataset: str | Path | ShardFolder, model: Path | None = None
) -> TrainingRecord:
    """Train on ``dataset`` (a folder of shards, here or in a bucket); the folder ``model`` gets the trained model, too.

    Model, checkpoints (unless checkpoint.uri names another place), TensorBoard logs and history stay in
    ``<workspace>/training``, from where an interrupted training resumes. One worker of several when TF_CONFIG says so;
    several processes of this machine when ``train.workersPerNode`` does.
    """
    worker, _ = worker_of(os.environ)
    if worker > 0:
        # Worker 0 keeps all that is kept.
        with TemporaryDirectory() as scratch:
            return _train_networks(run)(run, dataset, Path(scratch))
    check_start(run, workspace)
    with ExitStack() as opened:
        folder = opened.enter_context(open_workspace(workspace, run))
        if run.checkpoint.uri is not None and not is_remote(run.checkpoint.uri):
            opened.enter_context(hold(make_folder(run.checkpoint.uri)))
        train_networks = _train_networks(run)
        figures = opened.enter_context(recorded("train", folder))
        shards = opened.enter_context(open_shards(dataset))
        record = train_networks(_with_place(run, str(workspace)), shards, folder / "training")
        trained = folder / TRAINED
        if model is not None:
            shutil.copytree(trained, model, dirs_exist_ok=True)
        figures.update(record.as_values(), data=figures_of(shards.manifest))
        simulation = shards.path / RECORD_NAME
        if simulation.is_file():
            figures["simulation"] = read_json(simulation, remedy="delete it: the report then has no simulation")
            figures["simulation"]["reused"] = True
        return record


def train_as_step(run: Run, workspace: str, dataset: Path, model: Path) -> dict[str, float]:
    """As `train`, for the step of a pipeline: what its page of metrics shows, with the US dollars of all attempts.

    Without a price the log has the reason, the page no dollars.
    """
    metrics = train(run, workspace, dataset, model).metrics
    with open_workspace(workspace, shared=True) as folder:
        try:
            metrics["usd"] = training_usd(run, folder)
        except InputError as missing:
            log.warning("the US dollars of the training are not known: %s", missing.sentence)
    return metrics


def check_start(run: Run, workspace: str | Path) -> None:
    """Raises as `read_start` for a model that a training in a folder cannot start from; one that has begun there, or
    may have begun elsewhere, does not need it. Raises as `_check_ended`, too."""
    _check_ended(run, Path(workspace))
    start = run.train.start_from
    if start is None or run.checkpoint.uri is not None or is_remote(start) or is_remote(str(workspace)):
        return
    if not (Path(workspace) / TRAINED).parent.exists():
        read_start(Path(start), run)


def _check_ended(run: Run, folder: Path) -> None:
    """Raises ConfigurationError, before the report is replaced, where a training has ended in a folder, and the run
    names a place without its checkpoints, or has another global batch on the devices of this machine."""
    record, file = None, folder / "run.yaml"
    with suppress(InputError):  # of a damaged record, which the stage replaces
        record = read_records(folder).get("train")
    if record is None or record.outcome != "succeeded" or not file.is_file():
        return
    place, otherwise = run.checkpoint.uri, "or choose another folder or name"
    if place is not None and not is_remote(place) and not any(Path(place).glob("step-*")):
        problem = "has no checkpoints of the training that has ended here"
        remedy = f"give the folder of these, {otherwise}"
        raise ConfigurationError(problem, file=file, field="checkpoint.uri", value=place, remedy=remedy)
    fields, trained = ("batch_per_replica", "global_batch_size"), record.figures.get("globalBatchSize")
    here = run.train.workers_per_node == 1 and "TF_CONFIG" not in os.environ
    if trained and here and load_run(file).train.values_of(*fields) != run.train.values_of(*fields):
        _train_networks(run)
        placement = resolve(run, os.environ, visible_devices())
        if (batch := divide(run, placement)) != trained and placement.device != "TPU":  # known when it is connected
            problem = f"gives a global batch of {batch}, and this run was trained with {trained}"
            remedy = f"set train.globalBatchSize to {trained}, {otherwise}"
            raise ConfigurationError(problem, file=file, field="train", remedy=remedy)


def check_training(run: Run) -> None:
    """Raises InputError for a precision that is wrong on this machine, before showers are simulated for a training."""
    if run.train.precision == "bfloat16" and run.train.workers_per_node == 1:
        _train_networks(run)  # chooses how TensorFlow computes, and loads it
        from caloscale.models.layers.convolution import check_precision

        check_precision(run.train.precision, "train.precision")


def _train_networks(run: Run) -> Callable[[Run, str | Path | ShardFolder, Path], TrainingRecord]:
    """What trains the networks, in this process or in several of this machine."""
    if run.train.workers_per_node > 1:
        if "TF_CONFIG" in os.environ:
            problem = "is for this machine alone, and TF_CONFIG names other workers"
            workers = run.train.workers_per_node
            remedy = "set train.workersPerNode to 1, or unset TF_CONFIG"
            raise ConfigurationError(problem, field="train.workersPerNode", value=workers, remedy=remedy)
        return train_on_this_node
    set_processor(run, os.environ)
    load_tensorflow_quietly()
    from caloscale.training.loop import train

    return train


def _with_place(run: Run, workspace: str) -> Run:
    """The run with its checkpoints in the workspace's bucket, unless the configuration names another folder."""
    if run.checkpoint.uri is not None or not is_remote(workspace):
        return run
    settings = run.checkpoint.model_copy(update={"uri": f"{workspace.rstrip('/')}/{CHECKPOINTS}"})
    return run.model_copy(update={"checkpoint": settings})
