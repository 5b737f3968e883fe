"""Training of the run's networks on a dataset."""

import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from caloscale.errors import ConfigurationError
from caloscale.models.legacy_keras import choose_keras
from caloscale.showers.tfrecord.shard_folder import ShardFolder, open_shards
from caloscale.simulation.record import RECORD_NAME
from caloscale.spec import Run
from caloscale.spec.block import read_json
from caloscale.spec.workspace_layout import CHECKPOINTS, TRAINED
from caloscale.stages.node_workers import train_on_this_node
from caloscale.stages.record import recorded
from caloscale.stages.showers import figures_of
from caloscale.stages.workspace import open_workspace
from caloscale.storage.objects import is_remote
from caloscale.tensorflow_import import load_tensorflow_quietly
from caloscale.training.processor import set_processor
from caloscale.training.record import TrainingRecord
from caloscale.training.strategy import worker_of


def train(
    run: Run, workspace: str | Path, dataset: str | Path | ShardFolder, model: Path | None = None
) -> TrainingRecord:
    """Train on ``dataset`` (a folder of shards, here or in a bucket) and put the trained model into the folder
    ``model`` too, if one is given.

    Model, checkpoints (unless checkpoint.uri names another place), TensorBoard logs and history stay in
    ``<workspace>/training``; an interrupted training resumes from there. One worker of several when
    TF_CONFIG says so; several processes of this machine when ``train.workersPerNode`` does.
    """
    worker, _ = worker_of(os.environ)
    if worker > 0:
        # Worker 0 keeps all that is kept.
        with tempfile.TemporaryDirectory() as scratch:
            return _train_networks(run)(run, dataset, Path(scratch))
    with ExitStack() as opened:
        folder = opened.enter_context(open_workspace(workspace, run))
        train_networks = _train_networks(run)
        figures = opened.enter_context(recorded("train", folder))
        shards = opened.enter_context(open_shards(dataset))
        record = train_networks(_with_place(run, str(workspace)), shards, folder / "training")
        trained = folder / TRAINED
        if model is not None:
            shutil.copytree(trained, model, dirs_exist_ok=True)
        figures.update(record.model_dump(mode="json", by_alias=True), data=figures_of(shards.manifest))
        simulation = shards.path / RECORD_NAME
        if simulation.is_file():
            figures["simulation"] = read_json(simulation, remedy="delete it: the report then has no simulation")
            figures["simulation"]["reused"] = True
        return record


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
            raise ConfigurationError(
                "is for this machine alone, and TF_CONFIG names other workers",
                field="train.workersPerNode",
                value=run.train.workers_per_node,
                remedy="set train.workersPerNode to 1, or unset TF_CONFIG",
            )
        return train_on_this_node
    choose_keras(run, os.environ)
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
