"""The measure `exchangedTraining`: ranks that train a generator together and exchange gradients as the ranks of the
solver do (arXiv 2407.00051). Each has its own showers and, unless it is shared, its own discriminator.

A rank is a whole training with its share of the shards. Its optimiser applies the mean that an exchange returns, so it
has the steps of any family of generators. Gradients are exchanged with biases, in every update from the first
(synchronous) or the second one on.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import Field

from caloscale.errors import ConfigurationError
from caloscale.models.families.family import GENERATOR
from caloscale.sagips.exchange import Exchange, wait
from caloscale.sagips.remote_memory import Floats
from caloscale.showers.tfrecord.manifest import MANIFEST, Manifest, read_manifest
from caloscale.spec import Run, load_run
from caloscale.spec.solver import Exchange as ExchangeMethod
from caloscale.spec.workspace_layout import DATASET
from caloscale.stages.showers import provide_shards
from caloscale.storage.atomic import make_folder, write_text
from caloscale.studies.exchange import Exchanging
from caloscale.studies.points import configured_run, own_inputs, validated
from caloscale.studies.ranks import run_ranks
from caloscale.studies.search import judge_mixture
from caloscale.tensorflow_import import load_tensorflow_quietly
from caloscale.training.processor import set_processor

if TYPE_CHECKING:
    from mpi4py import MPI

    from caloscale.training.state import TrainingState


class TrainingRanks(Exchanging):
    """Ranks that train."""

    method: ExchangeMethod = "ring"
    ranks: int = Field(2, ge=1, le=64)
    """Processes, with a core each."""
    shared: bool = False
    """Whether the gradients of the other networks are exchanged as well, so that there is one discriminator."""


def train_exchanging(inputs: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """A training by ranks of this machine, begun anew, and the judgement of rank 0's generator on held-out showers.

    inputs: the fields of `TrainingRanks`, and dotted fields of the run configuration; its batch is of one rank.
    Result: ``deviation`` from Monte Carlo of the selected epoch, ``classifierAuc``, ``resolution``; ``betweenRanks``,
    the root mean square of the distances of the ranks' generators from their mean, over its length, at the end (0: they
    are equal); ``steps`` of a rank; ``stepSeconds`` and ``processorSeconds`` of a step, validations included, and of
    these ``exchangeSeconds``, waiting included, means over the ranks and all steps but the first; of remote memory
    ``staleShare`` and ``newShare`` of the slots and ``age``, the mean of what was new there, in steps. Raises
    ConfigurationError, TrainingError, and what the preparation of showers raises.
    """
    asked, fields = own_inputs(TrainingRanks, inputs)
    run = configured_run(fields)
    _check_shares(run, prepare_anew(run, folder), asked.ranks)
    found = run_ranks("exchanged_training", asked.ranks, {"folder": str(folder), "ranks": asked.as_values()})
    judged = judge_mixture(fields, [folder])
    return {**found, "classifierAuc": judged.get("classifierAuc"), "resolution": judged.get("resolutionDeviation")}


def prepare_anew(run: Run, folder: Path, *further: tuple[str, object, object]) -> Manifest:
    """The shards of a training that is begun anew: its processes were interrupted at different steps.

    Raises ConfigurationError for what processes that exchange gradients, and make equally many steps, cannot do; and
    for further fields: name, value, and the one that is needed.
    """
    for field, value, needed in (
        ("train.maxMinutes", run.train.max_minutes, None),
        ("train.workersPerNode", run.train.workers_per_node, 1),
        ("checkpoint.uri", run.checkpoint.uri, None),
        *further,
    ):
        if value != needed:
            problem, remedy = "cannot be set for processes that exchange", f"write {field}: {json.dumps(needed)}"
            raise ConfigurationError(problem, field=field, value=value, remedy=remedy)
    shutil.rmtree(folder, ignore_errors=True)
    return provide_shards(run, make_folder(folder), workspace=str(folder)).manifest


def _check_shares(run: Run, manifest: Manifest, ranks: int) -> None:
    """ConfigurationError unless all ranks have equally many steps, one or more."""
    batch = run.train.replica_batch(1)
    steps = {share_of(manifest, rank, ranks).splits["train"] // batch for rank in range(ranks)}
    if len(steps) > 1 or 0 in steps:
        problem = f"{manifest.splits['train']} training showers give the {ranks} ranks {sorted(steps)} steps an epoch"
        remedy = "write more data.showers, or 1, 2, 4 or 8 ranks"
        raise ConfigurationError(problem, field="ranks", value=ranks, remedy=remedy)


def share_of(manifest: Manifest, rank: int, ranks: int) -> Manifest:
    """The manifest of a rank: each ``ranks``-th training shard, and all that validate."""
    own = manifest.shards_of("train")[rank::ranks]
    splits = {**manifest.splits, "train": sum(shard.showers for shard in own)}
    return manifest.model_copy(update={"shards": (*own, *manifest.shards_of("validation")), "splits": splits})


class Rank:
    """One of the processes. Rank 0 trains in the folder of the point with the seed of the run; others in folders below
    it, with the seeds that follow."""

    def __init__(self, asked: TrainingRanks, folder: Path, world: MPI.Intracomm) -> None:
        self.asked, self.world = asked, world
        self.exchanges: dict[str, Exchange] = {}
        self.weights: list[Any] = []
        self.marks: list[np.ndarray[Any, Any]] = []
        """Of the end of the exchange of the generator's first and last update: number, wall and processor time, and the
        time in exchanges until then, s."""
        self.folder = folder if world.rank == 0 else folder / f"rank-{world.rank}"
        self.share = folder / f"share-{world.rank}"
        run = load_run(folder / "run.yaml")
        self.run = run.model_copy(update={"train": run.train.model_copy(update={"seed": run.train.seed + world.rank})})
        manifest = share_of(read_manifest(folder / DATASET), world.rank, world.size)
        make_folder(self.share)
        for shard in manifest.shards:
            (self.share / shard.file).symlink_to((folder / DATASET / shard.file).absolute())
        write_text(self.share / MANIFEST, manifest.model_dump_json(by_alias=True))

    def begin(self, state: TrainingState) -> None:
        """Take over the weights of rank 0 in the networks that are exchanged, and exchange their gradients."""
        from caloscale.models.optimizers import AveragingOptimizer

        roles = tuple(state.networks) if self.asked.shared else (GENERATOR,)
        for name, variable in state.variables().items():
            if name.partition("/")[0] in (*roles, "average"):
                variable.assign(self.world.bcast(variable.numpy()))
        for role in roles:
            self.exchanges[role] = self.asked.exchange(self.world)
            variables, average = state.networks[role].trainable_variables, partial(self._average, role)
            state.optimizers[role] = AveragingOptimizer(self.run.train.optimizer, variables, average)
        self.weights = state.networks[GENERATOR].trainable_variables

    def _average(self, role: str, gradient: Floats, number: int) -> Floats:
        mean = self.exchanges[role].average(gradient, number - 1)
        if role == GENERATOR:
            waited = sum(exchange.counts.exchange_seconds for exchange in self.exchanges.values())
            self.marks = [*self.marks[:1], np.array([number, time.perf_counter(), time.process_time(), waited])]
        return mean

    def train(self) -> dict[str, Any] | None:
        """The result of `train_exchanging` but for the judgement; None but of rank 0."""
        from caloscale.training.loop import train

        record = train(self.run, self.share, self.folder / "training", self.begin)
        wait([self.world.Ibarrier()])
        for exchange in self.exchanges.values():
            exchange.close()
        updates, *seconds = self.marks[-1] - self.marks[0]
        step = np.divide(seconds, max(updates / self.run.train.generator_updates, 1))
        weights = np.concatenate([weight.numpy().ravel() for weight in self.weights])
        every = self.world.gather((step, self.exchanges[GENERATOR].counts, weights))
        if every is None:
            return None
        steps, counts, generators = zip(*every)
        shares = self.asked.slot_shares(counts)
        age = shares.pop("age")
        mean = np.mean(generators, axis=0)
        distances = np.linalg.norm(np.subtract(generators, mean), axis=1)
        return {
            "deviation": record.selected_deviation,
            "betweenRanks": float(np.sqrt(np.mean(distances**2)) / np.linalg.norm(mean)),
            "steps": record.steps,
            **dict(zip(("stepSeconds", "processorSeconds", "exchangeSeconds"), np.mean(steps, axis=0).tolist())),
            **shares,
            "age": age and age / self.run.train.generator_updates,
        }


def work(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """What each process does; rank 0 has the result."""
    from mpi4py import MPI  # it joins the job, which only the processes of mpiexec may

    rank = Rank(validated(TrainingRanks, settings["ranks"]), Path(settings["folder"]), MPI.COMM_WORLD)
    set_processor(rank.run, os.environ)
    load_tensorflow_quietly()
    return rank.train()
